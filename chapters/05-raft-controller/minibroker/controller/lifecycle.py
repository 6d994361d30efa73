"""The life of a broker, from its registration to its removal. A pure module.

    registered, fenced ── sends heartbeats, has read the metadata ────▶ live
            ▲                                                            │  │
            └────────────── silent for a session, or killed ─────────────┘  │
                                                                            ▼
                                        fenced ◀── leads nothing ── controlled shutdown

Each command is a request of a broker, or of an operator about a broker. `fencing` has the records by which the
partitions of a broker change.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from minibroker.controller.fencing import (
    IN_CONTROLLED_SHUTDOWN,
    UNFENCE,
    change_when_fenced,
    fencing,
    live_without,
    partitions_of,
    registration_change,
    removed,
)
from minibroker.controller.records import UnregisterBrokerRecord
from minibroker.metadata.broker_commands import BrokerDescription, Registration
from minibroker.metadata.decision import Command, Outcome, Records
from minibroker.metadata.image import NO_LEADER, BrokerImage, Image, PartitionImage, TopicImage
from minibroker.replication.authority import register_replicas
from minibroker.replication.eligible import with_eligible
from minibroker.replication.records import PartitionChangeRecord
from minibroker.wire.codes import ErrorCode

_NAMED_MAX = 3


@dataclass(frozen=True)
class RegisterFenced(BrokerDescription, Command[Registration]):
    """Register a broker. It is fenced until a heartbeat shows that it has caught up with the metadata.

    A restarted broker replaces its last incarnation at once. It has locked the same directory, so the old process has
    ended. A broker with another directory may be another machine with a copied node.id. It is refused while the
    registered broker may be alive, so that it cannot evict that broker. A broker with a replaced disk waits until the
    session of its last incarnation has expired.
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
    """The state of a broker, in the response to its heartbeat.

    A broker that may stop is fenced, too. One that has to ask again before it may stop is neither.
    """

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
        records.add([registration_change(broker, fenced=UNFENCE)])
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
            records.add([registration_change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)])
        live = {it for it in live_without(image, broker.node_id) if not image.brokers[it].in_controlled_shutdown}
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


@dataclass(frozen=True)
class UnregisterBroker(Command[Outcome[int]]):
    """Remove a broker that will not come back.

    The broker must be stopped first: otherwise it would keep running, and its heartbeats would be refused. Its replicas
    must be moved first: a replica on an unknown broker could never be in sync.
    """

    broker_id: int

    def run(self, image: Image, records: Records) -> Outcome[int]:
        """Remove the broker, if it is fenced and has no replicas. Otherwise the message says why not, for example:

        broker 1 is not registered; the registered brokers are [2]
        broker 1 is live: stop it first, and wait until it is fenced
        broker 1 has replicas of a-0, b-0, b-1 and 1 more: move them away first, with `minibroker topics reassign …`
        """
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
