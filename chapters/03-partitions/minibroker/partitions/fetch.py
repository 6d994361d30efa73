"""Fetch: batches from an offset on, now or as soon as there are enough bytes. A pure module.

A request has an offset and a maximum of bytes for each partition, and a maximum and a minimum for the whole answer. If
there are fewer bytes than the minimum, the answer waits, up to `max_wait_ms`. The records of an answer are slices of
files.

The first batch is the one that *contains* the offset. The first batch is always returned whole, even above the limits.
Otherwise a consumer could never get past it. The last batch may be cut off.

In a fetch session a client names only the partitions that changed (KIP-227). This handler knows no session: every
request names all partitions, and the session id 0 in the answer says that there is no session. Chapter 07 has sessions,
in a filter before this handler.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.log.interfaces import FileSlice
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import LogEnd, Partition, Reader
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.routes import WRONG_NODE, Routes
from minibroker.partitions.waiting import Turn, Wait
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from minibroker.wire.uuids import uuid_text

TOPIC_IDS_FROM_VERSION = 13
REPLICA_STATE_FROM_VERSION = 15
LEADER_HINTS_FROM_VERSION = 16
NO_SESSION = 0
PARTITIONS_PER_TURN = 500
_NO_TIMEOUT_MS = 2**31 - 1
_FULL_FETCH_EPOCHS = (0, -1)  # 0 begins a session; -1 ends a session or uses none
READ_COMMITTED = 1


class _Wanted(NamedTuple):
    """One partition of a request, and its reader. `topic` is None if no topic has the id."""

    topic: str | None
    topic_id: bytes
    wanted: FetchPartition
    reader: Reader


class Fetch:
    """The handler of Fetch. `bytes_max` is the broker's limit for one answer, fetch.max.bytes.

    `clock` is monotonic. A leader measures with it how long a follower has been behind. `check_leading` is called
    before a consumer is told that its offset is out of range. It may raise.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        bytes_max: int,
        clock: Callable[[], int] = lambda: 0,
        check_leading: Callable[[], None] = lambda: None,
    ) -> None:
        self._routes = routes
        self._check_leading = check_leading
        self._internal = routes.internal
        self._bytes_max = bytes_max
        self._clock = clock

    def __call__(self, call: Call[FetchRequest]) -> Answer:
        """Answer if there are enough bytes; otherwise wait for more."""
        request = call.request
        # Only other nodes may fetch an internal partition, not consumers. The owner of the partition answers.
        if request.replica_state.replica_id >= 0 and request.topics and request.topics[0].topic_id in self._internal:
            return self._internal[request.topics[0].topic_id](call)
        refusal = _session_error(request)
        if refusal is not None:
            return FetchResponse(error_code=refusal, session_id=NO_SESSION, responses=[])
        reader = _reader(call, self._clock)
        bytes_max = min(self._bytes_max, max(request.max_bytes, 0))
        fetch = _Fetch(self._routes, call, reader, bytes_max, self._check_leading)
        if fetch.is_long:
            return _LongFetch(fetch, self._clock, max_wait_ms=request.max_wait_ms).wait()
        response = fetch.gather()
        if request.max_wait_ms <= 0 or fetch.is_enough(response):
            return response
        fetch.mark_as_waiting()
        return Wait(
            keys=fetch.keys,
            timeout_ms=request.max_wait_ms,
            attempt=fetch.attempt,
            expire=fetch.gather,
        )


def _session_error(request: FetchRequest) -> ErrorCode | None:
    # A request that begins or ends a session names all partitions, so its session id does not matter.
    return None if request.session_epoch in _FULL_FETCH_EPOCHS else ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def _reader(call: Call[FetchRequest], clock: Callable[[], int]) -> Reader:
    request = call.request
    replica_id, replica_epoch = request.replica_id, -1
    if call.version >= REPLICA_STATE_FROM_VERSION:
        replica_id, replica_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    is_committed_only = request.isolation_level == READ_COMMITTED
    return Reader(replica_id, replica_epoch, is_committed_only=is_committed_only, now_ms=clock())


