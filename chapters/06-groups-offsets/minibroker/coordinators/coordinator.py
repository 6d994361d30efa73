"""The coordinator of one partition: it loads a shard, appends its records, and answers when these are replicated.

    request ──▶ shard ──▶ Step ── records ──▶ applied, and collected ──▶ one batch for each pass of the event loop
                           └──── replies ──▶ queue ──▶ sent when the high watermark has passed all records before them

A reply waits for all records that were applied before it, not only for its own, because it may depend on them. Only the
coordinator writes to the partition, so the offset of a record is known before the record is appended.

The same driver runs the groups of a partition of `__consumer_offsets` and the transactions of one of
`__transaction_state`: the shard is a parameter.

If the log refuses a batch, the shard has applied records that are not in the log. So the shard is loaded again.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from minibroker.coordinators.appending import Collected, code_for_client, encoded
from minibroker.coordinators.loading import replay
from minibroker.coordinators.sharding import LogSettings, StateShard, StateStep
from minibroker.coordinators.tickets import NEVER_MS, Ticket, tell
from minibroker.groups.records import CorruptRecord
from minibroker.groups.steps import Reply
from minibroker.groups.tables.heartbeat import HeartbeatResponse
from minibroker.log.compression import Compression
from minibroker.log.errors import LogError
from minibroker.metadata.image import Image
from minibroker.partitions.admission import Origin
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, LocalPartition
from minibroker.partitions.waiting import Wait, Waiting
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

log = logging.getLogger(__name__)

S = TypeVar("S", bound=StateShard)
Made = TypeVar("Made", bound=StateShard, covariant=True)
Event = Callable[[S, int], StateStep]
"""A request as a function: it gets the shard and the time in ms, and returns the step."""

_SLICE_S = 0.01  # how long one slice of loading may block the event loop
_DONE = HeartbeatResponse()  # ends the wait for the high watermark; no client gets this response


class Surroundings(Protocol[Made]):
    """The clocks, settings, timer and tasks that all coordinators of a node share."""

    waiting: Waiting[Response]
    turn: asyncio.Lock
    """Held while a coordinator loads a slice, so that only one of them blocks the event loop at a time."""

    def now_ms(self) -> int:
        """The time for time limits and for commits. It is not affected when the system clock is set."""

    def wall_clock_ms(self) -> int:
        """The time for the timestamps of records."""

    def new_shard(self) -> Made:
        """An empty shard with the current metadata."""

    def settings(self) -> LogSettings:
        """The configuration of the broker."""

    def soon(self, work: Callable[[], None]) -> None:
        """Call a function in the next pass of the event loop."""

    def on_deadline(self, deadline_ms: int | None) -> None:
        """Call `on_time` at this time, or earlier."""

    def on_ended(self, task: asyncio.Task[None]) -> None:
        """Called when a task has ended. If it failed, the node ends."""


class State(enum.Enum):
    """The state of a coordinator. Only an active one answers; `_CODES` has the error codes for the other states."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    RESIGNED = "resigned"


_CODES = {
    State.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    State.ACTIVE: ErrorCode.NONE,
    State.FAILED: ErrorCode.NOT_COORDINATOR,
    State.RESIGNED: ErrorCode.NOT_COORDINATOR,
}


class _Queued(NamedTuple):
    """A reply that waits until the high watermark reaches `offset`."""

    offset: int
    deadline_ms: int
    reply: Reply


class _Early(NamedTuple, Generic[S]):
    """A request that waits until the state is loaded."""

    deadline_ms: int
    ticket: Ticket
    event: Event[S]


