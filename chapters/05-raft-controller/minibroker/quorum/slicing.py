"""Splits a large change of the metadata into small ones. A pure module.

Opening a log, or beginning to lead it, takes milliseconds. A topic with a thousand partitions would keep a node busy
for seconds, in which it neither votes nor sends heartbeats: it would be fenced, and lose its leadership of the quorum.
"""

from collections.abc import Iterator
from dataclasses import replace

from minibroker.metadata.image import Image, TopicImage


def slices(old: Image, new: Image, count: int) -> Iterator[Image]:
    """Images that lead from `old` to `new`. Each differs from the one before in at most `count` partitions.

    The first image already has all deletions, and all changes that are not changes of partitions.
    """
    changed = [
        (topic, index)
        for topic in new.topics.values()
        if old.topics.get(topic.name) is not topic
        for index in _changed(old, topic)
    ]
    topics = {name: it for name, it in old.topics.items() if it.topic_id == _id_of(new, name)}
    for start in range(0, len(changed) - count, count):
        for topic, index in changed[start : start + count]:
            known = topics.get(topic.name)
            partitions = {**(known.partitions if known is not None else {}), index: topic.partitions[index]}
            topics[topic.name] = replace(topic, partitions=partitions)
        yield replace(new, topics=dict(topics))
    yield new


def _id_of(image: Image, name: str) -> bytes | None:
    topic = image.topics.get(name)
    return None if topic is None else topic.topic_id


def _changed(old: Image, topic: TopicImage) -> list[int]:
    known = old.topics.get(topic.name)
    before = known.partitions if known is not None and known.topic_id == topic.topic_id else {}
    return [index for index, partition in topic.partitions.items() if before.get(index) is not partition]
