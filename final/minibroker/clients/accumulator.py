"""Collects records into batches, numbers the batches, and decides when each is sent or resent. A pure module.

The batches of a partition go through these states:

    queue ──▶ in flight ──▶ done
                │    ▲
                ▼    │
               waiting          numbered batches that failed and will be sent again

These rules keep the records in order, and write each of them exactly once:

1. Batches leave `waiting` and `queue` in the order of their records, `waiting` first.
2. After a failure nothing of that partition is sent until everything in flight has been answered or lost.
3. A batch keeps its sequence number as long as it may have been written, so a broker recognises a second copy.
4. If a broker refuses a batch as out of sequence, and no numbered batch is before it, then neither this batch nor any
   after it was written. So the epoch rises, and the remaining batches are numbered from 0 again. A late copy of an
   expired batch has the old epoch and is refused (KIP-360). But if the connection was lost while a batch was in
   flight, a copy of it may still arrive before any batch of the new epoch. Such a batch fails, because under another
   number it could be written twice.
5. The first batch of an epoch is sent alone: a broker that does not know a producer accepts any number, so two batches
   in flight could be written in the wrong order.
6. No batch is sent while the fifth batch before it is not acknowledged. A broker recognises only copies of the last
   five batches. It would refuse a copy of an older one as out of sequence, although the batch was written.
7. Without idempotence one batch of a partition is in flight at a time.
8. In a transaction the first record that fails makes all others fail, because the transaction can only be aborted.
   The coordinator raises the epoch then, so rule 4 does not apply.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.client.errors import BrokerError, ClientError
from minibroker.clients.batching import ANONYMOUS, RECORD_BYTES_MAX, Delivery, Identity, ProducerBatch
from minibroker.clients.errors import BufferFull, DeliveryInDoubt, DeliveryTimedOut, InvalidSetting, RecordTooLarge
from minibroker.clients.retries import RetryPolicy
from minibroker.clients.routing import Effect, effect_of
from minibroker.log.batch import HEADER_SIZE, NO_OFFSET, TRANSACTIONAL_BIT
from minibroker.log.compression import Compression
from minibroker.log.record import Header
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
IN_FLIGHT_MAX = 5  # a broker remembers the last five batches of a producer
EPOCH_MAX = 32767
SEQUENCE_MASK = 0x7FFFFFFF

# If a broker answers with one of these codes, the records are in the log.
WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Kafka's settings for producers, with its defaults."""

    acks: int = ACKS_ALL
    idempotence: bool = True
    linger_ms: float = 5
    batch_size: int = 16_384
    compression: Compression = Compression.NONE
    buffer_memory: int = 32 * 1024 * 1024
    max_request_size: int = 1024 * 1024
    max_in_flight: int = IN_FLIGHT_MAX
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    transactional_id: str | None = None

    def __post_init__(self) -> None:
        if self.transactional_id is not None and not self.idempotence:
            raise InvalidSetting("a transactional producer needs idempotence: set acks=-1, and leave idempotence out")
        if self.acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise InvalidSetting(f"acks={self.acks} is not possible: set 0, 1 or -1 (all)")
        if self.idempotence and self.acks != ACKS_ALL:
            raise InvalidSetting(f"idempotence needs acks=-1 (all), not {self.acks}: set acks=-1, or idempotence=False")
        bound = IN_FLIGHT_MAX if self.idempotence else 1000
        if not 1 <= self.max_in_flight <= bound:
            why = f", because a broker recognises only a producer's last {bound} batches" if self.idempotence else ""
            raise InvalidSetting(f"max_in_flight={self.max_in_flight} is not possible: choose 1 to {bound}{why}")
        if self.batch_size < 1 or self.buffer_memory < self.batch_size:
            raise InvalidSetting(f"batch_size={self.batch_size} does not fit in buffer_memory={self.buffer_memory}")

    @property
    def attributes(self) -> int:
        """The attributes of every batch: its codec, and whether it belongs to a transaction."""
        return self.compression | (0 if self.transactional_id is None else TRANSACTIONAL_BIT)


