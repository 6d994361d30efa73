"""Moves partitions to other brokers (KIP-455). A pure module.

A move uses replication. First the new replicas are added, so that the partition has the old and the new ones. The new
replicas fetch like any follower. When all of them are in sync, the old replicas are removed, and the move is complete.
The partition never has fewer replicas than before.

    replicas [1, 2, 3]                     target [2, 3, 4]
    replicas [2, 3, 4, 1]  adding [4]  removing [1]        broker 4 fetches
    replicas [2, 3, 4]                                     when 2, 3 and 4 are in sync
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, Outcome, Records, duplicates
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from minibroker.metadata.placement import check_assignment
from minibroker.replication.authority import (
    AlteredPartition,
    AlterPartitions,
    Election,
    ElectLeaders,
    IsrChange,
    alter_isr,
)
from minibroker.replication.eligible import with_eligible
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.records import NO_LEADER_CHANGE, PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode


class Move(NamedTuple):
    """A partition and its new replicas. None cancels the partition's move."""

    name: TopicPartition
    replicas: Sequence[int] | None


class Moved(Outcome[TopicPartition]):
    """The result for one partition: the move has started or was cancelled, or an error."""


@dataclass(frozen=True)
class ReassignPartitions(Command[list[Moved]]):
    """Move partitions to other brokers, or cancel moves."""

    moves: Sequence[Move]
    may_resize: bool = True
    """Whether a move may change the replication factor (KIP-860)."""

    def run(self, image: Image, records: Records) -> list[Moved]:
        """Start or cancel each move. An error of one partition does not affect the others."""
        twice = duplicates(move.name for move in self.moves)
        results = []
        for move in self.moves:
            try:
                if move.name in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"{move.name.directory} is in the request more than once")
                change = _started(image, move, may_resize=self.may_resize)
                records.add([] if change is None else [change])
                results.append(Moved(move.name))
            except Refused as refused:
                results.append(Moved(move.name, refused.code, str(refused)))
        return results

    def refuse(self, code: ErrorCode, message: str) -> list[Moved]:
        """Refuse every partition with the same error."""
        return [Moved(move.name, code, message) for move in self.moves]


def _started(image: Image, move: Move, *, may_resize: bool) -> PartitionChangeRecord | None:
    topic = image.topics.get(move.name.topic)
    partition = topic.partitions.get(move.name.partition) if topic is not None else None
    if topic is None or partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {move.name.directory} does not exist")
    change = (
        _cancelled(topic, move.name.partition, partition)
        if move.replicas is None
        else _begun(image, topic, partition, move.name, move.replicas, may_resize=may_resize)
    )
    return change and with_eligible(change, image, topic.name, partition, live=image.live_brokers())


def _begun(
    image: Image,
    topic: TopicImage,
    partition: PartitionImage,
    name: TopicPartition,
    target: Sequence[int],
    *,
    may_resize: bool,
) -> PartitionChangeRecord | None:
    check_assignment(image, target, replication_factor=None)
    if not may_resize:
        _check_count(partition, name, target)
    # All replicas outside the target are removed at the end of the move. That includes replicas that an unfinished move
    # has added: they may be in sync, or lead, by now.
    before = [it for it in partition.replicas if it not in partition.adding_replicas]
    adding = [it for it in target if it not in before]
    removing = [it for it in partition.replicas if it not in target]
    if not adding and not removing and list(target) == list(partition.replicas):
        return None
    change = PartitionChangeRecord(
        partition_id=name.partition,
        topic_id=topic.topic_id,
        replicas=[*target, *removing],
        adding_replicas=adding,
        removing_replicas=removing,
    )
    return _completed(change, partition) or change


def _check_count(partition: PartitionImage, name: TopicPartition, target: Sequence[int]) -> None:
    """Refuse a move that changes the number of replicas. Replicas that are being removed do not count."""
    count = len(set(partition.replicas) - set(partition.removing_replicas))
    if len(target) != count:
        message = (
            f"{name.directory} has {count} replicas, the move names {len(target)}, but the request "
            "does not allow a change of the replication factor"
        )
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _cancelled(topic: TopicImage, number: int, partition: PartitionImage) -> PartitionChangeRecord:
    if not partition.adding_replicas and not partition.removing_replicas:
        message = f"{topic.name}-{number} is not being moved, so there is no move to cancel"
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message)
    kept = [it for it in partition.replicas if it not in partition.adding_replicas]
    change = PartitionChangeRecord(
        partition_id=number, topic_id=topic.topic_id, replicas=kept, adding_replicas=[], removing_replicas=[]
    )
    isr = [it for it in partition.isr if it in kept]
    if not isr and partition.isr:
        message = (
            f"the move of {topic.name}-{number} cannot be cancelled: "
            f"only the new replicas {list(partition.isr)} are in sync"
        )
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if isr != list(partition.isr):
        change.isr = isr
    # A partition without a leader stays without one: its last in-sync replica leads when it is unfenced.
    if partition.leader not in kept and partition.leader != NO_LEADER:
        change.leader = isr[0]
    return _with_new_leader_epoch(change, partition)


