"""Produce: append batches, answer when they are as safe as the producer asked. A pure module.

acks   answered
   0   never; an error closes the connection, the only thing such a client would notice
   1   when the leader has appended the batch
  -1   when the high watermark has passed it, so that every replica in the in-sync set has it

One request carries one batch for each of many partitions. Each has its own error; the answer waits for the slowest.
"""

from collections.abc import Callable

from minibroker.log.batch import ATTRIBUTES_AT, COMPRESSION_MASK, HEADER_SIZE
from minibroker.log.compression import Compression
from minibroker.partitions.errors import Disconnect, Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, Partition
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.routes import WRONG_NODE, Leader, Routes
from minibroker.partitions.waiting import Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Records, Response
from minibroker.wire.tables.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

ACKS_NONE = 0
ZSTD_FROM_VERSION = 7
LEADER_HINTS_FROM_VERSION = 10


class _Pending:
    """A batch that is appended, whose answer waits for other replicas."""

    __slots__ = ("answer", "appended", "name", "partition")

    def __init__(
        self, name: TopicPartition, partition: Partition, appended: Appended, answer: PartitionProduceResponse
    ) -> None:
        self.name = name
        self.partition = partition
        self.appended = appended
        self.answer = answer


class Produce:
    """The handler of Produce."""

    def __init__(self, routes: Routes, *, on_timeout: Callable[[], None] = lambda: None) -> None:
        """`on_timeout` is called before a batch is given up that was not replicated in time. It may raise."""
        self._routes = routes
        self._on_timeout = on_timeout

    def __call__(self, call: Call[ProduceRequest]) -> Answer:
        """Append every batch of the request."""
        return _Produce(self._routes, call, self._on_timeout).answer()


class _Produce:
    """One request: its answer grows here, and may have to wait."""

    def __init__(self, routes: Routes, call: Call[ProduceRequest], on_timeout: Callable[[], None]) -> None:
        self._routes = routes
        self._call = call
        self._on_timeout = on_timeout
        self._acks = call.request.acks
        self._pending: list[_Pending] = []
        self._endpoints: dict[int, NodeEndpoint] = {}
        self._refused: tuple[TopicPartition, Refused] | None = None

    def answer(self) -> Answer:
        # Append everything first; then see what is not yet as safe as was asked.
        responses = [
            TopicProduceResponse(
                name=topic.name, partition_responses=[self._append(topic.name, data) for data in topic.partition_data]
            )
            for topic in self._call.request.topic_data
        ]
        if self._acks == ACKS_NONE:
            self._check_silent()
            return None
        response = ProduceResponse(responses=responses, throttle_time_ms=0)
        if self._pending and not self._settled():
            return Wait(
                keys=[pending.name for pending in self._pending],
                timeout_ms=max(self._call.request.timeout_ms, 0),
                attempt=lambda: self._finish(response) if self._settled() else None,
                expire=lambda: self._expire(response),
            )
        return self._finish(response)

    def _check_silent(self) -> None:
        """A producer that wants no answer learns of an error by losing its connection."""
        if self._refused is not None:
            name, refused = self._refused
            raise Disconnect(f"acks=0, and {name.directory} refused a batch with {refused.code.name}: {refused}")

    def _append(self, topic: str, data: PartitionProduceData) -> PartitionProduceResponse:
        answer = PartitionProduceResponse(index=data.index, error_code=ErrorCode.NONE, base_offset=-1)
        try:
            records = self._checked(data.records)
            partition = self._routes.partition(topic, data.index)
            appended = partition.append(records, acks=self._acks, now_ms=self._call.now_ms)
        except Refused as refused:
            self._refuse(TopicPartition(topic, data.index), answer, refused)
            return answer
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = appended.log_start_offset
        if self._acks == ACKS_ALL:
            self._pending.append(_Pending(TopicPartition(topic, data.index), partition, appended, answer))
        return answer

    def _checked(self, records: Records | None) -> memoryview | None:
        """The batch, if the request is one that may carry it."""
        assert records is None or isinstance(records, memoryview), "a decoded record set is a view of the request"
        if self._acks not in (ACKS_NONE, 1, ACKS_ALL):
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self._acks}: only 0, 1 and -1 (all) have a meaning")
        if self._call.version < ZSTD_FROM_VERSION and records is not None and _is_zstd(records):
            message = f"zstd needs version {ZSTD_FROM_VERSION} of Produce, the request has {self._call.version}"
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)
        return records

    def _refuse(self, name: TopicPartition, answer: PartitionProduceResponse, refused: Refused) -> None:
        self._refused = (name, refused)
        answer.error_code = refused.code
        if self._call.version >= 8:
            answer.error_message = refused.message
            answer.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in refused.records
            ]
        if refused.code in WRONG_NODE and self._call.version >= LEADER_HINTS_FROM_VERSION:
            leader = self._routes.leader(name)
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.leader_epoch)
                self._endpoints[leader.node_id] = _endpoint(leader)

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _settled(self) -> bool:
        """Whether every batch has its verdict; those that have one are not asked again."""
        waiting = []
        for pending in self._pending:
            verdict = pending.partition.verdict(pending.appended, acks=self._acks)
            if verdict is None:
                waiting.append(pending)
            elif verdict is not ErrorCode.NONE:
                self._fail(pending, Refused(verdict, verdict.message))
        self._pending = waiting
        return not waiting

    def _fail(self, pending: _Pending, refused: Refused) -> None:
        pending.answer.base_offset = pending.answer.log_append_time_ms = -1
        self._refuse(pending.name, pending.answer, refused)

    def _expire(self, response: ProduceResponse) -> Response:
        self._on_timeout()
        if not self._settled():
            timeout_ms = self._call.request.timeout_ms
            for pending in self._pending:
                message = f"appended, but not replicated within {timeout_ms} ms"
                self._fail(pending, Refused(ErrorCode.REQUEST_TIMED_OUT, message))
        return self._finish(response)

    def _finish(self, response: ProduceResponse) -> Response:
        if self._endpoints:
            response.node_endpoints = list(self._endpoints.values())
        return response


def _is_zstd(batch: memoryview) -> bool:
    return len(batch) >= HEADER_SIZE and batch[ATTRIBUTES_AT + 1] & COMPRESSION_MASK == Compression.ZSTD


def _endpoint(leader: Leader) -> NodeEndpoint:
    return NodeEndpoint(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