class Send(NamedTuple):
    """A request to one node, with at most one batch of each partition."""

    node_id: int
    batches: list[ProducerBatch]


class Drained(NamedTuple):
    """The requests to send now, and the topics whose batches wait for a leader."""

    sends: list[Send]
    topics_without_leader: set[str]


class Answer(NamedTuple):
    """The answer of a broker for one batch."""

    code: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    message: str | None = None


@dataclass(slots=True, eq=False)
class Stream:
    """The batches of one partition that are not done."""

    queue: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    waiting: list[ProducerBatch] = field(default_factory=list)
    identity: Identity | None = None
    next_sequence: int = 0
    next_place: int = 0
    is_held: bool = False  # a batch failed: send no other while any is in flight (rule 2)
    needs_epoch: bool = False  # a broker refused a batch as out of sequence, and it was not written (rule 4)
    is_proven: bool = False  # a batch of this epoch was acknowledged (rule 5)

    @property
    def is_idle(self) -> bool:
        """Whether no batch is left."""
        return not (self.queue or self.in_flight or self.waiting)

    def batches(self) -> Iterator[ProducerBatch]:
        """All batches that are not done, and the batches that failed or expired while in flight."""
        yield from self.in_flight
        yield from self.waiting
        yield from self.queue

    def oldest(self) -> Iterator[ProducerBatch]:
        """The candidates for the oldest batch: those in flight, and the first of `waiting` and of `queue`."""
        yield from (batch for batch in self.in_flight if not batch.is_done)
        yield from self.waiting[:1]
        if self.queue:
            yield self.queue[0]

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """The batches that are not done and past their deadline."""
        if all(batch.deadline_ms > now_ms for batch in self.oldest()):
            return []
        return [batch for batch in self.batches() if batch.deadline_ms <= now_ms and not batch.is_done]

    @property
    def window(self) -> int:
        """The number of batches from the oldest unacknowledged one to the newest that was numbered."""
        places = [batch.place for batch in (*self.in_flight, *self.waiting)]
        return self.next_place - min(places, default=self.next_place)

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether no numbered batch comes before this one."""
        return all(batch.order <= other.order for other in (*self.in_flight, *self.waiting))


class Accumulator:
    """The batches of all partitions of one producer. Times are milliseconds of any monotonic clock."""

    def __init__(self, config: ProducerConfig, chance: Callable[[], float] = lambda: 0.5) -> None:
        self._config = config
        self._chance = chance
        self._streams: dict[tuple[str, int], Stream] = {}
        self._active: dict[tuple[str, int], Stream] = {}
        self._requests: dict[int, int] = {}
        self._next_order = 0
        self._flush_before = 0
        self._identity: Identity | None = None if config.idempotence else ANONYMOUS
        self._finished: list[ProducerBatch] = []
        self._admitted: set[tuple[str, int]] | None = None
        self.failure: ClientError | None = None  # why the transaction can only be aborted
        self.filled: list[tuple[str, int]] = []
        self.buffered_bytes = 0
        # Counts the batches that were begun or closed. No other event can make a batch due earlier than expected.
        self.changes = 0

    # Records in -----------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        now_ms: float,
        headers: Sequence[Header] = (),
    ) -> Delivery:
        """Add a record to the open batch of its partition, or to a new one."""
        size = RECORD_BYTES_MAX + len(key or b"") + len(value or b"")
        if headers:
            size += sum(10 + 4 * len(name) + len(data or b"") for name, data in headers)
        stream = self._streams.get((topic, partition))
        if stream is None:
            stream = self._streams[topic, partition] = Stream()
        batch = stream.queue[-1] if stream.queue else None
        if batch is None or batch.is_closed or batch.size + size > self._config.batch_size:
            batch = self._begin(stream, topic, partition, size, now_ms)
        self._check_memory(size)
        before = batch.size
        delivery = batch.append(timestamp=timestamp, key=key, value=value, headers=headers)
        # `size` was an upper bound. Now the real size is known. Close the batch if another record of this size would
        # not fit.
        taken = batch.size - before
        self.buffered_bytes += taken
        if batch.size + taken > self._config.batch_size:
            self._close(batch)
        return delivery

    def _begin(self, stream: Stream, topic: str, partition: int, size: int, now_ms: float) -> ProducerBatch:
        config = self._config
        if HEADER_SIZE + size > config.max_request_size:
            raise RecordTooLarge(
                f"a record of about {size} bytes for {topic}-{partition} does not fit in a request of"
                f" {config.max_request_size} bytes: raise max_request_size, and the topic's max.message.bytes"
            )
        self._check_memory(HEADER_SIZE + size)
        self.buffered_bytes += HEADER_SIZE
        if stream.queue:
            self._close(stream.queue[-1])
        batch = ProducerBatch(
            topic,
            partition,
            order=self._next_order,
            ready_ms=now_ms + config.linger_ms,
            deadline_ms=now_ms + config.delivery_timeout_ms,
        )
        self._next_order += 1
        self.changes += 1
        stream.queue.append(batch)
        self._active[topic, partition] = stream
        return batch

    def _check_memory(self, size: int) -> None:
        bound = self._config.buffer_memory
        if self.buffered_bytes + size > bound:
            raise BufferFull(
                f"{self.buffered_bytes} of {bound} bytes are used by records that are not acknowledged yet: wait, or"
                " raise buffer_memory"
            )

    def _close(self, batch: ProducerBatch) -> None:
        if not batch.is_closed:
            batch.is_closed = True
            self.changes += 1
            self.filled.append((batch.topic, batch.partition))

    def take_filled(self) -> list[tuple[str, int]]:
        """The partitions whose batch was closed since the last call, for a sticky partitioner."""
        filled, self.filled = self.filled, []
        return filled

    def flush(self) -> None:
        """Send every record added so far without lingering."""
        self._flush_before = self._next_order

    # The producer id --------------------------------------------------------------------------------------------------

    @property
    def needs_producer_id(self) -> bool:
        """Whether batches wait for a producer id."""
        return self._identity is None and bool(self._active)

    def on_producer_id(self, *, producer_id: int, producer_epoch: int) -> None:
        """Use this producer id and epoch for new batches."""
        self._identity = Identity(producer_id=producer_id, producer_epoch=producer_epoch)

    # Transactions -----------------------------------------------------------------------------------------------------

    def begin_transaction(self, identity: Identity, *, is_gated: bool) -> None:
        """Begin a transaction under this identity. If `is_gated`, a partition's batches wait for `admit`."""
        assert self.is_settled, "the batches of one transaction are done before the next begins"
        if identity is not self._identity:
            # A new epoch begins with sequence 0 in every partition.
            self._identity = identity
            self._streams.clear()
        self._admitted = set() if is_gated else None
        self.failure = None

    @property
    def unadmitted(self) -> list[tuple[str, int]]:
        """The partitions whose batches wait until the partition is in the transaction."""
        return [] if self._admitted is None else [key for key in self._active if key not in self._admitted]

    @property
    def has_admitted(self) -> bool:
        """Whether the coordinator knows of a partition of the transaction, or may know of one."""
        return self._admitted is None or bool(self._admitted)

    def admit(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Allow sending the batches of these partitions, because the partitions are in the transaction."""
        if self._admitted is not None:
            self._admitted.update(partitions)

    def fail_transaction(self, error: ClientError) -> None:
        """Fail every record that is not done, because the transaction can only be aborted."""
        if self.failure is None:
            self.failure = error
            self.give_up(error)

    @property
    def is_settled(self) -> bool:
        """Whether no batch is left, and every request was answered or lost."""
        return not self._active and not any(self._requests.values())

    # Batches out ----------------------------------------------------------------------------------------------------

    def drain(self, now_ms: float, leader_of: Callable[[str, int], int | None]) -> Drained:
        """Take the batches that can be sent now, grouped by leader."""
        self._expire(now_ms)
        sends: dict[int, Send] = {}
        sizes: dict[int, int] = {}
        without: set[str] = set()
        # A partition whose batch was taken goes to the end, so that a full request does not always leave out the same
        # partitions.
        for (topic, partition), stream in list(self._active.items()):
            batch = self._next(stream, now_ms)
            if batch is None or (self._admitted is not None and (topic, partition) not in self._admitted):
                continue
            node_id = leader_of(topic, partition)
            if node_id is None:
                without.add(topic)
                continue
            size = sizes.get(node_id, 0) + batch.size
            is_busy = self._requests.get(node_id, 0) >= self._config.max_in_flight
            if is_busy or (node_id in sends and size > self._config.max_request_size):
                continue
            sends.setdefault(node_id, Send(node_id, [])).batches.append(batch)
            sizes[node_id] = size
            self._take(stream, batch)
            self._active[topic, partition] = self._active.pop((topic, partition))
        for node_id in sends:
            self._requests[node_id] = self._requests.get(node_id, 0) + 1
        return Drained(list(sends.values()), without)

    def _next(self, stream: Stream, now_ms: float) -> ProducerBatch | None:
        if stream.is_held and not stream.in_flight:
            self._release(stream)
        if stream.is_held or not self._may_send(stream):
            return None
        if stream.waiting:
            return stream.waiting[0] if stream.waiting[0].not_before_ms <= now_ms else None
        if stream.queue and self._is_ready(stream, stream.queue[0], now_ms):
            return stream.queue[0]
        return None

    def _may_send(self, stream: Stream) -> bool:
        if stream.identity is None and self._identity is None:
            return False
        # The `if` enforces rules 5 and 7. The last line enforces rule 6, which applies only to batches that were never
        # sent.
        if not self._config.idempotence or not stream.is_proven:
            return not stream.in_flight
        return bool(stream.waiting) or stream.window < self._config.max_in_flight

    def _is_ready(self, stream: Stream, batch: ProducerBatch, now_ms: float) -> bool:
        return (
            batch.is_closed
            or len(stream.queue) > 1
            or batch.ready_ms <= now_ms
            or batch.order < self._flush_before
            or self._is_short_of_memory()
        )

    def _is_short_of_memory(self) -> bool:
        # A caller that waits for memory needs batches to be sent, so they must not linger.
        return self.buffered_bytes + self._config.max_request_size > self._config.buffer_memory

    def _take(self, stream: Stream, batch: ProducerBatch) -> None:
        if stream.waiting:
            stream.waiting.pop(0)
        else:
            stream.queue.popleft()
            batch.place = stream.next_place
            stream.next_place += 1
            self._close(batch)
            self._number(stream, batch)
        batch.attempts += 1
        stream.in_flight.append(batch)

    def _number(self, stream: Stream, batch: ProducerBatch) -> None:
        if not self._config.idempotence:
            return
        if stream.identity is None:
            assert self._identity is not None
            stream.identity = self._identity
        batch.number(stream.identity, stream.next_sequence)
        stream.next_sequence = (stream.next_sequence + batch.record_count) & SEQUENCE_MASK

    def _release(self, stream: Stream) -> None:
        """Allow sends again, because nothing is in flight. Begin a new epoch if one is needed."""
        stream.is_held = False
        if not stream.needs_epoch:
            return
        if stream.identity is not None and not self._begin_epoch(stream, stream.identity):
            stream.is_held = True
            return
        stream.needs_epoch = False
        doubtful = [batch for batch in stream.waiting if batch.was_lost]
        stream.waiting = [batch for batch in stream.waiting if not batch.was_lost]
        for batch in stream.waiting:
            self._number(stream, batch)
        for batch in doubtful:
            self._finish(batch, error=_in_doubt(batch))

    def _begin_epoch(self, stream: Stream, old: Identity) -> bool:
        if old.producer_epoch >= EPOCH_MAX:
            # This producer id has no epochs left; a broker must assign another id.
            if self._identity is not None and self._identity.producer_id == old.producer_id:
                self._identity = None
            if self._identity is None:
                return False
            stream.identity = self._identity
        else:
            stream.identity = Identity(producer_id=old.producer_id, producer_epoch=old.producer_epoch + 1)
        stream.next_sequence = 0
        stream.is_proven = False
        return True

    # Answers in -----------------------------------------------------------------------------------------------------

    def on_answers(self, send: Send, answers: Callable[[ProducerBatch], Answer], *, now_ms: float) -> None:
        """Process the answer to a request."""
        self._requests[send.node_id] -= 1
        for batch in send.batches:
            self._on_answer(batch, answers(batch), now_ms)

    def on_lost(self, send: Send, error: ClientError, *, now_ms: float) -> None:
        """Process the loss of a request, which may or may not have been carried out."""
        self._requests[send.node_id] -= 1
        for batch in send.batches:
            batch.was_lost = True
            self._retry(self._remove_from_flight(batch), batch, error, now_ms)

    def on_written(self, send: Send) -> None:
        """Finish a request with acks=0 after it was sent, because it gets no answer."""
        self._requests[send.node_id] -= 1
        for batch in send.batches:
            self._remove_from_flight(batch)
            self._finish(batch)

    def _remove_from_flight(self, batch: ProducerBatch) -> Stream:
        stream = self._streams[batch.topic, batch.partition]
        stream.in_flight.remove(batch)
        return stream

    def _on_answer(self, batch: ProducerBatch, answer: Answer, now_ms: float) -> None:
        stream = self._remove_from_flight(batch)
        if answer.code in WRITTEN:
            stream.is_proven = True
            self._finish(batch, answer)
            return
        error = BrokerError(answer.code, answer.message, about=f"{batch.topic}-{batch.partition}")
        if answer.code in OUT_OF_SEQUENCE and self._config.idempotence and not self._ends_transaction(stream, batch):
            # Rule 4. If another batch is before this one, only the outcome of that batch shows whether there is a gap.
            stream.needs_epoch = stream.needs_epoch or stream.is_first(batch)
            self._retry(stream, batch, error, now_ms)
        elif effect_of(answer.code) in (Effect.RETRY, Effect.REFRESH):
            self._retry(stream, batch, error, now_ms)
        else:
            self._finish(batch, error=error)

    def _ends_transaction(self, stream: Stream, batch: ProducerBatch) -> bool:
        """Rule 8: whether a gap before this batch is certain, and the transaction must be aborted."""
        return self._config.transactional_id is not None and stream.is_first(batch)

    def _retry(self, stream: Stream, batch: ProducerBatch, error: ClientError, now_ms: float) -> None:
        stream.is_held = True
        if batch.is_done or now_ms >= batch.deadline_ms:
            self._finish(batch, error=_too_late(batch, error, self._config.delivery_timeout_ms))
            return
        batch.cause = error
        batch.not_before_ms = now_ms + self._config.retry.delay_ms(batch.attempts, self._chance())
        stream.waiting.append(batch)
        stream.waiting.sort(key=lambda other: other.order)

    # The end of a batch ---------------------------------------------------------------------------------------------

    def _finish(self, batch: ProducerBatch, answer: Answer | None = None, *, error: ClientError | None = None) -> None:
        if not batch.is_done:
            base_offset, log_append_time_ms = (answer[1], answer[2]) if answer else (NO_OFFSET, -1)
            batch.finish(base_offset=base_offset, log_append_time_ms=log_append_time_ms, error=error)
            self.buffered_bytes -= batch.size
            self._finished.append(batch)
            if error is not None and self._config.transactional_id is not None:
                self.fail_transaction(error)
        key = batch.topic, batch.partition
        if self._streams[key].is_idle:
            self._active.pop(key, None)

    def _expire(self, now_ms: float) -> None:
        # A batch in flight stays in `in_flight` until it is answered or lost, because later batches must wait for it.
        for stream in list(self._active.values()):
            for batch in stream.expired(now_ms):
                if batch in stream.waiting:
                    stream.waiting.remove(batch)
                elif batch in stream.queue:
                    stream.queue.remove(batch)
                self._finish(batch, error=_too_late(batch, batch.cause, self._config.delivery_timeout_ms))

    def give_up(self, error: ClientError) -> None:
        """Fail every record that is not done, because the producer ends without waiting."""
        for stream in list(self._active.values()):
            for batch in list(stream.batches()):
                if not batch.is_done:
                    self._finish(batch, error=error)
            stream.queue.clear()
            stream.waiting.clear()
        self._active = {key: stream for key, stream in self._active.items() if not stream.is_idle}

    def take_finished(self) -> list[ProducerBatch]:
        """The batches that became done since the last call."""
        finished, self._finished = self._finished, []
        return finished

    # Open work --------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether every record is done."""
        return not any(True for stream in self._active.values() for _batch in stream.oldest())

    def has_before(self, order: int) -> bool:
        """Whether some batch with a lower number than `order` is not done."""
        return any(batch.order < order for stream in self._active.values() for batch in stream.oldest())

    @property
    def next_order(self) -> int:
        """The order number of the next batch. A flush waits for all batches with a lower number."""
        return self._next_order

    def due_ms(self, topic: str, partition: int) -> float | None:
        """The time at which the first queued batch of a partition is due; 0 means now.

        None means that no batch is queued, or that earlier batches must be sent or answered first.
        """
        stream = self._streams[topic, partition]
        if not stream.queue or stream.is_held or stream.waiting:
            return None
        first = stream.queue[0]
        return 0.0 if first.is_closed or self._is_short_of_memory() else first.ready_ms

    def wakeup_ms(self, after_ms: float) -> float | None:
        """The next time after `after_ms` at which a linger, a wait before an attempt, or a deadline ends.

        Earlier times are left out. A batch that was due by `after_ms` was drained then, or it waits for an answer, a
        leader or a producer id.
        """
        times: list[float] = []
        for stream in self._active.values():
            times += [batch.deadline_ms for batch in stream.oldest()]
            if stream.waiting:
                times.append(stream.waiting[0].not_before_ms)
            elif stream.queue:
                times.append(stream.queue[0].ready_ms)
        return min((at for at in times if at > after_ms), default=None)


def _too_late(batch: ProducerBatch, cause: ClientError | None, timeout_ms: int) -> ClientError:
    why = f"the last attempt failed with: {cause}" if cause else "no leader or no producer id was known"
    return DeliveryTimedOut(
        f"{batch.record_count} records for {batch.topic}-{batch.partition} were not acknowledged within"
        f" {timeout_ms} ms, after {batch.attempts} attempts; {why}"
    )


def _in_doubt(batch: ProducerBatch) -> ClientError:
    return DeliveryInDoubt(
        f"{batch.record_count} records for {batch.topic}-{batch.partition} may have been written or not: their"
        " connection was lost, and the batch before them is missing in the log. Read the log before you send them"
        " again, or they may be written twice"
    )


def produce_request(send: Send, config: ProducerConfig) -> ProduceRequest:
    """The request with these batches, grouped by topic. A batch that has not been sent yet is encoded now."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for batch in send.batches:
        data = PartitionProduceData(index=batch.partition, records=batch.encode(config.attributes))
        topics.setdefault(batch.topic, []).append(data)
    return ProduceRequest(
        transactional_id=config.transactional_id,
        acks=config.acks,
        timeout_ms=config.request_timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )
