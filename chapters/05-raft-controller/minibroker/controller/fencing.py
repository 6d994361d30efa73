"""Fences brokers, and elects other leaders for their partitions. A pure module.

A fenced broker leads no partition, and is in no in-sync set. A command that fences a broker changes all its partitions
in the same batch of records: the metadata never name a fenced broker as a leader. The new leader is the first replica,
in the partition's order, that is in sync and live.

If an in-sync set is then smaller than `min.insync.replicas`, no write with acks=all succeeds, so the fenced broker
still has every acknowledged record. The metadata remember it as eligible (`minibroker.replication.eligible`). If no
replica is in sync, an eligible one leads as soon as it is live. Any other replica is elected only if the topic has
`unclean.leader.election.enable`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from minibroker.controller.reassignment import elect_moving_leaders
from minibroker.controller.records import BrokerRegistrationChangeRecord
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Elected, change_on_return
from minibroker.replication.eligible import is_enabled, with_eligible
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

FENCE, UNFENCE = 1, -1
IN_CONTROLLED_SHUTDOWN = 1


def partitions_of(image: Image, broker_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Every partition of which a broker has a replica."""
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            if broker_id in partition.replicas:
                yield topic, number, partition


def without(
    topic: TopicImage, number: int, partition: PartitionImage, *, gone: int, live: Collection[int]
) -> PartitionChangeRecord | None:
    """The change of a partition when broker `gone` is fenced or stops, or None if nothing changes.

    The broker no longer leads, and it leaves the in-sync set unless it is the last member.
    """
    # The other members stay in the in-sync set. If there are no others, the broker itself stays in it.
    isr = [it for it in partition.isr if it != gone] or list(partition.isr)
    # The record has only the fields that change.
    change = PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
    if isr != list(partition.isr):
        change.isr = isr
    # The new leader is the first replica in the partition's order that is in sync and live; there may be none.
    if partition.leader == gone:
        candidates = [it for it in partition.replicas if it in isr and it in live and it != gone]
        change.leader = candidates[0] if candidates else NO_LEADER
    return change if change.isr is not None or partition.leader == gone else None


def removed(
    image: Image, topic: TopicImage, number: int, partition: PartitionImage, *, gone: int, live: Collection[int]
) -> PartitionChangeRecord | None:
    """Like `without`, but in a cluster that keeps eligible leader replicas (KIP-966), the last member leaves, too.

    If the in-sync set is then smaller than `min.insync.replicas`, the broker that leaves it becomes eligible, and the
    replicas that were eligible before stay so.
    """
    change = without(topic, number, partition, gone=gone, live=live)
    if is_enabled(image) and partition.isr == (gone,):
        change = change or PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
        change.isr = []
    others = [it for it in live if it != gone]
    return change and with_eligible(change, image, topic.name, partition, live=others)


def live_without(image: Image, broker_id: int) -> set[int]:
    """The live brokers except one."""
    return {it for it in image.live_brokers() if it != broker_id}


def change_when_fenced(
    broker_id: int, image: Image, topic: TopicImage, number: int, partition: PartitionImage, has_all: bool
) -> PartitionChangeRecord | None:
    """How a partition changes when a broker with one of its replicas registers again. The broker is fenced at first."""
    # If the broker may have lost records, chapter 04's rule applies. If it has all records, the partition changes as
    # for a silent broker: another replica leads or, if there is none, this broker leads again when it is unfenced.
    if not has_all:
        return change_on_return(broker_id, image, topic, number, partition, has_all)
    return removed(image, topic, number, partition, gone=broker_id, live=live_without(image, broker_id))


def fencing(image: Image, broker: BrokerImage) -> Iterator[BrokerRegistrationChangeRecord | PartitionChangeRecord]:
    """The records that fence a broker and move its leaderships."""
    yield registration_change(broker, fenced=FENCE)
    live = live_without(image, broker.node_id)
    for topic, number, partition in partitions_of(image, broker.node_id):
        change = removed(image, topic, number, partition, gone=broker.node_id, live=live)
        if change is not None:
            yield change


def registration_change(
    broker: BrokerImage, *, fenced: int = 0, in_controlled_shutdown: int = 0
) -> BrokerRegistrationChangeRecord:
    """The record that changes the state of a broker. A field that is 0 changes nothing."""
    return BrokerRegistrationChangeRecord(
        broker_id=broker.node_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


@dataclass(frozen=True)
class FenceBroker(Command[bool]):
    """Fence a broker whose session has expired.

    One command fences one broker. So the command for the next broker sees that this one is fenced, and does not make
    it a leader.
    """

    broker_id: int
    records_max = None

    def run(self, image: Image, records: Records) -> bool:
        """Fence the broker, unless it is fenced already; return whether this command fenced it."""
        broker = image.brokers.get(self.broker_id)
        if broker is None or broker.is_fenced:
            return False
        records.add(fencing(image, broker))
        return True

    def refuse(self, code: ErrorCode, message: str) -> bool:  # noqa: ARG002
        """The result of a refusal: the broker is not fenced."""
        return False


def leaderless(image: Image) -> list[TopicPartition]:
    """The partitions without a leader."""
    return [
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, partition in topic.partitions.items()
        if partition.leader == NO_LEADER
    ]


@dataclass(frozen=True)
class LeadUncleanly(Command[list[Elected]]):
    """Elect a live replica that is not in sync, where there is no leader and `unclean.leader.election.enable` is set.

    The command looks at all partitions, because fencing or unfencing a broker can change many of them. The result is
    the partitions that have got a leader. Records that only the in-sync replicas had are lost. `ends` says where the
    logs of live replicas end: the replica with the longest log leads.
    """

    node: NodeConfig
    ends: LogEnds = field(default_factory=dict)
    records_max = None

    def run(self, image: Image, records: Records) -> list[Elected]:
        """Try every partition without a leader. Chapter 04's election refuses topics without unclean elections."""
        command = elect_moving_leaders(leaderless(image), image.live_brokers(), self.node)
        tried = replace(command, ends=self.ends).run(image, records)
        return [it for it in tried if it.code is ErrorCode.NONE]

    def refuse(self, code: ErrorCode, message: str) -> list[Elected]:  # noqa: ARG002
        """The result of a refusal: no leader is elected."""
        return []
