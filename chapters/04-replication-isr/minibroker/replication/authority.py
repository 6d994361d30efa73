"""The commands that change leaders and in-sync sets. A pure module.

One controller decides for all partitions, one command after the other, and writes each decision to the metadata log
before any node acts on it. In this chapter the controller is chapter 03's `Voter` on one node; chapter 05 puts a quorum
behind the same port.

**Altering an in-sync set is a compare-and-set.** A leader names the leader epoch and the partition epoch that it knows.
If either has changed since, the proposal is outdated and is refused. So if two nodes act as the leader, the proposals
of at most one of them are accepted.

**A leader is elected from the in-sync set.** Every member has all acknowledged records. If no member is alive, the
partition waits, unless an operator prefers availability to these records (an *unclean* election).

**A node that restarts may have lost records.** A power cut loses records that were only in its page cache, although
they counted as replicated. So a node that cannot prove that its logs are complete leaves every in-sync set when
it registers (KIP-966). A partition that it led gets a new leader epoch.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from minibroker.metadata.broker_commands import BrokerDescription, Registration, register
from minibroker.metadata.configs import NodeConfig, TopicConfig
from minibroker.metadata.decision import Command, Outcome, Records
from minibroker.metadata.errors import Refused
from minibroker.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from minibroker.replication.eligible import may_lead, with_eligible
from minibroker.replication.keys import UNCLEAN_LEADER_ELECTION_ENABLE
from minibroker.replication.leader import NO_BROKER_EPOCH
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import uuid_text

# Altering in-sync sets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IsrChange:
    """A leader's request for another in-sync set. `isr` has each member and its broker epoch, -1 if unknown."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class AlteredPartition:
    """The result of an `IsrChange`, and the partition's state now."""

    topic_id: bytes
    partition: int
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    leader: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


def alter_isr(image: Image, broker_id: int, change: IsrChange, records: Records) -> AlteredPartition:
    """Decide about the in-sync set that a leader proposes for one partition."""
    try:
        partition = _partition_of(image, change)
        _check_epochs(partition, change)
        _check_members(image, partition, change, broker_id)
    except Refused as refused:
        return AlteredPartition(change.topic_id, change.partition, refused.code, str(refused))
    isr = tuple(node_id for node_id, _epoch in change.isr)
    is_news = set(isr) != set(partition.isr)
    if is_news:
        altered = _changed(change.topic_id, change.partition, isr=isr)
        name = image.topic_names[change.topic_id]
        records.add([with_eligible(altered, image, name, partition, live=image.live_brokers())])
    return AlteredPartition(
        change.topic_id,
        change.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=isr if is_news else partition.isr,
        partition_epoch=partition.partition_epoch + is_news,
    )


# Decides about one partition, given the image, the broker that asks, its request, and the records so far.
AlterOne = Callable[[Image, int, IsrChange, Records], AlteredPartition]


