"""Which brokers get a partition: chosen, or checked where somebody chose already. A pure module.

The replicas of a partition stand on different brokers, and the partitions of a topic begin with one broker after the
other, so that each leads about as many as the next. Where to begin comes from the topic's id, which is as good as
chance, and the same for everybody who asks. The commands take this as an argument, a `Placing`: chapter 05 gives them
one that knows racks.
"""

from collections.abc import Sequence
from typing import Protocol

from minibroker.metadata.decision import duplicates
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import Image
from minibroker.metadata.records import PartitionRecord
from minibroker.wire.codes import ErrorCode

REPLICATION_FACTOR_MAX = 2**15 - 1


class Placing(Protocol):
    """A way to choose brokers."""

    def __call__(
        self, image: Image, *, topic_id: bytes, first_partition: int, partition_count: int, replication_factor: int
    ) -> list[tuple[int, ...]]:
        """The replicas of each new partition, the preferred leader first."""


def place(
    image: Image, *, topic_id: bytes, first_partition: int, partition_count: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each new partition, the preferred leader first."""
    # Active brokers lead. Fenced ones, and those that leave, take a replica only where there are not enough others.
    live, fenced = usable_brokers(image, replication_factor)
    start = first_stripe(topic_id, first_partition)
    return [
        (stripe(live, start + number) + stripe(fenced, start + number))[:replication_factor]
        for number in range(partition_count)
    ]


def usable_brokers(image: Image, replication_factor: int) -> tuple[list[int], list[int]]:
    """The active brokers and the others; refused if they are too few."""
    live = image.active_brokers()
    fenced = sorted(set(image.brokers) - set(live))
    if replication_factor > len(live) + len(fenced) or not live:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need {replication_factor} brokers, {len(live)} are live and "
            f"{len(fenced)} fenced: ask for fewer replicas or start more brokers",
        )
    return live, fenced


def first_stripe(topic_id: bytes, first_partition: int) -> int:
    """Where the first of the new partitions begins: new ones of an old topic go on behind its last."""
    return int.from_bytes(topic_id, "big") + first_partition


def stripe(brokers: Sequence[int], start: int) -> tuple[int, ...]:
    """All of them in their order, beginning at another one for each partition."""
    if not brokers:
        return ()
    first = start % len(brokers)
    return (*brokers[first:], *brokers[:first])


def check_assignment(image: Image, replicas: Sequence[int], *, replication_factor: int | None) -> None:
    """Demand that somebody's own choice of brokers is possible, and has as many replicas as the others."""
    problem = None
    unknown = sorted(set(replicas) - set(image.brokers))
    if not replicas:
        problem = "it is empty"
    elif duplicates(replicas):
        problem = f"broker {min(duplicates(replicas))} is in it twice"
    elif unknown:
        problem = f"broker {unknown[0]} is not registered, {sorted(image.brokers)} are"
    elif replication_factor is not None and len(replicas) != replication_factor:
        problem = f"it has {len(replicas)} replicas, the other partitions have {replication_factor}"
    elif not set(replicas) & set(image.active_brokers()):
        problem = "all its brokers are fenced"
    if problem is not None:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the assignment {list(replicas[:10])} is not possible: {problem}"
        )


def new_partition(image: Image, topic_id: bytes, partition: int, replicas: Sequence[int]) -> PartitionRecord:
    """The record of a partition whose active replicas are in sync, because all are empty; the first of them leads."""
    active = set(image.active_brokers())
    isr = [node_id for node_id in replicas if node_id in active]
    return PartitionRecord(
        partition_id=partition,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )
