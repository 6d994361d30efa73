"""How brokers come, fall silent, and go; and what becomes of what they lead. A pure module.

    registered, fenced ──── heard, and caught up with the metadata ───▶ live
            ▲                                                            │  │
            └────────────── silent for a session, or killed ─────────────┘  │
                                                                            ▼
                                        fenced ◀── nothing led any more ── leaving

Every step that changes who is alive changes, in the same batch of records, every partition that it concerns: there is
no moment in which the metadata say that a dead broker leads. The new leader is the first replica, in the partition's
own order, that is in sync and live. A broker that is fenced leaves the in-sync sets, except where it is the last: to
forget the last one that has everything would be to lose it. Only where a topic says that any leader is better than none
is somebody elected who was not in sync.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from minibroker.controller.moving import elect_moving_leaders
from minibroker.controller.records import BrokerRegistrationChangeRecord, UnregisterBrokerRecord
from minibroker.metadata.broker_commands import BrokerDescription, Registration
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command, Outcome, Records
from minibroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from minibroker.replication.authority import Elected, change_on_return, register_replicas
from minibroker.replication.records import PartitionChangeRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

FENCE, UNFENCE = 1, -1
IN_CONTROLLED_SHUTDOWN = 1
_NAMED_MAX = 3


def partitions_of(image: Image, broker_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Every partition that a broker has a replica of."""
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            if broker_id in partition.replicas:
                yield topic, number, partition


def without(
    topic: TopicImage, number: int, partition: PartitionImage, *, gone: int, live: Collection[int]
) -> PartitionChangeRecord | None:
    """What changes when a broker is not there any more: it leads no more, and is in sync no more unless it is the
    last."""
    # In sync are the others; or it alone, if there are no others.
    isr = [it for it in partition.isr if it != gone] or list(partition.isr)
    # A record says only what changes.
    change = PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
    if isr != list(partition.isr):
        change.isr = isr
    # The first replica in the partition's own order that is in sync and live leads now; or nobody.
    if partition.leader == gone:
        candidates = [it for it in partition.replicas if it in isr and it in live and it != gone]
        change.leader = candidates[0] if candidates else NO_LEADER
    return change if change.isr is not None or partition.leader == gone else None


def _live_without(image: Image, broker_id: int) -> set[int]:
    return {it for it in image.live_brokers() if it != broker_id}


def change_when_fenced(
    broker_id: int, image: Image, topic: TopicImage, number: int, partition: PartitionImage, has_all: bool
) -> PartitionChangeRecord | None:
    """What changes of a partition when a broker comes back, and is fenced."""
    # Where the broker may have less than before, chapter 04's rule holds. Where it has all, it is as if it had fallen
    # silent: others lead and are in sync, and where there is no other, it will be when it is heard.
    if not has_all:
        return change_on_return(broker_id, image, topic, number, partition, has_all)
    return without(topic, number, partition, gone=broker_id, live=_live_without(image, broker_id))


@dataclass(frozen=True)
class RegisterFenced(BrokerDescription, Command[Registration]):
    """A broker registers. It is fenced until it is heard to have caught up with the metadata.

    A restart takes the place of the life before it at once: a directory is locked by who uses it, so that life is over.
    Who comes with another directory may be another machine with a number that was copied. It is refused as long as the
    one that is registered may be alive, because that one must not have to go. Where the disk of a broker was replaced,
    that is for no longer than a session.
    """

    is_fenced: bool = True
    is_known_one_heard: bool = False
    """Whether the broker that is registered was heard within its session."""
    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Take it in, unless another one has its number and is there."""
        known = image.brokers.get(self.broker_id)
        if known is not None and self._is_another(known) and (self.is_known_one_heard or not known.is_fenced):
            message = f"broker {self.broker_id} is registered at {known.host}:{known.port}, with another directory"
            return self.refuse(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
        return register_replicas(self, image, records, change_when_fenced)

    def _is_another(self, known: BrokerImage) -> bool:
        # Who did not say which directory it has can be told from nobody.
        is_elsewhere = bool(known.log_dirs) and bool(self.log_dirs) and not set(known.log_dirs) & set(self.log_dirs)
        return is_elsewhere and known.incarnation_id != self.incarnation_id

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """It is not registered."""
        return Registration(code, message)


@dataclass(frozen=True)
class BrokerState:
    """What a broker is told of itself in answer to a heartbeat."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    is_fenced: bool = True
    may_shut_down: bool = False


