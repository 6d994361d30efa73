"""How leaders and in-sync sets change: the commands of replication. A pure module.

One authority decides for all partitions, one command after the other, and writes down what it decides before anybody
hears of it. Until chapter 05 it is chapter 03's `Voter` on the first node; then a quorum stands behind the same port.

**Altering an in-sync set is a compare-and-set.** A leader names the leader epoch and the partition epoch that it knows.
If either has changed since, its proposal is based on something that is over, and is refused. So of two nodes that both
believe to lead, at most one is heard.

**A leader comes out of the in-sync set.** Every member has all that was promised. If no member is alive, the partition
waits, unless somebody has decided that to be available is worth losing records (an *unclean* election).

**A node that comes back may have less than before.** What was in its page cache when the power went is gone, though it
was counted. So a node that cannot show that it still has everything leaves every in-sync set before it is heard again
(KIP-966); and whatever it led, it leads in a new epoch or not at all.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from minibroker.metadata.broker_commands import BrokerDescription, Registration, register
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.decision import Command, Outcome, Records
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from minibroker.replication.keys import UNCLEAN_LEADER_ELECTION_ENABLE
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import uuid_text

# Altering in-sync sets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IsrChange:
    """What a leader asks for: another in-sync set, each member with the epoch of its registration, or -1."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AlteredPartition:
    """What came of it, and what the partition is now."""

    topic_id: bytes
    partition: int
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


def alter_isr(image: Image, broker_id: int, change: IsrChange, records: Records) -> AlteredPartition:
    """Decide about the in-sync set of one partition, as its leader asks."""
    try:
        partition = _partition_of(image, change)
        _check_epochs(partition, change)
        _check_members(image, partition, change, broker_id)
    except Refused as refused:
        return AlteredPartition(change.topic_id, change.partition, refused.code, str(refused))
    isr = tuple(node_id for node_id, _epoch in change.isr)
    is_news = set(isr) != set(partition.isr)
    if is_news:
        records.add([_changed(change.topic_id, change.partition, isr=isr)])
    return AlteredPartition(
        change.topic_id,
        change.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=isr if is_news else partition.isr,
        partition_epoch=partition.partition_epoch + is_news,
    )


# Decides about one partition: the image, the broker that asks, what it asks for, the records so far.
AlterOne = Callable[[Image, int, IsrChange, Records], AlteredPartition]


