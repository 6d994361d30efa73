"""Commands of brokers: a broker registers, and asks for producer ids. A pure module."""

from collections.abc import Sequence
from dataclasses import dataclass

from minibroker.metadata.decision import Command, Records
from minibroker.metadata.image import Endpoint, Image
from minibroker.metadata.records import BrokerEndpoint, ProducerIdsRecord, RegisterBrokerRecord
from minibroker.wire.codes import ErrorCode

PRODUCER_IDS_PER_BLOCK = 1000
_LAST_PRODUCER_ID = 2**63 - 1


@dataclass(frozen=True)
class Registration:
    """What came of a registration; the epoch is the broker's until it registers again."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    epoch: int = -1


@dataclass(frozen=True)
class BrokerDescription:
    """What a process says of itself: which broker it is, and where it can be reached.

    `incarnation_id` is new with every start.
    """

    broker_id: int
    endpoints: Sequence[Endpoint]
    incarnation_id: bytes
    rack: str | None = None
    is_fenced: bool = False
    previous_broker_epoch: int = -1
    """The epoch it had when it last stopped without losing what it had written; -1 if it cannot say."""
    log_dirs: Sequence[bytes] = ()
    """The ids of its data directories (KIP-858): they are the same after a restart, and other ones on another disk."""


def register(broker: BrokerDescription, image: Image, records: Records) -> Registration:
    """Take a broker in. Its epoch is the offset of its record, so every registration has a larger one.

    A process that registers twice adds no record.
    """
    assert broker.endpoints, "a broker has at least one listener"
    known = image.brokers.get(broker.broker_id)
    if known is not None and known.incarnation_id == broker.incarnation_id:
        return Registration(epoch=known.epoch)
    epoch = image.offset + 1
    endpoints = [
        BrokerEndpoint(name=it.name, host=it.host, port=it.port, security_protocol=it.security_protocol)
        for it in broker.endpoints
    ]
    records.add(
        [
            RegisterBrokerRecord(
                broker_id=broker.broker_id,
                incarnation_id=broker.incarnation_id,
                broker_epoch=epoch,
                end_points=endpoints,
                rack=broker.rack,
                fenced=broker.is_fenced,
                log_dirs=list(broker.log_dirs),
            )
        ]
    )
    return Registration(epoch=epoch)


@dataclass(frozen=True)
class RegisterBroker(BrokerDescription, Command[Registration]):
    """A broker registers, and no partition changes with it."""

    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Take it in."""
        return register(self, image, records)

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """It is not registered."""
        return Registration(code, message)


@dataclass(frozen=True)
class ProducerIds:
    """A block of producer ids that nobody else gets: `count` of them from `first` on. Refused, it is empty."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    first: int = -1
    count: int = 0


@dataclass(frozen=True)
class AllocateProducerIds(Command[ProducerIds]):
    """A broker asks for a block of producer ids, with the epoch of its registration if it knows it."""

    broker_id: int
    broker_epoch: int | None = None
    count: int = PRODUCER_IDS_PER_BLOCK

    def run(self, image: Image, records: Records) -> ProducerIds:
        """Move the border between given and free ids."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered, {sorted(image.brokers)} are"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if self.broker_epoch not in (None, broker.epoch):
            message = f"broker {self.broker_id} asks with epoch {self.broker_epoch}, it is {broker.epoch}"
            return self.refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        first = image.next_producer_id
        if first > _LAST_PRODUCER_ID - self.count:
            return self.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, f"all producer ids up to {first} are given")
        records.add(
            [
                ProducerIdsRecord(
                    broker_id=self.broker_id, broker_epoch=broker.epoch, next_producer_id=first + self.count
                )
            ]
        )
        return ProducerIds(first=first, count=self.count)

    def refuse(self, code: ErrorCode, message: str) -> ProducerIds:
        """No ids."""
        return ProducerIds(code, message)
