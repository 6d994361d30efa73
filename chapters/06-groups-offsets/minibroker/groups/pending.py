"""Offsets that are part of an open transaction. A pure module.

A producer may commit offsets in a transaction, together with the records that it has made of them. Its coordinator
writes them to `__consumer_offsets` at once, in a transactional batch. They count only after the marker that commits the
transaction. Until then they are pending, and nobody can fetch them:

    TxnOffsetCommit ──▶ pending ── marker: commit ──▶ committed, unless a later record has committed another offset
                           └────── marker: abort ───▶ dropped
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

Place = tuple[str, str, int]
"""A group, a topic and a partition."""


class Producer(NamedTuple):
    """A producer id and an epoch: the identity of one incarnation of a producer."""

    id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Guard:
    """A question to the coordinator of a transaction that is not answered yet."""

    epoch: int
    is_add: bool


class PendingOffsets:
    """The pending offsets of the groups of one shard, by producer."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[Place, bytes]] = {}
        self._epochs: dict[int, int] = {}
        self._places: Counter[Place] = Counter()
        """In how many open transactions each partition of a group is."""

    def __len__(self) -> int:
        return len(self._places)

    def epoch_of(self, producer_id: int) -> int | None:
        """The epoch of the producer's open transaction, or None if it has none here."""
        return self._epochs.get(producer_id)

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset for this partition."""
        return (group_id, topic, partition) in self._places

    def of_group(self, group_id: str) -> list[Place]:
        """The partitions for which open transactions have offsets of a group."""
        return [place for place in self._places if place[0] == group_id]

    def of_topic(self, topic: str) -> list[Place]:
        """The partitions of a topic for which open transactions have offsets."""
        return [place for place in self._places if place[1] == topic]

    def add(self, producer: Producer, place: Place, stored: bytes) -> None:
        """An offset was written in a transaction. A later one of the same transaction replaces it."""
        offsets = self._producers.setdefault(producer.id, {})
        if place not in offsets:
            self._places[place] += 1
        offsets[place] = stored
        self._epochs[producer.id] = producer.epoch

    def remove(self, place: Place) -> None:
        """A tombstone was written: the offset is deleted in every open transaction."""
        if self._places.pop(place, 0):
            for offsets in self._producers.values():
                offsets.pop(place, None)

    def end(self, producer_id: int) -> dict[Place, bytes]:
        """A transaction has ended. Returns its offsets, which are no longer pending."""
        self._epochs.pop(producer_id, None)
        offsets = self._producers.pop(producer_id, {})
        for place in offsets:
            self._places[place] -= 1
            if not self._places[place]:
                del self._places[place]
        return offsets