@dataclass(frozen=True)
class AlterPartitions(Command[list[AlteredPartition]]):
    """A broker asks for other in-sync sets of partitions that it leads; `alter` decides about each of them."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[IsrChange]
    alter: AlterOne = field(default=alter_isr, repr=False)
    records_max = None

    def run(self, image: Image, records: Records) -> list[AlteredPartition]:
        """Decide about each partition by itself, if the broker is the one that is registered."""
        broker = image.brokers.get(self.broker_id)
        if broker is None or self.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
            known = "is not registered" if broker is None else f"has broker epoch {broker.epoch} by now"
            message = f"broker {self.broker_id} asks with epoch {self.broker_epoch}, it {known}"
            return self.refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        return [self.alter(image, self.broker_id, change, records) for change in self.changes]

    def refuse(self, code: ErrorCode, message: str) -> list[AlteredPartition]:
        """The same for every partition."""
        return [AlteredPartition(it.topic_id, it.partition, code, message) for it in self.changes]


def _partition_of(image: Image, change: IsrChange) -> PartitionImage:
    name = image.topic_names.get(change.topic_id)
    if name is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_text(change.topic_id)}")
    partition = image.topics[name].partitions.get(change.partition)
    if partition is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {change.partition}")
    return partition


def _check_epochs(partition: PartitionImage, change: IsrChange) -> None:
    """Refuse what is based on something that is over; and what is ahead of us, for then we are not the authority."""
    leader_epochs = f"leader epoch {change.leader_epoch}, it is {partition.leader_epoch}"
    partition_epochs = f"partition epoch {change.partition_epoch}, it is {partition.partition_epoch}"
    # NOT_CONTROLLER: what is ahead in either number has heard of decisions that we do not know of.
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        raise Refused(ErrorCode.NOT_CONTROLLER, f"{leader_epochs}; {partition_epochs}")
    # FENCED_LEADER_EPOCH: another leader was elected since.
    if change.leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH, leader_epochs)
    # INVALID_UPDATE_VERSION: the same one leads, but its in-sync set is another by now.
    if change.partition_epoch < partition.partition_epoch:
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, partition_epochs)


def _check_members(image: Image, partition: PartitionImage, change: IsrChange, broker_id: int) -> None:
    """Refuse a set that cannot be one, and members that are not who the leader believes them to be."""
    members = [node_id for node_id, _epoch in change.isr]
    if broker_id != partition.leader:
        raise Refused(ErrorCode.INVALID_REQUEST, f"broker {broker_id} asks, {partition.leader} leads")
    if broker_id not in members or len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        message = f"{members} is no in-sync set of the replicas {list(partition.replicas)} with leader {broker_id}"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    for node_id, epoch in change.isr:
        broker = image.brokers.get(node_id)
        # Who is about to go has been taken out of every set (KIP-841).
        is_away = broker is None or broker.is_fenced or broker.in_controlled_shutdown
        if broker is None or is_away or epoch not in (NO_BROKER_EPOCH, broker.epoch):
            known = "not registered" if broker is None else f"away={is_away} with epoch {broker.epoch}"
            message = f"broker {node_id} with epoch {epoch} cannot be in sync: it is {known}"
            raise Refused(ErrorCode.INELIGIBLE_REPLICA, message)


def _changed(
    topic_id: bytes, partition: int, *, isr: Iterable[int] | None = None, leader: int | None = None
) -> PartitionChangeRecord:
    """The record of a change; what is None stays. With a leader named, even the same, the leader epoch rises."""
    record = PartitionChangeRecord(partition_id=partition, topic_id=topic_id)
    if isr is not None:
        record.isr = list(isr)
    if leader is not None:
        record.leader = leader
    return record


# Electing leaders -----------------------------------------------------------------------------------------------------


class Election(IntEnum):
    """Which kind of election; Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True)
class Elected(Outcome[TopicPartition]):
    """What came of an election."""

    leader: int = NO_LEADER


@dataclass(frozen=True)
class ElectLeaders(Command[list[Elected]]):
    """Give partitions a leader: the first replica that is in sync and alive. `live` are the nodes that answer.

    A preferred election also moves a partition whose leader is alive to its preferred one, the first replica. An
    unclean one takes, where nobody in sync is alive, the first replica that is: what only the others had is lost.
    `amend` adds to the record of an election whatever else changes with it.
    """

    partitions: Sequence[TopicPartition]
    live: Collection[int]
    node: NodeConfig
    kind: Election = Election.PREFERRED
    amend: Callable[[PartitionChangeRecord, PartitionImage], object] | None = field(default=None, repr=False)

    def run(self, image: Image, records: Records) -> list[Elected]:
        """Decide about each partition by itself."""
        return [self._elect(image, name, records) for name in dict.fromkeys(self.partitions)]

    def _elect(self, image: Image, name: TopicPartition, records: Records) -> Elected:
        topic = image.topics.get(name.topic)
        partition = topic.partitions.get(name.partition) if topic is not None else None
        if topic is None or partition is None:
            return Elected(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name.directory}")
        try:
            leader, is_clean = self._choose(image, topic, partition)
        except Refused as refused:
            return Elected(name, refused.code, str(refused), leader=partition.leader)
        # Who is elected uncleanly is the only one in sync: nobody else is known to have what it has.
        record = _changed(topic.topic_id, name.partition, isr=None if is_clean else [leader], leader=leader)
        if self.amend is not None:
            self.amend(record, partition)
        records.add([record])
        return Elected(name, leader=leader)

    def _choose(self, image: Image, topic: TopicImage, partition: PartitionImage) -> tuple[int, bool]:
        """The new leader, and whether it has all that was promised."""
        # Who has answered a moment ago may have been fenced since: the image that is decided against has the last word.
        known = image.live_brokers()
        live = [it for it in partition.replicas if it in self.live and it in known]
        in_sync = [it for it in live if it in partition.isr]
        if partition.leader in in_sync:
            return self._preferred(partition, in_sync), True
        if in_sync:
            return in_sync[0], True
        if live and (self.kind is Election.UNCLEAN or self._allows_unclean(image, topic.name)):
            # Who was only about to get a replica has less than any that was meant to have everything.
            return min(live, key=lambda it: it in partition.adding_replicas), False
        message = f"none of the replicas in sync {list(partition.isr)} is alive; an unclean election would lose records"
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)

    def _preferred(self, partition: PartitionImage, in_sync: Collection[int]) -> int:
        """Whom to move a partition to that has a leader already."""
        preferred = partition.replicas[0]
        if self.kind is Election.UNCLEAN or partition.leader == preferred:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads")
        if preferred not in in_sync:
            message = f"the preferred leader {preferred} is not both in sync and alive"
            raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        return preferred

    def _allows_unclean(self, image: Image, topic: str) -> bool:
        node = self.node.with_dynamic(image.configs)
        return UNCLEAN_LEADER_ELECTION_ENABLE.of(TopicConfig.of(image.configs, topic, node))

    def refuse(self, code: ErrorCode, message: str) -> list[Elected]:
        """The same for every partition."""
        return [Elected(name, code, message) for name in dict.fromkeys(self.partitions)]


