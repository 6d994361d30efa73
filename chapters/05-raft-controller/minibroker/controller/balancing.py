"""Leaders where they were meant to be: who comes back leads again what it led. A pure module.

A broker that is away gives what it leads to others, and gets nothing back by returning: after a few restarts one broker
leads nearly everything. So the controller looks now and then for partitions whose preferred leader, the first of the
replicas, is live and in sync and does not lead, and elects it. Nothing is lost by that: it has all that counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.codes import ErrorCode

ELECTIONS_MAX = 1000
"""How many leaders change at once, as in Kafka. The rest follows at the next tick: brokers have other work as well."""


def led_by_others(image: Image) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Every partition that its preferred leader could lead, and does not."""
    # One that is on its way out would have to give it away again.
    ready = {it.node_id for it in image.brokers.values() if not it.is_fenced and not it.in_controlled_shutdown}
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            preferred = partition.replicas[0]
            if partition.leader != preferred and preferred in partition.isr and preferred in ready:
                yield topic, number, partition


@dataclass(frozen=True)
class ElectPreferredLeaders(Command[int]):
    """Let preferred leaders lead, wherever they can; the result is how many were elected."""

    def run(self, image: Image, records: Records) -> int:
        """Elect them, as many as may change at once."""
        changes = [
            PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id, leader=partition.replicas[0])
            for topic, number, partition in islice(led_by_others(image), ELECTIONS_MAX)
        ]
        records.add(changes)
        return len(changes)

    def refuse(self, code: ErrorCode, message: str) -> int:  # noqa: ARG002
        """Nobody is elected."""
        return 0


class LeaderBalance:
    """When to look. Without an interval, never."""

    def __init__(self, interval_ms: int | None) -> None:
        self._interval_ms = interval_ms
        self._due_ms = 0

    def begin(self, now_ms: int) -> None:
        """This node begins to decide: those who come back at the same time are given the time to do so."""
        self._due_ms = now_ms + (self._interval_ms or 0)

    def tick(self, image: Image, now_ms: int) -> ElectPreferredLeaders | None:
        """What is to be decided now, if anything is."""
        if self._interval_ms is None or now_ms < self._due_ms:
            return None
        found = sum(1 for _ in islice(led_by_others(image), ELECTIONS_MAX + 1))
        # Where not all can be elected at once it goes on with the next tick.
        if found <= ELECTIONS_MAX:
            self._due_ms = now_ms + self._interval_ms
        return ElectPreferredLeaders() if found else None
