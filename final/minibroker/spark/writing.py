"""The executor's half of the sink: encodes Arrow rows into batches, and sends each batch until it is acknowledged.

Delivery is at least once, with acks=all: a batch leaves its queue only when its leader has acknowledged it. A batch
whose connection broke is sent again, and may be in the log twice. Within one task the rows of a partition keep their
order, because only one batch of a partition is in flight at a time.

For exactly-once delivery a `Transaction` is passed in: batches then carry its producer id and sequences, so that a
batch that is sent again is in the log once. `exactly_once` has the other parts.
"""

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientError, ConnectionLost, RequestTimedOut
from minibroker.clients.accumulator import WRITTEN
from minibroker.clients.blocking import Client, Link
from minibroker.clients.coordination import Coordinator
from minibroker.clients.core import Dialogue
from minibroker.clients.errors import DeliveryTimedOut
from minibroker.clients.hints import hint_of, nodes_of
from minibroker.clients.routing import Effect
from minibroker.clients.transacting import Session, is_passing
from minibroker.log.clock import precise_ms
from minibroker.log.compression import Compression
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark import encoding
from minibroker.spark.connecting import cached_client, forget_client
from minibroker.spark.errors import ConnectorError, InvalidOption
from minibroker.spark.options import ClientSettings, WriteOptions
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

ACKS_ALL = -1
_AROUND_A_BATCH = 4096  # bytes for the other fields of a request, so that it stays below the broker's limit
QUEUED_BYTES_MAX = 8 * 1024 * 1024
"""The maximum bytes of encoded batches that a task queues before it waits for the brokers."""

_LOST = (BrokerUnavailable, ConnectionLost, RequestTimedOut)


class RowRefused(ConnectorError):
    """A row that cannot be written; the task fails, and so does every repetition of it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How batches are made and sent, with the defaults of Kafka's producer."""

    client: ClientSettings
    acks: int = ACKS_ALL
    compression: Compression = Compression.NONE
    batch_bytes_max: int = 1024 * 1024 - _AROUND_A_BATCH
    request_bytes_max: int = 4 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    transaction_timeout_ms: int = 60_000


_ACKS = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1}


def delivery_of(options: WriteOptions) -> Delivery:
    """Return the producer settings with the prefix `kafka.`; the error for an invalid value names the setting."""
    return Delivery(
        replace(options.client, timeout_ms=_whole(options, "request.timeout.ms", 30_000)),
        acks=_choice(options, "acks", _ACKS, ACKS_ALL),
        compression=_choice(options, "compression.type", {it.name.lower(): it for it in Compression}, Compression.NONE),
        batch_bytes_max=_whole(options, "max.request.size", 1024 * 1024, least=16 * 1024) - _AROUND_A_BATCH,
        delivery_timeout_ms=_whole(options, "delivery.timeout.ms", 120_000),
        transaction_timeout_ms=_whole(options, "transaction.timeout.ms", 60_000),
    )


def _choice(options: WriteOptions, name: str, choices: dict[str, Any], default: Any) -> Any:
    text = options.kafka.get(name)
    if text is not None and text.strip().lower() not in choices:
        raise InvalidOption(f"kafka.{name}: {text!r} is not one of {', '.join(choices)}")
    return default if text is None else choices[text.strip().lower()]


def _whole(options: WriteOptions, name: str, default: int, *, least: int = 1) -> int:
    text = options.kafka.get(name, str(default))
    if not text.strip().isdecimal() or int(text) < least:
        raise InvalidOption(f"kafka.{name}: {text!r} is not a whole number of {least} or more")
    return int(text)


class Written(NamedTuple):
    """The numbers of rows and bytes that a task wrote."""

    row_count: int
    byte_count: int


# Arrow to batches ---------------------------------------------------------------------------------------------------


def write(rows: Iterable[pa.RecordBatch], delivery: Delivery, *, topic: str | None) -> Written:
    """Write all rows of a task, and return when all are acknowledged; a given topic overrides the column."""
    client = cached_client(delivery.client)
    writing = Writing(client, delivery, topic=topic)
    try:
        for batch in rows:
            writing.add(batch)
        return writing.finish()
    except BaseException:
        # The client is closed, because otherwise the next task would receive the pending responses.
        forget_client(delivery.client)
        raise