@dataclass(frozen=True)
class Heartbeat(Command[BrokerState]):
    """A broker says that it is there, how much of the metadata it has, and whether it wants to be fenced or to go."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shut_down: bool = False
    records_max = None

    def run(self, image: Image, records: Records) -> BrokerState:
        """Fence, unfence, or let go."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if broker.epoch != self.broker_epoch:
            message = f"broker {self.broker_id} speaks with epoch {self.broker_epoch}, it is {broker.epoch}"
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
        # One that does not know yet that it was registered would act on what was before.
        if self.wants_fence or self.metadata_offset < broker.epoch:
            return BrokerState(is_fenced=True)
        records.add([_change(broker, fenced=UNFENCE)])
        # Where nobody leads, and it is in sync, it leads.
        for topic, number, partition in partitions_of(image, broker.node_id):
            if partition.leader == NO_LEADER and broker.node_id in partition.isr:
                records.add(
                    [PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id, leader=broker.node_id)]
                )
        return BrokerState(is_fenced=False)

    def _shut_down(self, image: Image, broker: BrokerImage, records: Records) -> BrokerState:
        """Give away what it leads, one batch of records for all; it may go when it leads nothing that others could."""
        if broker.is_fenced:
            return BrokerState(is_fenced=True, may_shut_down=True)
        if not broker.in_controlled_shutdown:
            records.add([_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)])
        live = {it for it in _live_without(image, broker.node_id) if not image.brokers[it].in_controlled_shutdown}
        changes = [
            without(topic, number, partition, gone=broker.node_id, live=live)
            for topic, number, partition in partitions_of(image, broker.node_id)
        ]
        given = [it for it in changes if it is not None and it.leader != NO_LEADER]
        records.add(given)
        if given:
            return BrokerState(is_fenced=False)
        # Nobody else can lead what is left.
        records.add(fencing(image, broker))
        return BrokerState(is_fenced=True, may_shut_down=True)

    def refuse(self, code: ErrorCode, message: str) -> BrokerState:
        """It is not heard."""
        return BrokerState(code, message)


def fencing(image: Image, broker: BrokerImage) -> Iterator[BrokerRegistrationChangeRecord | PartitionChangeRecord]:
    """The records that fence a broker, and give away what it leads."""
    yield _change(broker, fenced=FENCE)
    live = _live_without(image, broker.node_id)
    for topic, number, partition in partitions_of(image, broker.node_id):
        change = without(topic, number, partition, gone=broker.node_id, live=live)
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
    """A broker's session is over. One command for each: who is fenced first cannot lead what the next one led."""

    broker_id: int
    records_max = None

    def run(self, image: Image, records: Records) -> bool:
        """Fence it, unless it is fenced already; return whether it was done."""
        broker = image.brokers.get(self.broker_id)
        if broker is None or broker.is_fenced:
            return False
        records.add(fencing(image, broker))
        return True

    def refuse(self, code: ErrorCode, message: str) -> bool:  # noqa: ARG002
        """It is not fenced."""
        return False


@dataclass(frozen=True)
class LeadUncleanly(Command[list[Elected]]):
    """Give what nobody leads to a live replica that is not in sync, where `unclean.leader.election.enable` allows it.

    It has no partitions of its own to name: whoever is fenced or heard again may have changed many. Elected are those
    that have a leader now; what only the others had is lost.
    """

    node: NodeConfig
    records_max = None

    def run(self, image: Image, records: Records) -> list[Elected]:
        """Look at all that nobody leads. Chapter 04's election knows who may, and refuses the rest."""
        leaderless = [
            TopicPartition(topic.name, number)
            for topic in image.topics.values()
            for number, partition in topic.partitions.items()
            if partition.leader == NO_LEADER
        ]
        tried = elect_moving_leaders(leaderless, image.live_brokers(), self.node).run(image, records)
        return [it for it in tried if it.code is ErrorCode.NONE]

    def refuse(self, code: ErrorCode, message: str) -> list[Elected]:  # noqa: ARG002
        """Nobody is elected."""
        return []


@dataclass(frozen=True)
class UnregisterBroker(Command[Outcome[int]]):
    """Forget a broker that will not come back.

    A live one would go on as if nothing had happened, and nobody would hear it; a replica on a broker that nobody knows
    would be missed for ever. So it must be stopped, and its replicas must be elsewhere.
    """

    broker_id: int

    def run(self, image: Image, records: Records) -> Outcome[int]:
        """Remove it, if nothing is lost with it."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered, {sorted(image.brokers)} are"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if not broker.is_fenced:
            message = f"broker {self.broker_id} is live: stop it first, and wait until it is fenced"
            return self.refuse(ErrorCode.INVALID_REQUEST, message)
        held = sorted(f"{topic.name}-{number}" for topic, number, _ in partitions_of(image, self.broker_id))
        if held:
            names = ", ".join(held[:_NAMED_MAX]) + (f" and {len(held) - _NAMED_MAX} more" if held[_NAMED_MAX:] else "")
            command = f"`minibroker topics reassign --from {self.broker_id}`"
            message = f"broker {self.broker_id} has replicas of {names}: move them to others first, with {command}"
            return self.refuse(ErrorCode.INVALID_REQUEST, message)
        records.add([UnregisterBrokerRecord(broker_id=self.broker_id, broker_epoch=broker.epoch)])
        return Outcome(self.broker_id)

    def refuse(self, code: ErrorCode, message: str) -> Outcome[int]:
        """It stays."""
        return Outcome(self.broker_id, code, message)
