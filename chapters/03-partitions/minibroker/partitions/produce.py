"""Produce: append batches, and answer when they are as safe as the producer asked for. A pure module.

acks   answered
   0   never; an error closes the connection, since the client reads no answer
   1   when the leader has appended the batch
  -1   when the high watermark has passed the batch, so that every in-sync replica has it

A request has one batch for each of its partitions. Each partition has its own error. The answer waits for the slowest.

A rule may hold a batch before it is appended (`Held`). The batch is tried again when the rule's key is woken. Its wait
blocks the connection, so a later batch of the same producer cannot overtake the held one. A request whose batches are
all appended and only wait for other replicas does not block: the next request may append its batches meanwhile, and one
fetch of a follower brings them all.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from minibroker.log.batch import ATTRIBUTES_AT, COMPRESSION_MASK, HEADER_SIZE
from minibroker.log.compression import Compression
from minibroker.partitions.admission import Claim
from minibroker.partitions.errors import Disconnect, Held, Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, Partition
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.routes import WRONG_NODE, Leader, Routes
from minibroker.partitions.waiting import Turn, Wait
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
_ACKS = (ACKS_NONE, 1, ACKS_ALL)
_BATCHES_PER_TURN = 200
_SLICES_TIMEOUT_MS_MIN = 30_000
ZSTD_FROM_VERSION = 7
LEADER_HINTS_FROM_VERSION = 10


class _Pending(NamedTuple):
    """A batch that was appended, and whose answer waits for other replicas."""

    name: TopicPartition
    partition: Partition
    appended: Appended
    answer: PartitionProduceResponse


class _Held(NamedTuple):
    """A batch that may not be appended yet."""

    topic: str
    data: PartitionProduceData
    answer: PartitionProduceResponse
    held: Held


class Produce:
    """The handler of Produce."""

    def __init__(self, routes: Routes, *, on_timeout: Callable[[], None] = lambda: None) -> None:
        """`on_timeout` is called before a batch that was not replicated in time is refused. It may raise."""
        self._routes = routes
        self._on_timeout = on_timeout

    def __call__(self, call: Call[ProduceRequest]) -> Answer:
        """Append every batch of the request."""
        return _Produce(self._routes, call, self._on_timeout).answer()


class _Produce:
    """One request, and its answer, which may have to wait."""

    # Most requests need none of these, so they are set only when they are needed.
    _endpoints: Mapping[int, NodeEndpoint] = {}
    _refused: tuple[TopicPartition, Refused] | None = None
    _turn: Turn | None = None
    """Set if the batches are too many for one turn of the event loop."""
    _rest: Iterator[None]

    def __init__(self, routes: Routes, call: Call[ProduceRequest], on_timeout: Callable[[], None]) -> None:
        request = call.request
        self._routes = routes
        self._call = call
        self._on_timeout = on_timeout
        self._acks = request.acks
        transactional_id = request.transactional_id
        self._claim = None if transactional_id is None else Claim(transactional_id, call.version)
        self._held: list[_Held] = []
        self._pending: list[_Pending] = []
        self._topics: list[TopicProduceResponse] = []
        self._response = ProduceResponse(responses=self._topics)

    def answer(self) -> Answer:
        # Append all batches. The answer waits for batches that are held, and for batches that are not replicated yet.
        # A request with very many batches also waits until all are appended, some in each turn of the event loop.
        topics, acks = self._call.request.topic_data, self._acks
        count = len(topics)
        for topic in topics:
            count += len(topic.partition_data)
        if count > _BATCHES_PER_TURN and acks != ACKS_NONE:
            return self._in_turns()
        for _ in self._appends():
            pass
        if acks == ACKS_NONE:
            self._check_silent()
            return None
        if self._held or self._pending:
            timeout_ms, is_held = max(self._call.request.timeout_ms, 0), bool(self._held)
            return Wait(self._keys(), timeout_ms, self._attempt, self._expire, is_blocking=is_held)
        return self._response

    def _in_turns(self) -> Answer:
        self._turn = Turn()
        self._rest = self._appends()
        self._append_some(_BATCHES_PER_TURN)
        # A timeout would append the rest at once, so it must not be short.
        timeout_ms = max(self._call.request.timeout_ms, _SLICES_TIMEOUT_MS_MIN)
        return Wait([self._turn, *self._names()], timeout_ms, attempt=self._attempt, expire=self._expire)

    def _append_some(self, count: int | None) -> None:
        """Append the next `count` batches of a request that is handled in turns; all of them if `count` is None."""
        assert self._turn is not None
        taken = sum(1 for _ in islice(self._rest, count))
        self._turn.is_over = count is None or taken < count

    def _appends(self) -> Iterator[None]:
        """Append the batches, one in each step. A topic without batches is a step, too."""
        for topic in self._call.request.topic_data:
            answers: list[PartitionProduceResponse] = []
            self._topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
            yield None
            for data in topic.partition_data:
                answer = PartitionProduceResponse(index=data.index, error_code=ErrorCode.NONE, base_offset=-1)
                answers.append(answer)
                self._append(topic.name, data, answer)
                yield None

    def _check_silent(self) -> None:
        """Close the connection on an error, because a producer with acks=0 reads no answer."""
        if self._refused is not None:
            name, refused = self._refused
            raise Disconnect(f"acks=0, and {name.directory} refused a batch with {refused.code.name}: {refused}")

    def _append(self, topic: str, data: PartitionProduceData, answer: PartitionProduceResponse) -> None:
        acks = self._acks
        try:
            if self._call.version < ZSTD_FROM_VERSION or acks not in _ACKS:
                self._check(data.records)
            records = data.records
            assert records is None or isinstance(records, memoryview), "a decoded record set is a view of the request"
            partition = self._routes.partition(topic, data.index)
            appended = partition.append(records, acks=acks, now_ms=self._call.now_ms, claim=self._claim)
        except Held as held:
            if acks == ACKS_NONE:
                self._refuse(TopicPartition(topic, data.index), answer, held)
            else:
                self._held.append(_Held(topic, data, answer, held))
            return
        except Refused as refused:
            self._refuse(TopicPartition(topic, data.index), answer, refused)
            return
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = appended.log_start_offset
        if acks == ACKS_ALL:
            verdict = partition.verdict(appended, acks=acks)
            if verdict is not ErrorCode.NONE:
                self._on_verdict(verdict, _Pending(TopicPartition(topic, data.index), partition, appended, answer))

    def _check(self, records: Records | None) -> None:
        """Refuse an invalid acks, and zstd in a version that does not have it."""
        if self._acks not in _ACKS:
            raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self._acks}: only 0, 1 and -1 (all) are valid")
        if isinstance(records, memoryview) and _is_zstd(records):
            message = f"zstd needs version {ZSTD_FROM_VERSION} of Produce, but the request has {self._call.version}"
            raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)

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
            leader = self._routes.leader(name, self._call.session.listener)
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.leader_epoch)
                self._endpoints = {**self._endpoints, leader.node_id: _endpoint(leader)}
                self._response.node_endpoints = list(self._endpoints.values())

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _keys(self) -> list[Hashable]:
        """The keys to wait for. A held batch has two: `Held.key` until it is appended, and then its partition."""
        keys: list[Hashable] = [it.name for it in self._pending]
        for it in self._held:
            keys += [it.held.key, TopicPartition(it.topic, it.data.index)]
        return keys

    def _names(self) -> Iterator[TopicPartition]:
        """The partitions of the request."""
        for topic in self._call.request.topic_data:
            for data in topic.partition_data:
                yield TopicPartition(topic.name, data.index)

    def _attempt(self) -> Response | None:
        """The answer, or None while a batch is held or has no verdict. A batch with a verdict is not checked again."""
        turn = self._turn
        if turn is not None:
            if turn.is_due:
                turn.is_due = False
                self._append_some(_BATCHES_PER_TURN)
            if not turn.is_over:
                return None
        held, self._held = self._held, []
        for it in held:
            self._append(it.topic, it.data, it.answer)
        pending, self._pending = self._pending, []
        for batch in pending:
            self._on_verdict(batch.partition.verdict(batch.appended, acks=self._acks), batch)
        return None if self._held or self._pending else self._response

    def _on_verdict(self, verdict: ErrorCode | None, pending: _Pending) -> None:
        if verdict is None:
            self._pending.append(pending)
        elif verdict is not ErrorCode.NONE:
            self._fail(pending, Refused(verdict, verdict.message))

    def _fail(self, pending: _Pending, refused: Refused) -> None:
        pending.answer.base_offset = pending.answer.log_append_time_ms = -1
        self._refuse(pending.name, pending.answer, refused)

    def _expire(self) -> Response:
        if self._turn is not None:
            self._append_some(None)
        self._on_timeout()
        if self._attempt() is None:
            for it in self._held:
                self._refuse(TopicPartition(it.topic, it.data.index), it.answer, it.held)
            for pending in self._pending:
                message = f"appended, but not replicated within {self._call.request.timeout_ms} ms"
                self._fail(pending, Refused(ErrorCode.REQUEST_TIMED_OUT, message))
        return self._response


def _is_zstd(batch: memoryview) -> bool:
    return len(batch) >= HEADER_SIZE and batch[ATTRIBUTES_AT + 1] & COMPRESSION_MASK == Compression.ZSTD


def _endpoint(leader: Leader) -> NodeEndpoint:
    return NodeEndpoint(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