class Coordinator(Generic[S]):
    """The coordinator of one partition, for as long as this node leads the partition."""

    def __init__(
        self,
        partition: LocalPartition,
        around: Surroundings[S],
        on_replicated: Callable[["Coordinator[S]", int], None] | None = None,
    ) -> None:
        """`on_replicated` is called with the high watermark when it may have moved, and after loading."""
        self.name = partition.name
        self._partition = partition
        self._around = around
        self.shard = around.new_shard()
        self._state = State.LOADING
        self._tickets: set[Ticket] = set()
        """The requests without an answer."""
        self._early: deque[_Early[S]] = deque()
        self._queue: deque[_Queued] = deque()
        self._collected = Collected()
        self._on_replicated = on_replicated
        self._next_offset = 0
        self._is_flush_due = False
        self._image_at_load = self.shard.image
        self._parked = around.waiting.park(
            Wait((self.name,), NEVER_MS, attempt=self._on_watermark, expire=self._on_end),
            lambda _response: None,
            now_ms=around.now_ms(),
        )
        self._begin_load()

    @property
    def code(self) -> ErrorCode:
        """NONE if the coordinator is active, otherwise the error code for clients."""
        return _CODES[self._state]

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this node leads the partition."""
        return self._partition.leader_epoch

    # Loading ----------------------------------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        self._state = State.LOADING
        self._image_at_load = self.shard.image
        self._loading = asyncio.get_running_loop().create_task(self._load())
        self._loading.add_done_callback(self._around.on_ended)

    async def _load(self) -> None:
        loop, around = asyncio.get_running_loop(), self._around
        started_s = loop.time()
        steps = replay(self._partition.log, self.shard, bytes_max=around.settings().load_buffer_size)
        is_done = False
        try:
            while not is_done:
                async with around.turn:
                    until_s = loop.time() + _SLICE_S
                    while not is_done and loop.time() < until_s:
                        is_done = next(steps, steps) is steps
                    await asyncio.sleep(0)
        except (CorruptRecord, LogError, OSError) as error:
            self._state = State.FAILED
            message = "%s could not be loaded, so there is no coordinator for it until another node leads it: %s"
            log.error(message, self.name.directory, error)
            self._refuse_all(ErrorCode.NOT_COORDINATOR)
            around.waiting.settle()
            return
        self._on_loaded(loop.time() - started_s)

    def _on_loaded(self, seconds: float) -> None:
        self._next_offset = self._partition.log_end_offset
        self._state = State.ACTIVE
        shard, now_ms = self.shard, self._around.now_ms()
        shard.on_loaded(now_ms)
        if self._next_offset:
            log.info("%s is loaded: %s, in %.3f s", self.name.directory, shard.summary, seconds)
        # Topics may have been deleted while the shard was loaded.
        self.perform(shard.on_image(self._image_at_load, shard.image))
        early, self._early = self._early, deque()
        self.perform(it.event(shard, now_ms) for it in early)
        self._on_watermark()
        self._around.on_deadline(self.deadline_ms())
        self._around.waiting.settle()

    # Events -----------------------------------------------------------------------------------------------------------

    def handle(self, ticket: Ticket, event: Event[S], *, may_wait: bool = True) -> None:
        """Pass a request to the shard. The answer completes the ticket, now or later."""
        now_ms = self._around.now_ms()
        if self._state is State.LOADING and may_wait:
            # The request waits until the state is loaded. If it were refused with COORDINATOR_LOAD_IN_PROGRESS,
            # librdkafka would give a commit up after three attempts within a third of a second.
            self._tickets.add(ticket)
            self._early.append(_Early(now_ms + self._around.settings().append_timeout_ms, ticket, event))
        elif self.code is not ErrorCode.NONE:
            ticket.complete(self.code)
        else:
            self._tickets.add(ticket)
            self._perform(event(self.shard, now_ms))
        self._around.on_deadline(self.deadline_ms())

    def on_image(self, old: Image, new: Image) -> None:
        """Pass a change of the metadata to the shard."""
        if self._state is State.ACTIVE:
            self.perform(self.shard.on_image(old, new))
        else:
            self.shard.image = new

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None."""
        times = [waiting[0].deadline_ms for waiting in (self._early, self._queue) if waiting]
        of_shard = self.shard.deadline_ms() if self._state is State.ACTIVE else None
        return min(times if of_shard is None else [*times, of_shard], default=None)

    def on_time(self, now_ms: int) -> None:
        """Act on all time limits that have ended."""
        while self._early and self._early[0].deadline_ms <= now_ms:
            self._answer(Reply(self._early.popleft().ticket, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        while self._queue and self._queue[0].deadline_ms <= now_ms:
            # The records are in the log and may still be replicated. The client must retry.
            self._answer(Reply(self._queue.popleft().reply.ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if self._state is State.ACTIVE:
            self.perform(self.shard.on_time(now_ms))

    # Steps ------------------------------------------------------------------------------------------------------------

    def perform(self, steps: Iterable[StateStep]) -> None:
        """Append and apply the records of steps, and queue their replies. Each step sees the effect of those before."""
        for step in steps:
            self._perform(step)

    def _perform(self, step: StateStep) -> None:
        if step.records or step.marker is not None:
            code = self._append(step)
            if code is not ErrorCode.NONE:
                step = step.refused(code)
        for reply in step.replies:
            self._queue_reply(reply)

    def _append(self, step: StateStep) -> ErrorCode:
        """Collect and apply the records of a step, or return the error with which the log would refuse them."""
        try:
            self._partition.check_leader()
            self._partition.replica.check_in_sync()
        except Refused as refused:
            return code_for_client(refused.code)
        found = (self.shard.encode(record) for record in step.records)
        records = encoded(found, bytes_max=self._partition.config.max_message_bytes)
        if records is None:
            return code_for_client(ErrorCode.MESSAGE_TOO_LARGE)
        self._collected.add(records, step.producer)
        now_ms = self._around.now_ms()
        for record in step.records:
            self.shard.apply(record, self._next_offset, now_ms, step.producer)
            self._next_offset += 1
        if step.marker is not None:
            self._collected.add_batch(step.marker.batch)
            self.shard.apply_marker(step.marker.producer, is_commit=step.marker.is_commit)
            self._next_offset += 1
        if not self._is_flush_due:
            self._is_flush_due = True
            self._around.soon(self._flush)
        return ErrorCode.NONE

    def _flush(self) -> None:
        """Append all records that were collected in this pass of the event loop."""
        self._is_flush_due = False
        collected, self._collected = self._collected, Collected()
        if not collected:
            return
        around = self._around
        now_ms = around.wall_clock_ms()
        try:
            for batch in collected.batches(
                bytes_max=self._partition.config.max_message_bytes,
                timestamp=now_ms,
                compression=Compression(around.settings().compression_codec),
            ):
                self._partition.append(memoryview(batch), acks=ACKS_ALL, now_ms=now_ms, origin=Origin.COORDINATOR)
            end_offset = self._partition.log_end_offset
            assert end_offset == self._next_offset, f"{self.name.directory} ends at {end_offset}: it has another writer"
        except Refused as refused:
            self._load_again(refused)
        around.waiting.settle()

    def _load_again(self, refused: Refused) -> None:
        log.warning("%s refused a batch, so its state is loaded again: %s", self.name.directory, refused)
        self._refuse_all(code_for_client(refused.code))
        self.shard = self._around.new_shard()
        self._begin_load()

    # Replies ----------------------------------------------------------------------------------------------------------

    def _queue_reply(self, reply: Reply) -> None:
        if not self._queue and self._next_offset <= self._partition.high_watermark:
            self._answer(reply)
            return
        deadline_ms = self._around.now_ms() + self._around.settings().append_timeout_ms
        self._queue.append(_Queued(self._next_offset, deadline_ms, reply))

    def _on_watermark(self) -> Response | None:
        """Send the replies whose records are replicated, because the high watermark may have moved."""
        high_watermark = self._partition.high_watermark
        while self._queue and self._queue[0].offset <= high_watermark:
            self._answer(self._queue.popleft().reply)
        if self._on_replicated is not None and self._state is State.ACTIVE:
            self._on_replicated(self, high_watermark)
        return None

    def _answer(self, reply: Reply) -> None:
        assert isinstance(reply.ticket, Ticket)
        self._tickets.discard(reply.ticket)
        tell(self._around.waiting, reply.ticket, reply.response)

    def refuse_waiting(self, code: ErrorCode) -> None:
        """Answer all waiting requests with `code`. The shard stays as it is, as if their clients had disconnected."""
        self._early.clear()
        tickets, self._tickets = self._tickets, set()
        for ticket in tickets:
            tell(self._around.waiting, ticket, code)

    def _refuse_all(self, code: ErrorCode) -> None:
        self._queue.clear()
        self._collected = Collected()
        self.refuse_waiting(code)

    # Ending -----------------------------------------------------------------------------------------------------------

    def resign(self) -> None:
        """Stop, because this node no longer leads the partition. Waiting requests get NOT_COORDINATOR."""
        self._state = State.RESIGNED
        self._loading.cancel()
        self._around.waiting.forget(self._parked)
        self._refuse_all(ErrorCode.NOT_COORDINATOR)

    def _on_end(self) -> Response:
        """Answer all waiting requests, because the node stops."""
        self.resign()
        return _DONE