class Writing:
    """Splits the rows of one task by topic and partition, encodes them, and puts them into the outbox."""

    def __init__(
        self, client: Client, delivery: Delivery, *, topic: str | None, transaction: "Transaction | None" = None
    ) -> None:
        self._delivery = delivery
        self._topic = topic
        self._transaction = transaction
        self._outbox = Outbox(client, delivery, transaction)
        self._sticky = random.randrange(1 << 30)
        self._row_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Encode some rows and send full requests."""
        now = time.time_ns() // 1_000_000
        for topic, chosen in by_topic(rows, self._topic):
            self._add_to(topic, chosen, now)
        # All rows of one call without a key go to one partition. The next call uses the next partition.
        self._sticky += 1
        self._row_count += rows.num_rows

    def _add_to(self, topic: str, rows: pa.RecordBatch, timestamp_ms: int) -> None:
        keys, values = binary(rows, "key"), binary(rows, "value")
        count = self._outbox.partition_count(topic)
        partitions = choose(keys, column(rows, "partition"), topic=topic, count=count, sticky=self._sticky % count)
        headers = column(rows, "headers")
        for partition, places in by_partition(partitions):
            row_count = rows.num_rows if places is None else len(places)
            for encoded in encoding.encode(
                keys if places is None else keys.take(places),
                values if places is None else values.take(places),
                headers if places is None or headers is None else headers.take(places),
                timestamp_ms=timestamp_ms,
                batch_bytes_max=self._delivery.batch_bytes_max,
                compression=self._delivery.compression,
                producer=self._producer(TopicPartition(topic, partition), row_count),
            ):
                self._outbox.put(topic, partition, encoded)

    def _producer(self, place: TopicPartition, row_count: int) -> encoding.Producer:
        transaction = self._transaction
        return encoding.NOT_IDEMPOTENT if transaction is None else transaction.numbered(place, row_count)

    def finish(self) -> Written:
        """Wait until all batches are acknowledged."""
        self._outbox.flush()
        return Written(self._row_count, self._outbox.byte_count)


def column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column; None if the rows do not have it."""
    place = rows.schema.get_field_index(name)
    return rows.column(place) if place >= 0 else None


def binary(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as bytes: strings as UTF-8, a missing column as nulls."""
    found = column(rows, name)
    if found is None:
        return pa.nulls(rows.num_rows, pa.binary())
    return found if found.type == pa.binary() else found.cast(pa.binary())


def by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order; a given topic gets all rows."""
    if topic is not None:
        if rows.num_rows:
            yield topic, rows
        return
    names = column(rows, "topic")
    assert names is not None, "the driver has checked that there is the option or the column"
    if names.null_count:
        raise RowRefused(
            f"null topic present in the data, in {names.null_count} of {rows.num_rows} rows: set the option topic"
        )
    distinct = names.unique().to_pylist()
    for name in distinct:
        yield str(name), rows if len(distinct) == 1 else rows.filter(pc.equal(names, name))


def choose(keys: pa.Array, given: pa.Array | None, *, topic: str, count: int, sticky: int) -> np.ndarray[Any, Any]:
    """Return the partition of each row: the one in its column, else by its key as in Kafka, else the sticky one."""
    chosen = encoding.partitions_of(keys, count)
    chosen[chosen < 0] = sticky
    if given is not None and given.null_count < len(given):
        named = given.is_valid().to_numpy(zero_copy_only=False)
        numbers = given.fill_null(0).to_numpy(zero_copy_only=False)
        _demand_partitions(numbers, topic=topic, count=count)
        chosen[named] = numbers[named]
    return chosen


def _demand_partitions(numbers: np.ndarray[Any, Any], *, topic: str, count: int) -> None:
    for wrong in numbers[(numbers < 0) | (numbers >= count)][:1]:
        raise RowRefused(f"topic {topic} has no partition {wrong}: its partitions are 0 to {count - 1}")


def by_partition(partitions: np.ndarray[Any, Any]) -> Iterator[tuple[int, pa.Array | None]]:
    """Yield each partition with the indexes of its rows, in their order; None instead of indexes means all rows."""
    if not len(partitions):
        return
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), None
        return
    order = np.argsort(partitions, kind="stable")
    sorted_ = partitions[order]
    cuts = np.flatnonzero(sorted_[1:] != sorted_[:-1]) + 1
    for places in np.split(order, cuts):
        yield int(partitions[places[0]]), pa.array(places)


# Batches to brokers -------------------------------------------------------------------------------------------------