@dataclass(frozen=True)
class AlterPartitions(Command[list[AlteredPartition]]):
    """A broker proposes other in-sync sets for partitions that it leads; `alter` decides about each of them."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[IsrChange]
    alter: AlterOne = field(default=alter_isr, repr=False)
    records_max = None

    def run(self, image: Image, records: Records) -> list[AlteredPartition]:
        """Decide about each partition separately, if the broker is registered with this broker epoch."""
        broker = image.brokers.get(self.broker_id)
        if broker is None or self.broker_epoch not in (NO_BROKER_EPOCH, broker.epoch):
            known = "is not registered" if broker is None else f"is registered with broker epoch {broker.epoch}"
            message = f"broker {self.broker_id}, which asks with broker epoch {self.broker_epoch}, {known}"
            return self.refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        return [self.alter(image, self.broker_id, change, records) for change in self.changes]

    def refuse(self, code: ErrorCode, message: str) -> list[AlteredPartition]:
        """Refuse every partition with the same error."""
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
    """Refuse an outdated proposal, and one with a later epoch, which shows that this controller has been deposed."""
    leader_epochs = f"the proposal is for leader epoch {change.leader_epoch}, not {partition.leader_epoch}"
    partition_epochs = f"the proposal is for partition epoch {change.partition_epoch}, not {partition.partition_epoch}"
    # NOT_CONTROLLER: a leader with a later epoch knows decisions that this controller does not know.
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        raise Refused(ErrorCode.NOT_CONTROLLER, f"{leader_epochs}; {partition_epochs}")
    # FENCED_LEADER_EPOCH: another leader was elected in the meantime.
    if change.leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH, leader_epochs)
    # INVALID_UPDATE_VERSION: the leader is the same, but its in-sync set has changed in the meantime.
    if change.partition_epoch < partition.partition_epoch:
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, partition_epochs)


def _check_members(image: Image, partition: PartitionImage, change: IsrChange, broker_id: int) -> None:
    """Refuse an impossible in-sync set, and members that have registered again since the leader last saw them."""
    members = [node_id for node_id, _epoch in change.isr]
    if broker_id != partition.leader:
        message = f"broker {broker_id} does not lead the partition, broker {partition.leader} does"
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    if broker_id not in members or len(set(members)) < len(members) or not set(members) <= set(partition.replicas):
        message = (
            f"{members} cannot be the in-sync set: its members must be different replicas of "
            f"{list(partition.replicas)}, among them the leader, broker {broker_id}"
        )
        raise Refused(ErrorCode.INVALID_REQUEST, message)
    for node_id, epoch in change.isr:
        broker = image.brokers.get(node_id)
        if broker is None:
            why = "it is not registered"
        elif broker.is_fenced:
            why = "it is fenced"
        elif broker.in_controlled_shutdown:
            # A broker that shuts down was removed from every in-sync set, and must not come back (KIP-841).
            why = "it is shutting down"
        elif epoch not in (NO_BROKER_EPOCH, broker.epoch):
            why = f"it is registered with broker epoch {broker.epoch}"
        else:
            continue
        message = f"broker {node_id} with broker epoch {epoch} cannot be in sync: {why}"
        raise Refused(ErrorCode.INELIGIBLE_REPLICA, message)


def _changed(
    topic_id: bytes, partition: int, *, isr: Iterable[int] | None = None, leader: int | None = None
) -> PartitionChangeRecord:
    """The record of a change; None means no change. Naming a leader, even the same one, raises the leader epoch."""
    record = PartitionChangeRecord(partition_id=partition, topic_id=topic_id)
    if isr is not None:
        record.isr = list(isr)
    if leader is not None:
        record.leader = leader
    return record


# Electing leaders -----------------------------------------------------------------------------------------------------


class LogEnd(NamedTuple):
    """Where a log ends: the leader epoch of its last record, and the offset after it. A later end has more records."""

    leader_epoch: int
    offset: int


_UNKNOWN_END = LogEnd(-1, -1)


class Election(IntEnum):
    """The kind of an election, with Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True)
class Elected(Outcome[TopicPartition]):
    """The result of an election."""

    leader: int = NO_LEADER
    end: LogEnd | None = None
    """Where the leader's log ends, if the election was unclean and the leader has said so."""


@dataclass(frozen=True)
class ElectLeaders(Command[list[Elected]]):
    """Elect leaders: for each partition the first replica that is in sync and alive. `live` has the ids of live nodes.

    A preferred election also moves leadership from a live leader to the preferred leader, the first replica. If no
    in-sync replica is alive, an unclean election chooses the live replica whose log ends latest; the records that it
    lacks are lost. `ends` says where the logs of live replicas end. `amend` may add other changes to the record of an
    election.
    """

    partitions: Sequence[TopicPartition]
    live: Collection[int]
    node: NodeConfig
    kind: Election = Election.PREFERRED
    amend: Callable[[PartitionChangeRecord, PartitionImage], object] | None = field(default=None, repr=False)
    ends: Mapping[TopicPartition, Mapping[int, LogEnd]] = field(default_factory=dict)

    def run(self, image: Image, records: Records) -> list[Elected]:
        """Decide about each partition separately."""
        return [self._elect(image, name, records) for name in dict.fromkeys(self.partitions)]

    def _elect(self, image: Image, name: TopicPartition, records: Records) -> Elected:
        topic = image.topics.get(name.topic)
        partition = topic.partitions.get(name.partition) if topic is not None else None
        if topic is None or partition is None:
            return Elected(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name.directory}")
        try:
            leader = self._choose(image, topic, partition, name)
        except Refused as refused:
            return Elected(name, refused.code, str(refused), leader=partition.leader)
        # If the new leader was not in sync, it is now the only replica in sync: no other is known to have its records.
        isr = None if leader in partition.isr else [leader]
        record = _changed(topic.topic_id, name.partition, isr=isr, leader=leader)
        if self.amend is not None:
            self.amend(record, partition)
        records.add([with_eligible(record, image, topic.name, partition, live=self.live)])
        is_clean = leader in (*partition.isr, *partition.eligible_leader_replicas)
        return Elected(name, leader=leader, end=None if is_clean else self.ends.get(name, {}).get(leader))

    def _choose(self, image: Image, topic: TopicImage, partition: PartitionImage, name: TopicPartition) -> int:
        """The new leader."""
        # A node in `self.live` may have been fenced in the meantime, so it must also be alive in the image.
        known = image.live_brokers()
        live = [it for it in partition.replicas if it in self.live and it in known]
        in_sync = [it for it in live if it in partition.isr]
        if partition.leader in in_sync:
            return self._preferred(partition, in_sync)
        # In-sync and eligible replicas have all acknowledged records. An eligible one leads if none in sync is alive.
        complete = may_lead(partition, live)
        if complete:
            return complete[0]
        if live and (self.kind is Election.UNCLEAN or self._allows_unclean(image, topic.name)):
            return self._most_complete(partition, live, self.ends.get(name, {}))
        message = f"{_complete_ones(partition)} is alive; an unclean election would lose records"
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)

    def _most_complete(self, partition: PartitionImage, live: Sequence[int], ends: Mapping[int, LogEnd]) -> int:
        # The best log ends in the latest leader epoch and, among such logs, at the greatest offset. If two are equal,
        # the last leader comes first, and replicas that are being added come last. All are equal if none has answered.
        return max(
            live,
            key=lambda it: (
                ends.get(it, _UNKNOWN_END),
                it in partition.last_known_elr,
                it not in partition.adding_replicas,
            ),
        )

    def _preferred(self, partition: PartitionImage, in_sync: Collection[int]) -> int:
        """The preferred leader, for a partition whose leader is alive."""
        preferred = partition.replicas[0]
        if self.kind is Election.UNCLEAN or partition.leader == preferred:
            raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads already")
        if preferred not in in_sync:
            message = f"the preferred leader, broker {preferred}, is not alive or not in sync"
            raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
        return preferred

    def _allows_unclean(self, image: Image, topic: str) -> bool:
        node = self.node.with_dynamic(image.configs)
        return UNCLEAN_LEADER_ELECTION_ENABLE.of(TopicConfig.of(image.configs, topic, node))

    def refuse(self, code: ErrorCode, message: str) -> list[Elected]:
        """Refuse every partition with the same error."""
        return [Elected(name, code, message) for name in dict.fromkeys(self.partitions)]


