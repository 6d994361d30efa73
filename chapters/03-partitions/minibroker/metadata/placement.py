"""The placement of replicas on brokers: choose it, or check a client's choice. A pure module.

The replicas of a partition are on different brokers. The preferred leaders of a topic's partitions rotate over the
brokers, so that each broker leads about the same number. The topic's id determines the first broker. The id is random,
but the same on every node. Commands take a `Placing` as an argument: chapter 05 has one that respects racks.
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
    # Active brokers lead. A broker that is fenced or shutting down gets a replica only if there are too few active
    # brokers.
    live, fenced = usable_brokers(image, replication_factor)
    start = first_stripe(topic_id, first_partition)
    return [
        (stripe(live, start + number) + stripe(fenced, start + number))[:replication_factor]
        for number in range(partition_count)
    ]


def usable_brokers(image: Image, replication_factor: int) -> tuple[list[int], list[int]]:
    """The active brokers, and the other registered brokers. Refuse if all together are too few, or none is active."""
    live = image.active_brokers()
    fenced = sorted(set(image.brokers) - set(live))
    if replication_factor > len(live) + len(fenced) or not live:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need {replication_factor} brokers, but {len(live)} are live and "
            f"{len(fenced)} fenced: ask for fewer replicas or start more brokers",
        )
    return live, fenced


def first_stripe(topic_id: bytes, first_partition: int) -> int:
    """By how many places the brokers are rotated for the first new partition: one more for each existing partition."""
    return int.from_bytes(topic_id, "big") + first_partition


def stripe(brokers: Sequence[int], start: int) -> tuple[int, ...]:
    """All brokers in order, rotated left by `start` places."""
    if not brokers:
        return ()
    first = start % len(brokers)
    return (*brokers[first:], *brokers[:first])


def check_assignment(image: Image, replicas: Sequence[int], *, replication_factor: int | None) -> None:
    """Refuse a client's assignment that is impossible or has another replication factor."""
    problem = None
    unknown = sorted(set(replicas) - set(image.brokers))
    if not replicas:
        problem = "it names no broker"
    elif duplicates(replicas):
        problem = f"broker {min(duplicates(replicas))} occurs twice"
    elif unknown:
        problem = f"broker {unknown[0]} is not registered; the registered brokers are {sorted(image.brokers)}"
    elif replication_factor is not None and len(replicas) != replication_factor:
        problem = f"it names {len(replicas)} brokers, but the other partitions have {replication_factor} replicas"
    elif not set(replicas) & set(image.active_brokers()):
        problem = "all of these brokers are fenced or shutting down"
    if problem is not None:
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the assignment {list(replicas[:10])} is not possible: {problem}"
        )


def new_partition(image: Image, topic_id: bytes, partition: int, replicas: Sequence[int]) -> PartitionRecord:
    """The record of a new partition. Its active replicas are in sync, because all are empty. The first one leads."""
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