class Transaction:
    """The transaction of one task: the numbers of its batches, and the partitions that it writes to."""

    def __init__(self, client: Client, session: Session, coordinator: Coordinator, *, timeout_ms: float) -> None:
        self._client = client
        self._session = session
        self._coordinator = coordinator
        self._timeout_ms = timeout_ms
        self._sequences: dict[TopicPartition, int] = {}
        self._admitted: set[TopicPartition] = set()

    @property
    def transactional_id(self) -> str:
        """The transactional id."""
        return self._session.transactional_id

    @property
    def version_max(self) -> int | None:
        """The highest version of Produce that may be used."""
        return self._session.produce_version_max

    @property
    def topics(self) -> set[str]:
        """The topics of all rows so far."""
        return {it.topic for it in self._sequences}

    def numbered(self, place: TopicPartition, row_count: int) -> encoding.Producer:
        """Return the header fields for the next rows of a partition."""
        first = self._sequences.get(place, 0)
        self._sequences[place] = (first + row_count) % encoding.SEQUENCES
        identity = self._session.identity
        return encoding.Producer(identity.producer_id, identity.producer_epoch, first, is_transactional=True)

    def admit(self, places: Iterable[TopicPartition]) -> None:
        """Add partitions to the transaction, unless the brokers do so by themselves."""
        new = set(places) - self._admitted
        if new and not self._session.has_own_epochs:
            self._client.run(self._add(new))
        self._admitted |= new

    def _add(self, places: set[TopicPartition]) -> Dialogue[None]:
        attempts = self._client.core.attempts(self._timeout_ms)
        while True:
            try:
                return (yield from self._session.add_partitions(self._coordinator, places))
            except ClientError as error:
                if not is_passing(error):
                    raise
                yield from self._client.core.pause_or_raise(attempts, error)


class Queue:
    """The batches of one partition that are not acknowledged yet; only the first may be in flight."""

    __slots__ = ("batches", "cause", "failures", "is_in_flight", "not_before_ms", "since_ms")

    def __init__(self) -> None:
        self.batches: deque[bytearray] = deque()
        self.is_in_flight = False
        self.failures = 0
        self.not_before_ms = 0.0
        self.since_ms = precise_ms()  # the earliest time at which the first batch could have been sent
        self.cause: ClientError | None = None


class Sent(NamedTuple):
    """A request without a response yet."""

    link: Link
    node_id: int
    correlation_id: int
    deadline_ms: float
    places: list[TopicPartition]


