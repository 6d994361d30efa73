"""The commands of brokers: registration, and allocation of producer ids. A pure module."""

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
    """The result of a registration. The broker has this epoch until it registers again."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    epoch: int = -1


@dataclass(frozen=True)
class BrokerDescription:
    """A broker as it registers: its id and its endpoints. `incarnation_id` is new with every start."""

    broker_id: int
    endpoints: Sequence[Endpoint]
    incarnation_id: bytes
    rack: str | None = None
    is_fenced: bool = False
    previous_broker_epoch: int = -1
    """The epoch of the broker's last registration, if the broker has lost no written data since; otherwise -1."""
    log_dirs: Sequence[bytes] = ()
    """The ids of the data directories (KIP-858). A directory keeps its id after a restart; a new disk has a new id."""


def register(broker: BrokerDescription, image: Image, records: Records) -> Registration:
    """Register a broker. Its epoch is the offset after the last metadata record, so it grows with every registration.

    If one process registers twice, only the first request adds a record.
    """
    assert broker.endpoints, "a broker must have at least one listener"
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
    """Register a broker without changing any partition."""

    records_max = None

    def run(self, image: Image, records: Records) -> Registration:
        """Add the record of the registration."""
        return register(self, image, records)

    def refuse(self, code: ErrorCode, message: str) -> Registration:
        """Refuse the registration."""
        return Registration(code, message)


@dataclass(frozen=True)
class ProducerIds:
    """A block of `count` producer ids from `first` on, for one broker only. After a refusal, `count` is 0."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    first: int = -1
    count: int = 0


@dataclass(frozen=True)
class AllocateProducerIds(Command[ProducerIds]):
    """Allocate a block of producer ids to a broker. If `broker_epoch` is given, it must be the current one."""

    broker_id: int
    broker_epoch: int | None = None
    count: int = PRODUCER_IDS_PER_BLOCK

    def run(self, image: Image, records: Records) -> ProducerIds:
        """Allocate the next free ids."""
        broker = image.brokers.get(self.broker_id)
        if broker is None:
            message = f"broker {self.broker_id} is not registered; the registered brokers are {sorted(image.brokers)}"
            return self.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
        if self.broker_epoch not in (None, broker.epoch):
            message = (
                f"broker {self.broker_id} sent epoch {self.broker_epoch}, but its registration has epoch {broker.epoch}"
            )
            return self.refuse(ErrorCode.STALE_BROKER_EPOCH, message)
        first = image.next_producer_id
        if first > _LAST_PRODUCER_ID - self.count:
            return self.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, f"all producer ids up to {first} are in use")
        records.add(
            [
                ProducerIdsRecord(
                    broker_id=self.broker_id, broker_epoch=broker.epoch, next_producer_id=first + self.count
                )
            ]
        )
        return ProducerIds(first=first, count=self.count)

    def refuse(self, code: ErrorCode, message: str) -> ProducerIds:
        """An empty block with an error."""
        return ProducerIds(code, message)