def _completed(change: PartitionChangeRecord, partition: PartitionImage) -> PartitionChangeRecord | None:
    """Let `change` also complete the move. Return None if a target replica is not in sync, or there is no move."""
    replicas = change.replicas if change.replicas is not None else list(partition.replicas)
    adding = change.adding_replicas if change.adding_replicas is not None else list(partition.adding_replicas)
    removing = change.removing_replicas if change.removing_replicas is not None else list(partition.removing_replicas)
    isr = change.isr if change.isr is not None else list(partition.isr)
    if not adding and not removing:
        return None
    target = [it for it in replicas if it not in removing]
    # The move ends only when all target replicas are in sync. If it ended earlier, dropping the old replicas could
    # leave fewer replicas in sync than min.insync.replicas demands (KAFKA-15665).
    if not set(target) <= set(isr):
        return None
    change.replicas, change.adding_replicas, change.removing_replicas = target, [], []
    change.isr = [it for it in isr if it in target]
    if partition.leader not in target and partition.leader >= 0:
        change.leader = next(it for it in target if it in change.isr)
    return _with_new_leader_epoch(change, partition)


def _with_new_leader_epoch(change: PartitionChangeRecord, partition: PartitionImage) -> PartitionChangeRecord:
    """Begin a new leader epoch in a change that removes a replica.

    The replica may be added again before it learns of its removal. In the old epoch it would keep fetching, count as in
    sync, and then delete its log. In a new epoch its fetches are refused until it has learned of the removal.
    """
    is_one_gone = change.replicas is not None and not set(partition.replicas) <= set(change.replicas)
    if is_one_gone and change.leader == NO_LEADER_CHANGE:
        change.leader = partition.leader
    return change


def _is_leaving(image: Image, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.in_controlled_shutdown


def _isr_of(image: Image, name: str | None, change: IsrChange) -> Sequence[int]:
    partition = None if name is None else image.partition(TopicPartition(name, change.partition))
    return () if partition is None else partition.isr


def _may_be_eligible_yet(image: Image, change: IsrChange) -> bool:
    """Whether a replica is refused only because it is fenced. It may be unfenced later, in the same broker epoch."""
    brokers = ((image.brokers.get(node_id), epoch) for node_id, epoch in change.isr)
    return any(
        broker is not None and broker.is_fenced and epoch in (NO_BROKER_EPOCH, broker.epoch)
        for broker, epoch in brokers
    )


def alter_moving(image: Image, broker_id: int, change: IsrChange, records: Records) -> AlteredPartition:
    """Alter an in-sync set by chapter 04's rule, and end a move if all target replicas are in the new set."""
    name = image.topic_names.get(change.topic_id)
    # A broker that is shutting down fetches until it stops. It must not come back into the in-sync set before it stops.
    leaving = [it for it, _epoch in change.isr if _is_leaving(image, it) and it not in _isr_of(image, name, change)]
    if leaving:
        message = f"brokers {leaving} are shutting down, and cannot join the in-sync set"
        return AlteredPartition(change.topic_id, change.partition, ErrorCode.INELIGIBLE_REPLICA, message)
    altered = alter_isr(image, broker_id, change, records)
    if altered.code is ErrorCode.INELIGIBLE_REPLICA and name is not None and _may_be_eligible_yet(image, change):
        # The leader treats this refusal as final. But a delayed copy of its request could arrive after the fenced
        # replica is unfenced, and would be accepted then. A new partition epoch makes the copy invalid.
        partition = image.topics[name].partitions[change.partition]
        renewed = PartitionChangeRecord(
            partition_id=change.partition, topic_id=change.topic_id, isr=list(partition.isr)
        )
        records.add([with_eligible(renewed, image, name, partition, live=image.live_brokers())])
    if altered.code is not ErrorCode.NONE or name is None or not records.list:
        return altered
    record, partition = records.list[-1], image.topics[name].partitions[change.partition]
    # If the in-sync set has not changed, no record was added, and the last record is not about this partition. Only a
    # record of this partition can complete its move.
    if not isinstance(record, PartitionChangeRecord):
        return altered
    if (record.topic_id, record.partition_id) != (change.topic_id, change.partition):
        return altered
    if _completed(record, partition) is None:
        return altered
    with_eligible(record, image, name, partition, live=image.live_brokers())
    if record.leader != NO_LEADER_CHANGE:
        # The leader epoch has ended, even if the same broker leads again. The leader learns the new epoch from the
        # metadata.
        message = f"the move is complete, and broker {record.leader} leads in a new epoch"
        return AlteredPartition(change.topic_id, change.partition, ErrorCode.NEW_LEADER_ELECTED, message)
    # The answer has the new in-sync set. The leader learns the new replicas from the metadata, which have the same
    # partition epoch.
    return replace(altered, isr=tuple(record.isr or ()))


def alter_moving_partitions(broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]) -> AlterPartitions:
    """The command that changes in-sync sets, which may end moves."""
    return AlterPartitions(broker_id, broker_epoch, changes, alter_moving)


def elect_moving_leaders(
    partitions: Sequence[TopicPartition],
    live: Collection[int],
    node: NodeConfig,
    kind: Election = Election.PREFERRED,
) -> ElectLeaders:
    """The command of chapter 04's election, which also ends a move if all target replicas are in sync after it."""
    return ElectLeaders(partitions, live, node, kind, _completed)
