"""WriteTxnMarkers: write the outcome of transactions into partitions, and answer when it is replicated. A pure module.

The coordinator of a transaction sends this request to the leaders of the partitions. A client may send it, too, to end
a hanging transaction: one that is open in a partition, although no coordinator knows of it. That is what
`kafka-transactions abort` does. A client may only abort, and only if three things hold:

1. The transaction is open in the partition, with the marker's producer id and epoch.
2. No coordinator lists it as ongoing with this partition.
3. It is still the same open transaction when the coordinators have answered.

The group coordinator is the only writer of its partition of `__consumer_offsets`. It writes these markers itself,
because the outcome also decides about committed offsets.
"""

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Protocol

from minibroker.log.batch import NO_OFFSET
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, LocalPartition
from minibroker.partitions.producers import ProducerState
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.waiting import Turn, Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.markers import Marker, append_marker
from minibroker.transactions.tables.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

_TIMEOUT_MS = 30_000  # Kafka's request.timeout.ms of a broker
_MARKERS_PER_TURN = 200


class Partitions(Protocol):
    """The partitions of this node. A partition without a replica here raises `Refused`."""

    def partition(self, topic: str, index: int) -> LocalPartition:
        """The partition, if this node has a replica of it."""


class OffsetsMarkers(Protocol):
    """Writes the markers of partitions of `__consumer_offsets`."""

    def write(self, name: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Write a marker. `done` is called when the marker is applied and replicated, or refused."""


class Ongoing(Protocol):
    """Asks the coordinators for ongoing transactions."""

    def is_ongoing(self, name: TopicPartition, producer_id: int, done: Callable[[bool | None], None]) -> None:
        """Ask whether a coordinator has an ongoing transaction of this producer that includes the partition.

        `done` is called once. Its argument is None if not all coordinators have answered.
        """


class WriteTxnMarkers:
    """The handler of WriteTxnMarkers."""

    def __init__(
        self,
        partitions: Partitions,
        offsets: OffsetsMarkers,
        ongoing: Ongoing,
        *,
        wake: Callable[[Hashable], None],
    ) -> None:
        self._partitions = partitions
        self._offsets = offsets
        self._ongoing = ongoing
        self._wake = wake

    def __call__(self, call: Call[WriteTxnMarkersRequest]) -> Answer:
        """Write all markers of the request."""
        write = self._write if call.session.node_id is not None else self._write_for_client
        return _Request(call.request, lambda it: write(it, call.now_ms), self._wake).answer()

    def _write(self, it: "_Write", now_ms: int) -> None:
        """Append a marker, or let the group coordinator do so."""
        try:
            if it.name.topic == GROUP_METADATA_TOPIC:
                self._offsets.write(it.name, it.marker, it.end)
            else:
                it.partition = self._partitions.partition(*it.name)
                it.appended = append_marker(it.partition, it.marker, now_ms=now_ms)
        except Refused as refused:
            it.end(refused.code)

    def _write_for_client(self, it: "_Write", now_ms: int) -> None:
        """Write a client's marker if it ends a transaction that no coordinator knows."""
        if it.marker.is_commit:
            it.end(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return

        def done(is_ongoing: bool | None) -> None:
            try:
                if is_ongoing is None:
                    raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not all coordinators have answered")
                if is_ongoing or self._open_transaction(it).current_txn_first_offset != first_offset:
                    raise Refused(ErrorCode.INVALID_TXN_STATE, "the coordinator of the transaction will end it")
            except Refused as refused:
                it.end(refused.code)
            else:
                self._write(it, now_ms)

        try:
            state = self._open_transaction(it)
        except Refused as refused:
            it.end(refused.code)
            return
        first_offset = state.current_txn_first_offset
        # The marker must not have a higher coordinator epoch: the coordinator's own markers would then be refused.
        it.marker = it.marker._replace(coordinator_epoch=max(state.coordinator_epoch, 0), transaction_version=0)
        self._ongoing.is_ongoing(it.name, it.marker.producer_id, done)

    def _open_transaction(self, it: "_Write") -> ProducerState:
        """The state of the producer whose open transaction a client's marker names."""
        marker = it.marker
        partition = self._partitions.partition(*it.name)
        partition.check_leader()
        state = partition.producers.producers.get(marker.producer_id)
        if state is None or state.current_txn_first_offset == NO_OFFSET:
            message = f"producer {marker.producer_id} has no open transaction in {it.name.directory}"
            raise Refused(ErrorCode.INVALID_TXN_STATE, message)
        if state.epoch != marker.producer_epoch:
            message = (
                f"producer {marker.producer_id} has epoch {state.epoch}, but the marker has {marker.producer_epoch}"
            )
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        return state


class _Write:
    """One marker for one partition."""

    def __init__(self, name: TopicPartition, marker: Marker, wake: Callable[[], None]) -> None:
        self.name = name
        self.marker = marker
        self.partition: LocalPartition | None = None
        self.appended: Appended | None = None
        self.code: ErrorCode | None = None
        self._wake = wake

    def end(self, code: ErrorCode) -> None:
        """Set the answer for this partition."""
        self.code = code
        self._wake()

    def is_done(self) -> bool:
        """Whether the marker is replicated or refused."""
        if self.code is None and self.partition is not None and self.appended is not None:
            self.code = self.partition.verdict(self.appended, acks=ACKS_ALL)
        return self.code is not None


class _Request:
    """One request, and its answer, which waits until all markers are replicated."""

    def __init__(
        self, request: WriteTxnMarkersRequest, begin: Callable[[_Write], None], wake: Callable[[Hashable], None]
    ) -> None:
        self._markers = request.markers
        self._writes = [
            _Write(name, _marker(marker), lambda: wake(self)) for marker in self._markers for name in _names(marker)
        ]
        self._rest = iter(self._writes)
        self._begin = begin
        self._turn = Turn()

    def answer(self) -> Answer:
        """The response, or the wait for it. Very many markers are written in several turns of the event loop."""
        self._begin_some()
        found = self._attempt()
        if found is not None:
            return found
        keys: list[Hashable] = [self, *{it.name: None for it in self._writes}]
        if not self._turn.is_over:
            keys.insert(0, self._turn)
        return Wait(keys, _TIMEOUT_MS, attempt=self._attempt, expire=self._expire)

    def _begin_some(self) -> None:
        some = list(islice(self._rest, _MARKERS_PER_TURN))
        for it in some:
            self._begin(it)
        self._turn.is_over = len(some) < _MARKERS_PER_TURN

    def _attempt(self) -> Response | None:
        if self._turn.is_due:
            self._turn.is_due = False
            self._begin_some()
        if not self._turn.is_over or not all(it.is_done() for it in self._writes):
            return None
        return self._response()

    def _expire(self) -> Response:
        for it in self._writes:
            if not it.is_done():
                it.code = ErrorCode.REQUEST_TIMED_OUT
        return self._response()

    def _response(self) -> Response:
        writes = iter(self._writes)
        return WriteTxnMarkersResponse(markers=[_result(marker, writes) for marker in self._markers])


def _marker(marker: WritableTxnMarker) -> Marker:
    return Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_commit=marker.transaction_result,
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _names(marker: WritableTxnMarker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]


def _result(marker: WritableTxnMarker, writes: Iterator[_Write]) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=[
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=next(writes).code or ErrorCode.NONE)
                for index in topic.partition_indexes
            ],
        )
        for topic in marker.topics
    ]
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