class _Fetch:
    """One request, which may be tried several times."""

    def __init__(
        self,
        routes: Routes,
        call: Call[FetchRequest],
        reader: Reader,
        bytes_max: int,
        check_leading: Callable[[], None],
    ) -> None:
        is_replica = reader.replica_id >= 0
        self._routes = routes
        self._check_leading = check_leading
        self._version = call.version
        self._listener = call.session.listener
        self._bytes_min = call.request.min_bytes
        self._bytes_max = bytes_max
        self._is_replica = is_replica
        # If a partition is named twice, the last entry counts.
        wanted: dict[tuple[str, bytes, int], _Wanted] = {}
        for topic in call.request.topics:
            name = self._name(topic.topic, topic.topic_id) if topic.partitions else None
            for it in topic.partitions:
                # The reader of a replica has the start offset of the replica's log, for which DeleteRecords waits.
                own = reader.of_log(it.log_start_offset) if is_replica else reader
                wanted[topic.topic, topic.topic_id, it.partition] = _Wanted(name, topic.topic_id, it, own)
        self._wanted = list(wanted.values())

        self._may_exceed = True
        """Whether the first batch may exceed the limits. In a slice, only if no earlier slice has records."""

    @property
    def is_long(self) -> bool:
        """Whether the answer takes so long that it is gathered in slices."""
        return len(self._wanted) > PARTITIONS_PER_TURN

    @property
    def keys(self) -> Sequence[Hashable]:
        """The keys under which the request waits for more records."""
        names = [TopicPartition(it.topic, it.wanted.partition) for it in self._wanted if it.topic is not None]
        return list(map(LogEnd, names)) if self._is_replica else names

    def _name(self, topic: str, topic_id: bytes) -> str | None:
        if self._version < TOPIC_IDS_FROM_VERSION:
            return topic
        try:
            return self._routes.topic_name(topic_id)
        except Refused:
            return None

    def mark_as_waiting(self) -> None:
        """Mark all further attempts as retries. The same replica may have sent a newer fetch in the meantime."""
        if self._is_replica:
            self._wanted = [_Wanted(*it[:3], it.reader.again()) for it in self._wanted]

    def attempt(self) -> Response | None:
        """The answer, or None if it must wait longer."""
        response = self.gather()
        return response if self.is_enough(response) else None

    def is_enough(self, response: FetchResponse) -> bool:
        """Whether the answer need not wait: it has enough bytes, an error, a diverging epoch, or no partitions."""
        # A minimum above the limit can never be reached, so the limit is enough.
        return not response.responses or has_enough(response, min(self._bytes_min, self._bytes_max))

    def gather(self) -> FetchResponse:
        """The answer with the records that the logs hold now."""
        # Read the partitions in the order of the request. The bytes of each are subtracted from the total limit.
        # Only the first partition that has records may exceed the limits.
        bytes_left, is_first = self._bytes_max, self._may_exceed
        endpoints: dict[int, NodeEndpoint] = {}
        topics: list[FetchableTopicResponse] = []
        for it in self._wanted:
            data = self._read(it, bytes_left, is_first, endpoints)
            count = record_bytes(data)
            if count:
                bytes_left, is_first = max(bytes_left - count, 0), False
            # Consecutive partitions of one topic share an entry.
            if not topics or (topics[-1].topic, topics[-1].topic_id) != (it.topic or "", it.topic_id):
                topics.append(FetchableTopicResponse(topic=it.topic or "", topic_id=it.topic_id, partitions=[]))
            topics[-1].partitions.append(data)
        return FetchResponse(responses=topics, session_id=NO_SESSION, node_endpoints=list(endpoints.values()))

    def slices(self) -> Iterator[FetchResponse]:
        """The same answer in parts, each with some of the partitions."""
        part = copy.copy(self)
        for start in range(0, len(self._wanted), PARTITIONS_PER_TURN):
            part._wanted = self._wanted[start : start + PARTITIONS_PER_TURN]
            found = part.gather()
            count = sum(record_bytes(it) for topic in found.responses for it in topic.partitions)
            if count:
                part._bytes_max, part._may_exceed = max(part._bytes_max - count, 0), False
            yield found

    def _read(self, it: _Wanted, bytes_left: int, is_first: bool, endpoints: dict[int, NodeEndpoint]) -> PartitionData:
        data = PartitionData(
            partition_index=it.wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        try:
            if it.topic is None:
                message = f"no topic has the id {uuid_text(it.topic_id)}: it was deleted, or never existed"
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, message)
            partition = self._routes.partition(it.topic, it.wanted.partition)
            partition.check_leader(it.wanted.current_leader_epoch)
            self._fill(data, partition, it, bytes_left, is_first)
            # Read the offsets after the records: a read by a follower may have moved the high watermark.
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
            data.log_start_offset = partition.log_start_offset
        except Refused as refused:
            data.error_code = refused.code
            # A consumer whose offset is out of range may begin again at the log's start. But a leader that was deposed
            # and does not know it may have a log that ends before that offset. So check that this node still leads.
            if refused.code is ErrorCode.OFFSET_OUT_OF_RANGE and not self._is_replica:
                self._check_leading()
            if it.topic is not None and refused.code in WRONG_NODE:
                self._hint(data, TopicPartition(it.topic, it.wanted.partition), endpoints)
        return data

    def _fill(self, data: PartitionData, partition: Partition, it: _Wanted, bytes_left: int, is_first: bool) -> None:
        wanted = it.wanted
        # A follower whose log diverges gets the diverging epoch and no records (chapter 04).
        if wanted.last_fetched_epoch != NO_LEADER_EPOCH:
            diverging = partition.diverging_epoch(wanted.fetch_offset, last_fetched_epoch=wanted.last_fetched_epoch)
            if diverging is not None:
                data.diverging_epoch = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
                return
        # The limit is the partition's own, or the rest of the total limit if that is smaller.
        bytes_max = min(max(wanted.partition_max_bytes, 0), bytes_left)
        records = partition.read(wanted.fetch_offset, bytes_max=bytes_max, reader=it.reader)
        if not is_first and records.count > bytes_max:
            # A partition returns its first batch whole, even above the limit. If another partition already has records
            # in this answer, the batch is omitted. It is not cut off, because the Java client would conclude that the
            # batch can never fit.
            records.count = 0
        data.records = records
        # A read_committed consumer gets the aborted transactions, whose records it skips (chapter 06).
        if it.reader.is_committed_only:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in partition.aborted(wanted.fetch_offset, records)
            ]

    def _hint(self, data: PartitionData, name: TopicPartition, endpoints: dict[int, NodeEndpoint]) -> None:
        leader = self._routes.leader(name, self._listener) if self._version >= 12 else None
        if leader is None:
            return
        data.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.leader_epoch)
        if self._version >= LEADER_HINTS_FROM_VERSION:
            endpoints[leader.node_id] = NodeEndpoint(
                node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack
            )


