"""A broker in memory whose partitions take part in transactions. The coordinators around it are stand-ins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from partitions_broker import NOW_MS, MemoryBroker, answered, fetch_request, joined, produce_request

from minibroker.log.batch import BatchBuilder, batches
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.partition import LocalPartition, Reader
from minibroker.partitions.registry import Deferred, Session
from minibroker.partitions.store import Store
from minibroker.replication.opening import HIGH_WATERMARKS, open_replica
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.logs import TransactionLogs
from minibroker.transactions.markers import Marker
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

NODE = Session("node 2", node_id=2)
CLIENT = Session("client")
PRODUCER = 7
ID = "copier"


class Question(NamedTuple):
    """A question to a coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    names: Sequence[TopicPartition]
    is_add: bool
    done: Callable[[Mapping[TopicPartition, ErrorCode]], None]


class Coordinators:
    """Every port to the coordinators. Questions are answered by the test, or at once with `code`."""

    def __init__(self) -> None:
        self.code: ErrorCode | None = ErrorCode.NONE
        self.questions: list[Question] = []
        self.is_listed: bool | None = False
        self.asked: list[tuple[TopicPartition, int]] = []
        self.offsets: list[tuple[TopicPartition, Marker, Callable[[ErrorCode], None]]] = []

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        names: Sequence[TopicPartition],
        *,
        is_add: bool,
        done: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> None:
        self.questions.append(Question(transactional_id, producer_id, producer_epoch, names, is_add, done))
        if self.code is not None:
            done(dict.fromkeys(names, self.code))

    def is_ongoing(self, name: TopicPartition, producer_id: int, done: Callable[[bool | None], None]) -> None:
        self.asked.append((name, producer_id))
        done(self.is_listed)

    def write(self, name: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        self.offsets.append((name, marker, done))


class TransactionBroker(MemoryBroker):
    """Node 1 leads `orders`. With `is_followed`, node 2 is in sync, and nothing is replicated until it fetches."""

    more_checkpoints = (HIGH_WATERMARKS,)

    def __init__(
        self, *, is_followed: bool = False, is_verifying: bool = True, has_transactions: bool = True, **configs: Any
    ) -> None:
        self.is_followed = is_followed
        self.has_transactions = has_transactions
        self.coordinators = Coordinators()
        self.replicas: dict[TopicPartition, Replica] = {}
        self.logs = TransactionLogs(
            lambda key: self.waiting.wake(key),
            verifier=self.coordinators,
            offsets=self.coordinators,
            ongoing=self.coordinators,
            is_verifying=lambda: is_verifying,
        )
        super().__init__()
        self.logs.add_handlers(self.registry, self.store)
        self.create("orders", 2, **configs)

    def make_store(self, **more: Any) -> Store:
        return super().make_store(open_partition=self.open_partition, **more)

    def open_partition(
        self, name: TopicPartition, _topic_id: bytes, image: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        seams: dict[str, Any] = {}
        if self.has_transactions:
            seams = {"rules_for": self.logs.rules_for, "open_transactions": self.logs.open_transactions}
        partition, replica = open_replica(
            self.data,
            self.files,
            name,
            config,
            node_id=1,
            outbox=[],
            wake=self.waiting.wake,
            **seams,
        )
        nodes = (1, 2) if self.is_followed else (1,)
        replica.on_partition(replace(image, replicas=nodes, isr=nodes), {1: 1, 2: 2}, 0)
        self.replicas[name] = replica
        return partition

    @property
    def partition(self) -> LocalPartition:
        return self.store.partition("orders", 0)

    def follow(self, offset: int | None = None) -> None:
        """Node 2 has everything before `offset`, or before the end of the log."""
        offset = self.partition.log_end_offset if offset is None else offset
        reader = Reader(2, 2, log_start_offset=0)
        self.partition.read(offset, bytes_max=1, reader=reader)
        self.waiting.settle()

    # Producing --------------------------------------------------------------------------------------------------------

    def send(
        self,
        *values: bytes,
        sequence: int = 0,
        epoch: int = 0,
        producer_id: int = PRODUCER,
        transactional_id: str | None = ID,
        is_transactional: bool = True,
        version: int = 11,
        acks: int = 1,
    ) -> ErrorCode | list[Any]:
        """The code for a batch, or, if it waits, a list that gets the response."""
        request = produce_request(
            "orders",
            batch_of(values, producer_id, epoch, sequence, is_transactional=is_transactional),
            acks=acks,
        )
        request.transactional_id = transactional_id
        outcome = self.dispatch(request, version)
        if not isinstance(outcome, Deferred):
            return code_of(answered(request, outcome, version))
        codes: list[Any] = []
        self.waiting.park(
            outcome.wait, lambda it: codes.append(code_of(answered(request, outcome.reply(it), version))), now_ms=0
        )
        return codes

    def answer(self, code: ErrorCode = ErrorCode.NONE, number: int = 0) -> None:
        """A coordinator answers a question."""
        question = self.coordinators.questions[number]
        question.done(dict.fromkeys(question.names, code))
        self.waiting.settle()

    # Markers ----------------------------------------------------------------------------------------------------------

    def mark(
        self,
        *,
        is_commit: bool,
        epoch: int = 0,
        producer_id: int = PRODUCER,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        topics: Mapping[str, Sequence[int]] | None = None,
        session: Session = NODE,
    ) -> Any:
        """The codes of the partitions, or, if the answer waits, a list that gets them."""
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=is_commit,
            topics=[
                WritableTxnMarkerTopic(name=name, partition_indexes=list(numbers))
                for name, numbers in (topics or {"orders": [0]}).items()
            ],
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        outcome = self.dispatch_as(session, request)
        if not isinstance(outcome, Deferred):
            return codes_of(answered(request, outcome, 2))
        found: list[Any] = []
        self.waiting.park(
            outcome.wait, lambda it: found.append(codes_of(answered(request, outcome.reply(it), 2))), now_ms=0
        )
        return found

    def dispatch_as(self, session: Session, request: Request) -> Any:
        parts = frame_request(request, version=2, correlation_id=7, client_id="test")
        outcome = self.registry.dispatch(memoryview(bytearray(joined(parts)))[4:], now_ms=NOW_MS, session=session)
        self.waiting.settle()
        return outcome

    # Reading ----------------------------------------------------------------------------------------------------------

    def read(self, offset: int = 0, *, is_committed: bool) -> tuple[list[bytes], list[tuple[int, int]]]:
        """The values in the fetched bytes, control records excluded, and the aborted transactions that are listed."""
        found = self.fetch("orders", offset, isolation_level=int(is_committed))
        values = [
            it.value or b""
            for batch in batches(bytes(found.records))
            if not batch.header.is_control
            for it in batch.records()
            if it.offset >= offset
        ]
        return values, [(it.producer_id, it.first_offset) for it in found.aborted_transactions or ()]

    def wait_for_records(self, *, is_committed: bool) -> list[Any]:
        """A fetch from the last stable offset on, which waits for one byte."""
        offset = self.partition.last_stable_offset if is_committed else self.partition.high_watermark
        request = fetch_request("orders", offset, min_bytes=1, max_wait_ms=500, isolation_level=int(is_committed))
        return self.wait_for(request, 12)

    def listed(self, timestamp: int, *, is_committed: bool) -> int:
        """The answer of ListOffsets."""
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="orders", partitions=[wanted])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(is_committed), topics=[topic])
        offset: int = self.ask(request, 7).topics[0].partitions[0].offset
        return offset


def batch_of(
    values: Sequence[bytes], producer_id: int, epoch: int, sequence: int, *, is_transactional: bool = True
) -> bytearray:
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
    )
    for value in values or (b"v",):
        builder.append(timestamp=NOW_MS, key=b"k", value=value)
    return builder.build()


def code_of(response: Any) -> ErrorCode:
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def codes_of(response: Any) -> list[ErrorCode]:
    (marker,) = response.markers
    return [ErrorCode(it.error_code) for topic in marker.topics for it in topic.partitions]
