"""The life of a broker, from its registration to its removal, and the leaders of its partitions. A pure module.

    registered, fenced ── sends heartbeats, has read the metadata ────▶ live
            ▲                                                            │  │
            └────────────── silent for a session, or killed ─────────────┘  │
                                                                            ▼
                                        fenced ◀── leads nothing ── controlled shutdown

A command that changes the state of a broker changes all its partitions in the same batch of records: the metadata never
name a dead broker as a leader. The new leader is the first replica, in the partition's order, that is in sync and live.
A fenced broker leaves the in-sync sets. If an in-sync set is then smaller than `min.insync.replicas`, no write with
acks=all succeeds, so the fenced broker still has every acknowledged record. The metadata remember it as eligible
(`minibroker.replication.eligible`). If no replica is in sync, an eligible one leads as soon as it is live. Any
other replica is elected only if the topic has `unclean.leader.election.enable`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from minibroker.controller.reassignment import elect_moving_leaders
from minibroker.controller.records import BrokerRegistrationChangeRecord, UnregisterBrokerRecord
from minibroker.metadata.broker_commands import BrokerDescription, Registration
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, Outcome, Records
from minibroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from minibroker.replication.answering import LogEnds
from minibroker.replication.authority import Elected, change_on_return, register_replicas
from minibroker.replication.eligible import is_enabled, with_eligible
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

FENCE, UNFENCE = 1, -1
IN_CONTROLLED_SHUTDOWN = 1
_NAMED_MAX = 3


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
    """The change of a partition when broker `gone` is fenced or stops, with eligible leader replicas (KIP-966).

    The broker leaves the in-sync set even if it is the last member. If the set is then smaller than
    `min.insync.replicas`, every member that the set has lost since it became too small is eligible.
    """
    change = without(topic, number, partition, gone=gone, live=live)
    if is_enabled(image) and partition.isr == (gone,):
        change = change or PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
        change.isr = []
    others = [it for it in live if it != gone]
    return change and with_eligible(change, image, topic.name, partition, live=others)


def _live_without(image: Image, broker_id: int) -> set[int]:
    return {it for it in image.live_brokers() if it != broker_id}


def change_when_fenced(
    broker_id: int, image: Image, topic: TopicImage, number: int, partition: PartitionImage, has_all: bool
) -> PartitionChangeRecord | None:
    """How a partition changes when a broker with one of its replicas registers again. The broker is fenced at first."""
    # If the broker may have lost records, chapter 04's rule applies. If it has all records, the partition changes as
    # for a silent broker: another replica leads or, if there is none, this broker leads again when it is unfenced.
    if not has_all:
        return change_on_return(broker_id, image, topic, number, partition, has_all)
    return removed(image, topic, number, partition, gone=broker_id, live=_live_without(image, broker_id))


@dataclass(frozen=True)
class RegisterFenced(BrokerDescription, Command[Registration]):
    """Register a broker. It is fenced until a heartbeat shows that it has caught up with the metadata.

    A restarted broker replaces its last incarnation at once: its directory was locked, so the old process has ended. A
    broker with another directory may be another machine with a copied node.id. It is refused while the registered
    broker may be alive, so that it cannot evict that broker. A broker with a replaced disk waits until the session of
    its last incarnation has expired.
    """

    is_fenced: bool = True
    is_registered_one_alive: bool = False
    """Whether the session of the broker that is registered with this node.id has not expired."""
    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Register the broker, unless another live broker has its node.id."""
        known = image.brokers.get(self.broker_id)
        if known is not None and self._is_another(known) and (self.is_registered_one_alive or not known.is_fenced):
            message = f"broker {self.broker_id} is registered at {known.host}:{known.port}, with another data directory"
            return self.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
        return register_replicas(self, image, records, change_when_fenced)

    def _is_another(self, known: BrokerImage) -> bool:
        # If one of the brokers has not named its directories, the two count as the same broker.
        is_elsewhere = bool(known.log_dirs) and bool(self.log_dirs) and not set(known.log_dirs) & set(self.log_dirs)
        return is_elsewhere and known.incarnation_id != self.incarnation_id

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """The result of a refusal: the broker is not registered."""
        return Registration(code, message)