# Coming back ----------------------------------------------------------------------------------------------------------


def _is_alone(partition: PartitionImage, broker_id: int) -> bool:
    """Whether no other replica was ever in sync; those that a move adds are none before they are."""
    others = set(partition.replicas) - set(partition.adding_replicas) | set(partition.isr)
    return others == {broker_id}


# What changes of a partition when a broker comes back, which may have all that it had of it or less.
OnReturn = Callable[[int, Image, TopicImage, int, PartitionImage, bool], PartitionChangeRecord | None]


def change_on_return(
    broker_id: int, image: Image, topic: TopicImage, number: int, partition: PartitionImage, has_all: bool
) -> PartitionChangeRecord | None:
    """What changes of a partition when a broker is live again."""
    if has_all:
        # It leads on, but in a new epoch: what it said before it died must not be mixed up with what it says now.
        leads = partition.leader == broker_id
        return _changed(topic.topic_id, number, leader=broker_id) if leads else None
    if broker_id not in partition.isr:
        return None
    # It may have less than was promised in its name. If it was the last in sync, nobody can lead cleanly any more.
    isr = [it for it in partition.isr if it != broker_id]
    if partition.leader not in (broker_id, NO_LEADER):
        return _changed(topic.topic_id, number, isr=isr)
    candidates = [it for it in partition.replicas if it in isr and it in image.live_brokers()]
    return _changed(topic.topic_id, number, isr=isr, leader=candidates[0] if candidates else NO_LEADER)


def register_replicas(broker: BrokerDescription, image: Image, records: Records, on_return: OnReturn) -> Registration:
    """Take a broker in. What it led, and where it was in sync, changes in the same batch of records."""
    known = image.brokers.get(broker.broker_id)
    registration = register(broker, image, records)
    if known is None or known.incarnation_id == broker.incarnation_id:
        return registration
    is_whole = broker.previous_broker_epoch == known.epoch
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            # Of a partition that is here alone nobody has more: whatever is left of it is all of it.
            has_all = is_whole or _is_alone(partition, broker.broker_id)
            change = on_return(broker.broker_id, image, topic, number, partition, has_all)
            records.add([] if change is None else [change])
    return registration


@dataclass(frozen=True)
class RegisterReplicas(BrokerDescription, Command[Registration]):
    """A broker registers, and says which registration its logs are of: -1 if a power cut may have shortened them."""

    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Take it in, and change its partitions."""
        return register_replicas(self, image, records, change_on_return)

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """It is not registered."""
        return Registration(code, message)