def _complete_ones(partition: PartitionImage) -> str:
    eligible = list(partition.eligible_leader_replicas)
    also = f" and of the eligible replicas {eligible}" if eligible else ""
    return f"none of the in-sync replicas {list(partition.isr)}{also}"


# Registering again ----------------------------------------------------------------------------------------------------


def _is_alone(partition: PartitionImage, broker_id: int) -> bool:
    """Whether this broker has the only replica. A replica that a reassignment adds counts once it is in sync."""
    others = set(partition.replicas) - set(partition.adding_replicas) | set(partition.isr)
    return others == {broker_id}


# Returns how a partition changes when a broker registers again. The bool says whether the broker still has all records
# of the partition.
OnReturn = Callable[[int, Image, TopicImage, int, PartitionImage, bool], PartitionChangeRecord | None]


def change_on_return(
    broker_id: int, image: Image, topic: TopicImage, number: int, partition: PartitionImage, has_all: bool
) -> PartitionChangeRecord | None:
    """How a partition changes when a broker registers again; None if it does not change."""
    if has_all:
        # The broker stays the leader, but in a new epoch, so that requests to its earlier incarnation are fenced.
        leads = partition.leader == broker_id
        return _changed(topic.topic_id, number, leader=broker_id) if leads else None
    if broker_id not in (*partition.isr, *partition.eligible_leader_replicas):
        return None
    # The broker may lack acknowledged records. If it was the last in-sync replica, and no replica is eligible, only an
    # unclean election can elect a leader.
    isr = [it for it in partition.isr if it != broker_id]
    live = [it for it in image.live_brokers() if it != broker_id]
    candidates = [it for it in partition.replicas if it in isr and it in live]
    is_led = partition.leader not in (broker_id, NO_LEADER)
    leader = None if is_led else candidates[0] if candidates else NO_LEADER
    change = _changed(topic.topic_id, number, isr=isr if broker_id in partition.isr else None, leader=leader)
    return with_eligible(change, image, topic.name, partition, live=live, lost=[broker_id])


def register_replicas(broker: BrokerDescription, image: Image, records: Records, on_return: OnReturn) -> Registration:
    """Register a broker. Its partitions change in the same batch of records."""
    known = image.brokers.get(broker.broker_id)
    registration = register(broker, image, records)
    if known is None or known.incarnation_id == broker.incarnation_id:
        return registration
    is_whole = broker.previous_broker_epoch == known.epoch
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            # The only replica of a partition counts as having all records: no other replica has more.
            has_all = is_whole or _is_alone(partition, broker.broker_id)
            change = on_return(broker.broker_id, image, topic, number, partition, has_all)
            records.add([] if change is None else [change])
    return registration


@dataclass(frozen=True)
class RegisterReplicas(BrokerDescription, Command[Registration]):
    """A broker registers, and names the last broker epoch of which it has all records; -1 if some may be lost."""

    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Register the broker, and change its partitions."""
        return register_replicas(self, image, records, change_on_return)

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """Refuse the registration."""
        return Registration(code, message)
