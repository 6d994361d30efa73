"""The placement of replicas on racks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_model import brokers, topic_id

from minibroker.controller.placement import place_on_racks
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import decide
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import Image, fold_all
from minibroker.metadata.placement import place
from minibroker.metadata.topic_commands import CreatePartitions, CreateTopics, MorePartitions, NewTopic
from minibroker.wire.codes import ErrorCode


def on_racks(*racks: str | None, fenced: Sequence[int] = ()) -> Image:
    """An image of the brokers 1, 2, …, each with its rack."""
    numbers = range(1, len(racks) + 1)
    image = brokers(*(it for it in numbers if it not in fenced), fenced=fenced)
    named = {it: replace(image.brokers[it], rack=rack) for it, rack in zip(numbers, racks, strict=True)}
    return replace(image, brokers=named)


def placed(image: Image, count: int, factor: int, *, first: int = 0, topic: int = 60) -> list[tuple[int, ...]]:
    # 60 is a multiple of all small numbers of brokers: the first stripe begins with the first broker.
    return place_on_racks(
        image, topic_id=topic_id(topic), first_partition=first, partition_count=count, replication_factor=factor
    )


def test_the_racks_take_turns_and_so_do_their_brokers() -> None:
    image = on_racks("a", "a", "b", "b", "c", "c")
    assert placed(image, 6, 3) == [(1, 3, 5), (3, 2, 6), (5, 4, 2), (2, 4, 6), (4, 1, 6), (6, 1, 3)]


def test_a_small_rack_has_a_replica_of_everything() -> None:
    image = on_racks("a", "a", "a", "b")
    replicas = placed(image, 8, 2)
    assert all(4 in it for it in replicas)
    # The brokers of the large rack share the rest.
    counts = Counter(it for found in replicas for it in found if it != 4)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_another_rack_comes_before_a_live_broker() -> None:
    image = on_racks("a", "a", "b", fenced=[3])
    assert [set(it) for it in placed(image, 2, 2)] == [{1, 3}, {2, 3}]
    assert {it[0] for it in placed(image, 2, 2)} == {1, 2}
    # If the racks are equally good, a live broker comes first.
    assert all(3 not in it for it in placed(on_racks("a", "b", "b", "c", fenced=[3]), 6, 3))


def test_brokers_without_a_rack_count_as_one_rack() -> None:
    image = on_racks(None, None, "b")
    assert all(3 in it for it in placed(image, 4, 2))


LAYOUTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9).filter(
    lambda them: not all(is_fenced for _rack, is_fenced in them)
)


def layout(them: Sequence[tuple[str | None, bool]]) -> Image:
    fenced = [number for number, (_rack, is_fenced) in enumerate(them, start=1) if is_fenced]
    return on_racks(*(rack for rack, _is_fenced in them), fenced=fenced)


@given(LAYOUTS, st.integers(1, 30), st.integers(1, 2**100), st.data())
def test_replicas_are_spread_over_brokers_racks_and_leaders(
    them: Sequence[tuple[str | None, bool]], count: int, topic: int, data: st.DataObject
) -> None:
    image = layout(them)
    factor = data.draw(st.integers(1, len(them)))
    replicas = placed(image, count, factor, topic=topic)
    live = set(image.live_brokers())
    sizes = Counter(it.rack for it in image.brokers.values())
    for found in replicas:
        assert len(set(found)) == len(found) == factor
        assert found[0] in live
        used = Counter(image.brokers[it].rack for it in found)
        assert len(used) == min(factor, len(sizes))
        # A rack has fewer replicas than another one only if it is full, or by one.
        assert all(it in (sizes[rack], max(used.values()), max(used.values()) - 1) for rack, it in used.items())
        # A fenced broker is chosen only after all live brokers of its rack.
        for it in (it for it in found if it not in live):
            rack = image.brokers[it].rack
            assert all(other in found for other in live if image.brokers[other].rack == rack)
    leads = [sum(it[0] == broker for it in replicas) for broker in live]
    assert max(leads) - min(leads) <= 1


@given(LAYOUTS, st.integers(1, 20), st.integers(1, 2**100), st.data())
def test_without_racks_the_placement_is_that_of_chapter_03(
    them: Sequence[tuple[str | None, bool]], count: int, topic: int, data: st.DataObject
) -> None:
    rack = data.draw(st.sampled_from([None, "a"]))
    image = layout([(rack, is_fenced) for _rack, is_fenced in them])
    factor = data.draw(st.integers(1, len(them)))
    before = place(image, topic_id=topic_id(topic), first_partition=3, partition_count=count, replication_factor=factor)
    assert placed(image, count, factor, first=3, topic=topic) == before


def test_an_impossible_placement_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        placed(on_racks("a", "b"), 1, 3)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_topics_are_created_and_grow_with_regard_to_racks() -> None:
    image = on_racks("a", "a", "b", "b")
    topic = NewTopic("t", topic_id(60), partition_count=2, replication_factor=2)
    decision = decide(image, CreateTopics([topic], NodeConfig(), placing=place_on_racks))
    image = fold_all(image, enumerate(decision.records, start=image.offset + 1))
    grown = decide(image, CreatePartitions([MorePartitions("t", 4)], placing=place_on_racks))
    image = fold_all(image, enumerate(grown.records, start=image.offset + 1))
    partitions = image.topics["t"].partitions.values()
    assert len(partitions) == 4
    assert all({image.brokers[it].rack for it in partition.replicas} == {"a", "b"} for partition in partitions)
    assert sorted(partition.leader for partition in partitions) == [1, 2, 3, 4]
