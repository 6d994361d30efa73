"""Offsets that are part of an open transaction. A pure module.

A producer may commit the offsets of a group in a transaction, together with the records that it has written. The
group's coordinator writes the offsets to `__consumer_offsets` at once, in a transactional batch. They count only after
the marker that commits the transaction. Until then they are pending, and no fetch returns them:

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
    """A question to the coordinator of a producer's transaction. `is_add` says whether it also adds the partition."""

    epoch: int
    is_add: bool


class PendingOffsets:
    """The pending offsets of the groups of one shard, by producer."""

    def __init__(self) -> None:
        self._producers: dict[int, dict[Place, bytes]] = {}
        self._epochs: dict[int, int] = {}
        self._places: Counter[Place] = Counter()
        """For each partition of a group, how many open transactions have an offset for it."""

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


class Verification:
    """Which transactions are being verified, and which of the verified ones are still open."""

    def __init__(self) -> None:
        self._guards: dict[int, Guard] = {}
        """For each producer whose transaction is being verified, a guard. The marker of the transaction removes it."""
        self._owners: dict[int, str] = {}
        """The transactional id of each producer whose transaction was verified and is open here."""

    def guard_of(self, producer: Producer, *, is_add: bool) -> Guard:
        """The guard of a producer's transaction. It is the same object until the marker of the transaction comes.

        Before the first offset of a transaction is stored, its coordinator is asked whether the transaction is open.
        The transaction may end before the answer comes. Then the offset must not be stored, because no marker would
        follow it. With transaction version 2 (`is_add`), the marker of the previous transaction has the epoch of this
        one, and does not end the guard.
        """
        known = self._guards.get(producer.id)
        if known is None or (known.epoch, known.is_add) != (producer.epoch, is_add):
            known = self._guards[producer.id] = Guard(producer.epoch, is_add)
        return known

    def is_guarded(self, producer_id: int, guard: Guard) -> bool:
        """Whether this guard still holds: no marker has ended its transaction."""
        return self._guards.get(producer_id) is guard

    def verified(self, producer: Producer, transactional_id: str) -> None:
        """Note that the coordinator has confirmed the open transaction of this producer."""
        self._owners[producer.id] = transactional_id

    def is_verified(self, producer: Producer, transactional_id: str) -> bool:
        """Whether the producer has a verified transaction of this transactional id."""
        return self._owners.get(producer.id) == transactional_id

    def end(self, producer: Producer) -> None:
        """A marker has ended the producer's transaction."""
        guard = self._guards.get(producer.id)
        if guard is not None and not (guard.is_add and guard.epoch >= producer.epoch):
            del self._guards[producer.id]
        self._owners.pop(producer.id, None)