class _LongFetch:
    """A request for very many partitions. Each turn of the event loop reads some of them.

    If there are too few bytes, it begins again when one of its partitions has changed, or when its time is over.
    """

    def __init__(self, fetch: _Fetch, clock: Callable[[], int], *, max_wait_ms: int) -> None:
        self._fetch = fetch
        self._clock = clock
        self._deadline_ms = clock() + max_wait_ms
        self._turn = Turn()
        self._is_changed = True
        self._begin()

    def _begin(self) -> None:
        self._slices = self._fetch.slices()
        self._found: list[FetchResponse] = []

    def wait(self) -> Wait[Response]:
        """The wait for the answer."""
        keys = (self._turn, *self._fetch.keys)
        return Wait(keys, _NO_TIMEOUT_MS, attempt=self._attempt, expire=self._fetch.gather)

    def _attempt(self) -> Response | None:
        if not self._turn.is_due:
            self._is_changed = True
            return None
        self._turn.is_due = False
        is_late = self._clock() >= self._deadline_ms
        # After a whole round without enough bytes there is nothing to do, until a partition has changed.
        self._turn.is_pausing = not (self._found or self._is_changed or is_late)
        if self._turn.is_pausing:
            return None
        if not self._found:
            self._is_changed = False
        part = next(self._slices, None)
        if part is not None:
            self._found.append(part)
            return None
        response = _joined(self._found)
        if is_late or self._fetch.is_enough(response):
            return response
        self._fetch.mark_as_waiting()
        self._begin()
        return None


def _joined(parts: Sequence[FetchResponse]) -> FetchResponse:
    endpoints = {it.node_id: it for part in parts for it in part.node_endpoints}
    topics = [topic for part in parts for topic in part.responses]
    return FetchResponse(responses=topics, session_id=NO_SESSION, node_endpoints=list(endpoints.values()))


def has_enough(response: FetchResponse, bytes_min: int) -> bool:
    """Whether an answer has this many bytes, an error, or a diverging epoch."""
    count = 0
    for topic in response.responses:
        for it in topic.partitions:
            if it.error_code or it.diverging_epoch.epoch >= 0:
                return True
            count += record_bytes(it)
    return count >= bytes_min


def record_bytes(data: PartitionData) -> int:
    """The bytes of the records of a partition in an answer."""
    records = data.records
    return records.count if isinstance(records, FileSlice) else len(records or b"")
