"""A large change of the metadata in slices leads to the same image."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.quorum.slicing import slices


def partition(epoch: int) -> PartitionImage:
    return PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=epoch, partition_epoch=epoch)


def image(topics: dict[str, tuple[int, list[int]]], offset: int) -> Image:
    """By name: a number for the topic id, and the epochs of its partitions."""
    made = {
        name: TopicImage(name, bytes([life]) * 16, {index: partition(epoch) for index, epoch in enumerate(epochs)})
        for name, (life, epochs) in topics.items()
    }
    return Image(topics=made, offset=offset)


TOPICS = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), min_size=1, max_size=6))
)


def differences(old: Image, new: Image) -> int:
    """How many partitions have changed."""
    return sum(
        old.topics[name].partitions.get(index) is not it
        if name in old.topics and old.topics[name].topic_id == topic.topic_id
        else True
        for name, topic in new.topics.items()
        for index, it in topic.partitions.items()
    )


@given(before=TOPICS, after=TOPICS, count=st.integers(1, 4))
def test_each_slice_is_small_and_the_last_one_is_the_new_image(
    before: dict[str, tuple[int, list[int]]], after: dict[str, tuple[int, list[int]]], count: int
) -> None:
    old, new = image(before, 1), image(after, 2)
    steps = list(slices(old, new, count))
    assert steps[-1] is new
    for last, step in zip([old, *steps], steps, strict=False):
        assert differences(last, step) <= count
        for name, topic in step.topics.items():
            # Each partition is the old one or the new one, and deleted topics are gone at once.
            assert topic.topic_id == new.topics[name].topic_id
            known = old.topics.get(name)
            for index, it in topic.partitions.items():
                is_old = known is not None and known.partitions.get(index) is it
                assert is_old or new.topics[name].partitions.get(index) is it


def test_a_small_change_is_one_slice() -> None:
    old = image({"a": (0, [0] * 100)}, 1)
    topic = old.topics["a"]
    new = replace(old, topics={"a": replace(topic, partitions={**topic.partitions, 7: partition(1)})}, offset=2)
    assert list(slices(old, new, 16)) == [new]