class Outbox:
    """Batches for any partitions, sent to their leaders until they are acknowledged. Only one thread may use it.

    Requests are in flight while the next rows are encoded. Meanwhile the client must send nothing else, because it
    would drop a response that it does not expect. So each method that needs the client first collects all responses.
    """

    def __init__(self, client: Client, delivery: Delivery, transaction: Transaction | None = None) -> None:
        self._client = client
        self._delivery = delivery
        self._transaction = transaction
        self._queues: dict[TopicPartition, Queue] = {}
        self._in_flight: list[Sent] = []
        self._queued_bytes = 0
        self.byte_count = 0

    def partition_count(self, topic: str) -> int:
        """Return the number of a topic's partitions; a missing topic is created, if the broker allows it."""
        core = self._client.core
        known = core.routes.topics.get(topic)
        if known and core.routes.is_known(topic, now_ms=precise_ms(), age_ms_max=core.config.metadata_max_age_ms):
            return len(known.partitions)
        self._collect()
        return self._client.partition_count(topic, allow_auto_topic_creation=True)

    def put(self, topic: str, partition: int, batch: bytearray) -> None:
        """Queue a batch; wait for the brokers only if too much is queued."""
        queue = self._queues.setdefault(TopicPartition(topic, partition), Queue())
        if not queue.batches:
            queue.since_ms = precise_ms()
        queue.batches.append(batch)
        self._queued_bytes += len(batch)
        self.byte_count += len(batch)
        if not self._in_flight and self._queued_bytes >= self._delivery.request_bytes_max:
            self._post()
        while self._queued_bytes >= QUEUED_BYTES_MAX:
            self._turn()

    def flush(self) -> None:
        """Return when every batch is acknowledged; raise if one is refused, or not acknowledged in time."""
        while self._queues:
            self._turn()

    def _turn(self) -> None:
        self._collect()
        self._post()
        if not self._in_flight and self._queues:
            self._rest()

    def _rest(self) -> None:
        wait_ms = min(queue.not_before_ms for queue in self._queues.values()) - precise_ms()
        time.sleep(max(0.0, wait_ms) / 1000)

    # Requests ---------------------------------------------------------------------------------------------------------

    def _post(self) -> None:
        """Send the first batch of each partition that is ready, in one request to each leader."""
        now = precise_ms()
        by_leader: dict[int, list[TopicPartition]] = {}
        for place, queue in self._queues.items():
            if queue.not_before_ms > now or queue.is_in_flight:
                continue
            self._demand_time(place, queue)
            leader = self._leader(place, queue)
            if leader is not None:
                by_leader.setdefault(leader, []).append(place)
        if self._transaction is not None:
            self._transaction.admit(place for places in by_leader.values() for place in places)
        # Open all connections before sending anything: opening one blocks, and may send a metadata request of its own.
        links = {node_id: self._link(node_id, places) for node_id, places in by_leader.items()}
        for node_id, link in links.items():
            if link is not None:
                self._send(link, node_id, self._fitting(by_leader[node_id]))

    def _leader(self, place: TopicPartition, queue: Queue) -> int | None:
        assert not self._in_flight, "a response would be lost"
        timeout_ms = queue.since_ms + self._delivery.delivery_timeout_ms - precise_ms()
        try:
            return self._client.run(self._client.core.leader(*place, timeout_ms=timeout_ms))
        except _LOST as error:
            self._put_off(place, error)
            return None

    def _link(self, node_id: int, places: list[TopicPartition]) -> Link | None:
        try:
            return self._client.link(node_id)
        except _LOST as error:
            self._lose(node_id, places, error)
            return None

    def _fitting(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Return as many partitions as fit in one request, at least one; the others wait for the next request."""
        size = 0
        fitting: list[TopicPartition] = []
        for place in places:
            size += len(self._queues[place].batches[0])
            if fitting and size > self._delivery.request_bytes_max:
                break
            fitting.append(place)
        return fitting

    def _send(self, link: Link, node_id: int, places: list[TopicPartition]) -> None:
        deadline_ms = precise_ms() + self._delivery.client.timeout_ms
        try:
            version_max = self._transaction.version_max if self._transaction else None
            correlation_id = link.send(self._request(places), deadline_ms=deadline_ms, version_max=version_max)
        except _LOST as error:
            self._client.drop(link.address)
            self._lose(node_id, places, error)
            return
        for place in places:
            self._queues[place].is_in_flight = True
        self._in_flight.append(Sent(link, node_id, correlation_id, deadline_ms, places))

    def _request(self, places: list[TopicPartition]) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = {}
        for place in places:
            data = PartitionProduceData(index=place.partition, records=self._queues[place].batches[0])
            topics.setdefault(place.topic, []).append(data)
        return ProduceRequest(
            transactional_id=self._transaction.transactional_id if self._transaction else None,
            acks=self._delivery.acks,
            timeout_ms=self._delivery.client.timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    # Responses---------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Wait for the responses to all requests in flight."""
        in_flight, self._in_flight = self._in_flight, []
        for sent in in_flight:
            for place in sent.places:
                self._queues[place].is_in_flight = False
            try:
                self._take(sent, self._answer(sent))
            except _LOST as error:
                self._client.drop(sent.link.address)
                self._lose(sent.node_id, sent.places, error)

    def _answer(self, sent: Sent) -> ProduceResponse:
        while True:
            for correlation_id, response in sent.link.receive(sent.deadline_ms):
                if correlation_id == sent.correlation_id:
                    assert isinstance(response, ProduceResponse)
                    return response

    def _take(self, sent: Sent, response: ProduceResponse) -> None:
        endpoints = nodes_of(response.node_endpoints)
        answers = {(topic.name, it.index): it for topic in response.responses for it in topic.partition_responses}
        for place in sent.places:
            answer = answers.get(place)
            if answer is None:
                raise ConnectionLost(f"node {sent.node_id} answered without a result for {place}")
            if answer.error_code in WRITTEN:
                self._acknowledge(place)
                continue
            error = BrokerError(answer.error_code, answer.error_message, about=str(place))
            hint = hint_of(answer.current_leader)
            routes = self._client.core.routes
            if routes.on_error(*place, answer.error_code, hint=hint, endpoints=endpoints) is Effect.FAIL:
                raise error
            self._put_off(place, error)

    def _acknowledge(self, place: TopicPartition) -> None:
        queue = self._queues[place]
        self._queued_bytes -= len(queue.batches.popleft())
        queue.failures, queue.not_before_ms, queue.cause, queue.since_ms = 0, 0.0, None, precise_ms()
        if not queue.batches:
            del self._queues[place]

    # Failures -------------------------------------------------------------------------------------------------------

    def _lose(self, node_id: int, places: list[TopicPartition], error: ClientError) -> None:
        """Forget which partitions the node leads, and retry later; the batches may or may not have been written."""
        self._client.core.routes.on_disconnect(node_id)
        for place in places:
            if place in self._queues:
                self._put_off(place, error)

    def _put_off(self, place: TopicPartition, error: ClientError) -> None:
        queue = self._queues[place]
        queue.failures += 1
        queue.cause = error
        queue.not_before_ms = precise_ms() + self._delivery.client.retry.delay_ms(queue.failures, random.random())

    def _demand_time(self, place: TopicPartition, queue: Queue) -> None:
        waited_ms = precise_ms() - queue.since_ms
        if queue.cause is not None and waited_ms >= self._delivery.delivery_timeout_ms:
            raise DeliveryTimedOut(
                f"a batch for {place} was not acknowledged within {self._delivery.delivery_timeout_ms} ms,"
                f" after {queue.failures} attempts; the last error: {queue.cause}"
            ) from queue.cause