@dataclass(frozen=True)
class BrokerState:
    """The state of a broker, in the response to its heartbeat."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    is_fenced: bool = True
    may_shut_down: bool = False


@dataclass(frozen=True)
class Heartbeat(Command[BrokerState]):
    """The heartbeat of a broker: how far it has read the metadata, and whether it asks to be fenced or to stop."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False
    records_max = None

    def run(self, image: Image, records: Records) -> BrokerState:
        """Fence or unfence the broker, or continue its controlled shutdown."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if broker.epoch != self.broker_epoch:
            message = (
                f"broker {self.broker_id} sent epoch {self.broker_epoch}, but its registration has epoch {broker.epoch}"
            )
            return self.refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        if self.wants_shut_down:
            return self._shut_down(image, broker, records)
        if broker.is_fenced:
            return self._unfence(image, broker, records)
        if self.wants_fence:
            records.add(fencing(image, broker))
            return BrokerState(is_fenced=True)
        return BrokerState(is_fenced=False)

    def _unfence(self, image: Image, broker: BrokerImage, records: Records) -> BrokerState:
        # A broker whose metadata end before its registration stays fenced, because it would act on old metadata. So
        # does a broker that has not read yet that it was fenced: it still takes itself for the leader of partitions
        # that other brokers lead by now.
        if self.wants_fence or self.metadata_offset < max(broker.epoch, broker.fenced_offset):
            return BrokerState(is_fenced=True)
        records.add([_change(broker, fenced=UNFENCE)])
        # The broker becomes the leader of partitions that have no leader and in which it is in sync, or eligible while
        # no replica is in sync.
        for topic, number, partition in partitions_of(image, broker.node_id):
            if partition.leader == NO_LEADER:
                records.add(self._led_again(image, topic, number, partition))
        return BrokerState(is_fenced=False)

    def _led_again(
        self, image: Image, topic: TopicImage, number: int, partition: PartitionImage
    ) -> Iterator[PartitionChangeRecord]:
        change = PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
        if self.broker_id in partition.isr:
            change.leader = self.broker_id
        change = with_eligible(change, image, topic.name, partition, live=[self.broker_id])
        if change.leader == self.broker_id:
            yield change

    def _shut_down(self, image: Image, broker: BrokerImage, records: Records) -> BrokerState:
        """Move the broker's leaderships in one batch of records; the broker may stop when no more can be moved."""
        if broker.is_fenced:
            return BrokerState(is_fenced=True, may_shut_down=True)
        if not broker.in_controlled_shutdown:
            records.add([_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)])
        live = {it for it in _live_without(image, broker.node_id) if not image.brokers[it].in_controlled_shutdown}
        changes = [
            removed(image, topic, number, partition, gone=broker.node_id, live=live)
            for topic, number, partition in partitions_of(image, broker.node_id)
        ]
        given = [it for it in changes if it is not None and it.leader != NO_LEADER]
        records.add(given)
        if given:
            return BrokerState(is_fenced=False)
        # No other broker can lead the remaining partitions, so this broker may stop.
        records.add(fencing(image, broker))
        return BrokerState(is_fenced=True, may_shut_down=True)

    def refuse(self, code: ErrorCode, message: str) -> BrokerState:
        """The result of a refusal: the heartbeat has no effect."""
        return BrokerState(code, message)


def fencing(image: Image, broker: BrokerImage) -> Iterator[BrokerRegistrationChangeRecord | PartitionChangeRecord]:
    """The records that fence a broker and move its leaderships."""
    yield _change(broker, fenced=FENCE)
    live = _live_without(image, broker.node_id)
    for topic, number, partition in partitions_of(image, broker.node_id):
        change = removed(image, topic, number, partition, gone=broker.node_id, live=live)
        if change is not None:
            yield change


def _change(broker: BrokerImage, *, fenced: int = 0, in_controlled_shutdown: int = 0) -> BrokerRegistrationChangeRecord:
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


@dataclass(frozen=True)
class UnregisterBroker(Command[Outcome[int]]):
    """Remove a broker that will not come back.

    The broker must be stopped first: otherwise it would keep running, and its heartbeats would be refused. Its replicas
    must be moved first: a replica on an unknown broker could never be in sync.
    """

    broker_id: int

    def run(self, image: Image, records: Records) -> Outcome[int]:
        """Remove the broker, if it is fenced and has no replicas."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered; the registered brokers are {sorted(image.brokers)}"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if not broker.is_fenced:
            message = f"broker {self.broker_id} is live: stop it first, and wait until it is fenced"
            return self.refuse(ErrorCode.INVALID_REQUEST, message)
        held = sorted(f"{topic.name}-{number}" for topic, number, _ in partitions_of(image, self.broker_id))
        if held:
            names = ", ".join(held[:_NAMED_MAX]) + (f" and {len(held) - _NAMED_MAX} more" if held[_NAMED_MAX:] else "")
            command = f"`minibroker topics reassign --from {self.broker_id}`"
            message = f"broker {self.broker_id} has replicas of {names}: move them away first, with {command}"
            return self.refuse(ErrorCode.INVALID_REQUEST, message)
        records.add([UnregisterBrokerRecord(broker_id=self.broker_id, broker_epoch=broker.epoch)])
        return Outcome(self.broker_id)

    def refuse(self, code: ErrorCode, message: str) -> Outcome[int]:
        """The result of a refusal: the broker stays registered."""
        return Outcome(self.broker_id, code, message)
