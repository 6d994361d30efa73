"""The messages of nodes, controller and clients in a simulated cluster, as a trace shows them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.follower import Fetched, Position
from minibroker.replication.leader import Altered, IsrProposal
from minibroker.replication.tables.alter_partition import AlterPartitionRequest
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest
from minibroker.replication.tables.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request
from minibroker.wire.tables.fetch import FetchRequest
from minibroker.wire.tables.produce import ProduceRequest


class Register(NamedTuple):
    node_id: int
    incarnation: int
    previous_broker_epoch: int

    def __str__(self) -> str:
        return f"register incarnation {self.incarnation}, was {self.previous_broker_epoch}"


class News(NamedTuple):
    """The controller's decisions up to one offset of its log."""

    offset: int
    partition: PartitionImage
    broker_epochs: dict[int, int]

    def __str__(self) -> str:
        it = self.partition
        return f"leader {it.leader} epoch {it.leader_epoch}, ISR {list(it.isr)} v{it.partition_epoch}"


class Registered(NamedTuple):
    broker_epoch: int
    news: News

    def __str__(self) -> str:
        return f"broker epoch {self.broker_epoch}; {self.news}"


class Propose(NamedTuple):
    broker_id: int
    broker_epoch: int
    proposal: IsrProposal

    def __str__(self) -> str:
        return f"propose ISR {list(self.proposal.members)} on v{self.proposal.partition_epoch}"


class Answered(NamedTuple):
    altered: Altered

    def __str__(self) -> str:
        if self.altered.code is not ErrorCode.NONE:
            return self.altered.code.name
        return f"ISR {list(self.altered.isr)} v{self.altered.partition_epoch}"


class Fetch(NamedTuple):
    replica_id: int
    position: Position
    broker_epoch: int
    bytes_max: int

    def __str__(self) -> str:
        if self.position.is_lost:
            return "where does the log start?"
        return f"fetch {self.position.fetch_offset} in epoch {self.position.leader_epoch}"


class FetchAnswer(NamedTuple):
    fetched: Fetched

    def __str__(self) -> str:
        it = self.fetched
        if it.code is not ErrorCode.NONE:
            return it.code.name
        if it.diverging is not None:
            return f"epoch {it.diverging.epoch} ends at {it.diverging.end_offset}"
        return f"{len(it.records)} bytes, watermark {it.high_watermark}"


class Start(NamedTuple):
    log_start_offset: int

    def __str__(self) -> str:
        return f"the log starts at {self.log_start_offset}"


class Produce(NamedTuple):
    label: str
    number: int
    batch: bytes
    acks: int

    def __str__(self) -> str:
        return f"produce {self.label}"


class Produced(NamedTuple):
    number: int
    code: ErrorCode
    base_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"at {self.base_offset}" if self.code is ErrorCode.NONE else self.code.name


class Consume(NamedTuple):
    offset: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"consume from {self.offset}"


class Consumed(NamedTuple):
    code: ErrorCode
    records: bytes = b""
    log_start_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"{len(self.records)} bytes" if self.code is ErrorCode.NONE else self.code.name


class AskEpoch(NamedTuple):
    epoch: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"where does epoch {self.epoch} end?"


class ToldEpoch(NamedTuple):
    code: ErrorCode
    end: EpochEnd | None = None

    def __str__(self) -> str:
        return f"at {self.end.end_offset}" if self.end is not None else self.code.name


# On the wire ----------------------------------------------------------------------------------------------------------


@lru_cache
def fetch_request(replica_id: int) -> Request:
    """The Fetch of a node, or of a consumer."""
    return FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, topics=[])


@lru_cache
def registration_request(broker_id: int) -> Request:
    return BrokerRegistrationRequest(broker_id=broker_id, cluster_id="", incarnation_id=bytes(16), listeners=[])


@lru_cache
def alter_request(broker_id: int) -> Request:
    return AlterPartitionRequest(broker_id=broker_id, topics=[])


_PRODUCE = ProduceRequest(acks=-1, timeout_ms=0, topic_data=[])
_EPOCH = OffsetForLeaderEpochRequest(topics=[])

WIRE: dict[type, Callable[[Any], Request]] = {
    Fetch: lambda it: fetch_request(it.replica_id),
    Register: lambda it: registration_request(it.node_id),
    Propose: lambda it: alter_request(it.broker_id),
    Produce: lambda _it: _PRODUCE,
    Consume: lambda _it: fetch_request(-1),
    AskEpoch: lambda _it: _EPOCH,
}
"""The requests as the access table sees them, with the node for which each acts."""
