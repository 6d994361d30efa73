"""Elects preferred leaders, so that a broker that comes back leads its partitions again. A pure module.

When a broker stops, other brokers lead its partitions, and they keep leading them when it returns: after a few
restarts one broker leads nearly everything. So the controller regularly looks for partitions whose preferred leader,
the first replica, is live and in sync but does not lead, and elects it. No committed record is lost, because the
replica is in sync.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import Image, PartitionImage, TopicImage
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.codes import ErrorCode

ELECTIONS_MAX = 1000
"""The most leaders that one command changes, as in Kafka. The others change at the next tick."""


def led_by_others(image: Image) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Every partition whose preferred leader could lead, but does not."""
    # A broker that is shutting down would have to give up the leadership at once.
    ready = {it.node_id for it in image.brokers.values() if not it.is_fenced and not it.in_controlled_shutdown}
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            preferred = partition.replicas[0]
            if partition.leader != preferred and preferred in partition.isr and preferred in ready:
                yield topic, number, partition


@dataclass(frozen=True)
class ElectPreferredLeaders(Command[int]):
    """Elect preferred leaders wherever possible; the result is the number of elections."""

    def run(self, image: Image, records: Records) -> int:
        """Elect at most `ELECTIONS_MAX` preferred leaders."""
        changes = [
            PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id, leader=partition.replicas[0])
            for topic, number, partition in islice(led_by_others(image), ELECTIONS_MAX)
        ]
        records.add(changes)
        return len(changes)

    def refuse(self, code: ErrorCode, message: str) -> int:  # noqa: ARG002
        """The result of a refusal: no leader is elected."""
        return 0


class LeaderBalance:
    """Schedules the elections of preferred leaders. If the interval is None, it schedules none."""

    def __init__(self, interval_ms: int | None) -> None:
        self._interval_ms = interval_ms
        self._due_ms = 0

    def begin(self, now_ms: int) -> None:
        """Begin as the active controller: the first check is one interval later, when restarting brokers are back."""
        self._due_ms = now_ms + (self._interval_ms or 0)

    def tick(self, image: Image, now_ms: int) -> ElectPreferredLeaders | None:
        """The command to run now, or None."""
        if self._interval_ms is None or now_ms < self._due_ms:
            return None
        found = sum(1 for _ in islice(led_by_others(image), ELECTIONS_MAX + 1))
        # If one command cannot elect all of them, the next tick continues.
        if found <= ELECTIONS_MAX:
            self._due_ms = now_ms + self._interval_ms
        return ElectPreferredLeaders() if found else None
