"""The producer: takes records from the caller's threads, and sends batches from its own thread.

The caller's thread chooses a partition and adds the record to a batch; it waits only when memory is used up. The
sender's thread sends the batches that are due, processes answers, and fails records at their deadline. One lock
protects the accumulator; compression and sockets are outside of it.
"""

import random
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from minibroker.client.errors import BrokerError, ClientClosed, ClientError, ConnectionLost, RequestTimedOut
from minibroker.clients.accumulator import (
    ACKS_ALL,
    ACKS_NONE,
    Accumulator,
    Answer,
    Drained,
    ProducerConfig,
    Send,
    produce_request,
)
from minibroker.clients.batching import Callback, Delivery
from minibroker.clients.blocking import Client, Link
from minibroker.clients.coordination import TRANSACTION, Coordinator
from minibroker.clients.errors import BufferFull
from minibroker.clients.hints import hint_of, nodes_of
from minibroker.clients.partitioners import Default, Partitioner
from minibroker.clients.routing import Effect, effect_of
from minibroker.clients.transacting import Session, is_passing
from minibroker.log.clock import precise_ms
from minibroker.log.compression import Compression
from minibroker.log.record import Header
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.produce import ProduceResponse

MAX_BLOCK_MS = 60_000
CLOSE_TIMEOUT_MS = 30_000
_ADDING_MS = 20
_SETTLING_MS = 1_000  # how long the sender's thread may take to fail records after their deadline


class Producer:
    """Sends records. Any thread may call it; with idempotence, no record is written twice."""

    def __init__(
        self,
        client: Client,
        *,
        partitioner: Partitioner | None = None,
        acks: int = ACKS_ALL,
        linger_ms: float = 5,
        batch_size: int = 16_384,
        compression: Compression = Compression.NONE,
        idempotence: bool | None = None,
        buffer_memory: int = 32 * 1024 * 1024,
        max_request_size: int = 1024 * 1024,
        max_in_flight: int = 5,
        delivery_timeout_ms: int = 120_000,
        max_block_ms: int = MAX_BLOCK_MS,
        allow_auto_topic_creation: bool = True,
        session: Session | None = None,
    ) -> None:
        """Use the cluster and the settings of a client. If `idempotence` is not given, it is on when acks is -1.

        Only `TransactionalProducer`, which is built on this class, gives a `session`.
        """
        self._config = ProducerConfig(
            acks=acks,
            idempotence=acks == ACKS_ALL if idempotence is None else idempotence,
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression=compression,
            buffer_memory=buffer_memory,
            max_request_size=max(max_request_size, batch_size),
            max_in_flight=max_in_flight,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=client.config.timeout_ms,
            retry=client.config.retry,
            transactional_id=None if session is None else session.transactional_id,
        )
        self._client = client.sibling()
        self._partitioner = partitioner or Default(random.randrange)
        self._max_block_ms = max_block_ms
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._accumulator = Accumulator(self._config, random.random)
        self._is_closed = False
        self._sender = _Sender(client.sibling(), self._config, self._accumulator, self._changed, session)
        self._sender.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an exception, do not wait for a broker that may have caused it.
        self.close(timeout_ms=CLOSE_TIMEOUT_MS if kind is None else 0)

    # Records in -----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Sequence[Header] = (),
        *,
        on_delivery: Callback | None = None,
    ) -> Delivery:
        """Queue a record. The delivery is done when the record is acknowledged or has failed."""
        _check_types(value, key, headers)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        count = self._partition_count(topic)
        if partition is not None and not 0 <= partition < count:
            self._demand_partition(topic, partition)
        with self._changed:
            if partition is None:
                partition = self._choose(topic, key, count)
            delivery = self._append(topic, partition, timestamp, key, value, headers)
            if on_delivery is not None:
                delivery.on_done(on_delivery)
            self._sender.wake_if_due(topic, partition)
        return delivery

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        # Records without a key stick to a partition until its batch is full or sent.
        if self._accumulator.filled:
            for filled_topic, filled in self._accumulator.take_filled():
                if filled_topic == topic:
                    self._partitioner.on_new_batch(topic, count, filled)
        return self._partitioner.partition(topic, key, count)

    def _partition_count(self, topic: str) -> int:
        core = self._client.core
        known = core.routes.topics.get(topic)
        if known and core.routes.is_known(topic, now_ms=precise_ms(), age_ms_max=core.config.metadata_max_age_ms):
            return len(known.partitions)
        with self._asking:
            return self._client.partition_count(topic, allow_auto_topic_creation=self._allow_auto_topic_creation)

    def _demand_partition(self, topic: str, partition: int) -> None:
        """Refresh the metadata, because partitions may have been added; raise if there still is no such partition."""
        with self._asking:
            self._client.core.routes.doubt(topic)
            self._client.leader(topic, partition)

    def _append(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> Delivery:
        now = precise_ms()
        deadline_ms = now + self._max_block_ms
        while True:
            if self._is_closed:
                raise ClientClosed("this producer is closed: make a new one")
            self._sender.raise_if_dead()
            try:
                return self._accumulator.append(
                    topic, partition, key=key, value=value, timestamp=timestamp, now_ms=now, headers=headers
                )
            except BufferFull:
                if now >= deadline_ms:
                    raise
            # The sender notifies when batches are done and their memory is free.
            self._sender.wake()
            self._changed.wait((deadline_ms - now) / 1000)
            now = precise_ms()

    # The end --------------------------------------------------------------------------------------------------------

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every record queued so far is acknowledged or has failed."""
        wait_ms = self._config.delivery_timeout_ms + _SETTLING_MS if timeout_ms is None else timeout_ms
        deadline_ms = precise_ms() + wait_ms
        with self._changed:
            self._accumulator.flush()
            order = self._accumulator.next_order
            self._sender.wake()
            while self._accumulator.has_before(order):
                self._sender.raise_if_dead()
                left_ms = deadline_ms - precise_ms()
                if left_ms <= 0:
                    raise RequestTimedOut(
                        f"flush did not finish within {wait_ms:.0f} ms: some records are not acknowledged yet"
                    )
                self._changed.wait(left_ms / 1000)

    def wait(self, delivery: Delivery, timeout_ms: float | None = None) -> int:
        """Wait for one record, and return its offset or raise its error."""
        wait_ms = self._config.delivery_timeout_ms + _SETTLING_MS if timeout_ms is None else timeout_ms
        deadline_ms = precise_ms() + wait_ms
        with self._changed:
            while not delivery.is_done:
                self._sender.raise_if_dead()
                if precise_ms() >= deadline_ms:
                    raise RequestTimedOut(
                        f"a record for {delivery.topic}-{delivery.partition} is not acknowledged after {wait_ms:.0f} ms"
                    )
                self._changed.wait(max(0.0, deadline_ms - precise_ms()) / 1000)
        if delivery.error is not None:
            raise delivery.error
        return delivery.offset

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Flush for at most this time, then stop; records that are not acknowledged by then fail."""
        if self._is_closed:
            return
        try:
            if timeout_ms > 0:
                self.flush(timeout_ms)
        finally:
            with self._changed:
                self._is_closed = True
            self._sender.stop()
            self._client.close()


def _check_types(value: object, key: object, headers: Sequence[object]) -> None:
    for name, given in (("value", value), ("key", key)):
        if given is not None and not isinstance(given, bytes):
            raise TypeError(f"a record's {name} is bytes or None, not {type(given).__name__}: encode it first")
    for header in headers:
        match header:
            case (str(), bytes() | None):
                pass
            case _:
                raise TypeError(f"a header is a pair of a name (str) and a value (bytes or None), not {header!r}")


class _Sender(threading.Thread):
    """The thread that sends batches. Only this thread uses its client and its links."""

    def __init__(
        self,
        client: Client,
        config: ProducerConfig,
        accumulator: Accumulator,
        changed: threading.Condition,
        session: Session | None = None,
    ) -> None:
        super().__init__(name="minibroker-producer", daemon=True)
        self._client = client
        # Other requests use their own connections, so that their answers are not mixed up with those to batches.
        self._asking = client.sibling()
        self._asking.core = client.core
        self._config = config
        self._accumulator = accumulator
        self._changed = changed
        self._is_stopping = False
        self._is_asleep = False
        self._is_called = False
        self._wakes_at_ms = 0.0
        self._looked_ms = 0.0
        self._drained_ms = 0.0
        self._changes_seen = 0
        self._failure: BaseException | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._in_flight: dict[Link, dict[int, tuple[Send, float]]] = {}
        self._not_before_ms: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._metadata_not_before_ms = 0.0
        self._id_not_before_ms = 0.0
        self._session = session
        self._coordinator = Coordinator(self._asking.core, session.transactional_id if session else "", TRANSACTION)
        self._adding_not_before_ms = 0.0

    # Called by other threads ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread now; the caller holds the lock."""
        self._is_called = True
        if self._is_asleep:
            self._is_asleep = False
            self._wake_sender.send(b"!")

    def wake_if_due(self, topic: str, partition: int) -> None:
        """Wake the thread if it would sleep until after a new batch is due; the caller holds the lock."""
        if self._accumulator.changes == self._changes_seen:
            return
        self._changes_seen = self._accumulator.changes
        due_ms = self._accumulator.due_ms(topic, partition)
        if due_ms is not None and due_ms < (self._wakes_at_ms if self._is_asleep else self._drained_ms):
            self.wake()

    def raise_if_dead(self) -> None:
        """Raise if a bug has ended the thread, because nothing would be sent any more."""
        if self._failure is not None:
            raise ClientClosed(f"the producer's thread has failed: {self._failure!r}") from self._failure

    def stop(self) -> None:
        """End the thread and close its connections."""
        with self._changed:
            self._is_stopping = True
            self.wake()
        self.join()

    # The thread -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send batches and process answers until `stop`."""
        try:
            while not self._is_stopping:
                self._step()
        except BaseException as error:
            self._failure = error
        finally:
            with self._changed:
                self._accumulator.give_up(ClientClosed("the producer was closed before this record was acknowledged"))
            self._settle()
            for link in list(self._in_flight):
                self._client.drop(link.address)
            self._client.close()
            self._asking.close()
            self._selector.close()
            self._wake_sender.close()
            self._wake_receiver.close()

    def _step(self) -> None:
        self._send_due()
        self._settle()
        for key, _events in self._selector.select(self._sleep_s()):
            if key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
            else:
                assert isinstance(key.fileobj, Link)
                self._receive(key.fileobj)
        self._is_asleep = False
        self._drop_overdue()
        self._settle()

    def _sleep_s(self) -> float:
        with self._changed:
            now = precise_ms()
            times = [self._accumulator.wakeup_ms(self._drained_ms)]
            times += [deadline for sends in self._in_flight.values() for _send, deadline in sends.values()]
            # If a wait has ended since the thread last looked for work, nothing else would wake the thread. So its end
            # counts here, although it is past, and the thread does not sleep.
            others = (self._metadata_not_before_ms, self._id_not_before_ms, self._adding_not_before_ms)
            waits = (*self._not_before_ms.values(), *others)
            times += [at for at in waits if at > self._looked_ms]
            self._wakes_at_ms = min((at for at in times if at is not None), default=now + 60_000)
            # If a caller has called `wake` since the last drain, the thread must not sleep.
            self._is_asleep = not (self._is_called or self._is_stopping)
            return max(0.0, self._wakes_at_ms - now) / 1000 if self._is_asleep else 0.0

    def _settle(self) -> None:
        """Notify the waiting threads, and call the callbacks outside of the lock."""
        with self._changed:
            finished = self._accumulator.take_finished()
            # After a failure, `abort` waits for the last answers. They finish no batch, but it must learn of them.
            if finished or self._accumulator.failure is not None:
                self._changed.notify_all()
        for batch in finished:
            for callback, delivery in batch.callbacks:
                callback(delivery)

    # Out ------------------------------------------------------------------------------------------------------------

    def _send_due(self) -> None:
        self._looked_ms = precise_ms()
        if self._accumulator.needs_producer_id and precise_ms() >= self._id_not_before_ms:
            self._ask_producer_id()
        if self._session is not None and precise_ms() >= self._adding_not_before_ms:
            self._add_partitions(self._session)
        drained = self._drain()
        while drained.sends:
            for send in drained.sends:
                self._send(send)
            # A request takes only one batch of each partition, so there may be more batches.
            drained = self._drain()
        if drained.topics_without_leader and precise_ms() >= self._metadata_not_before_ms:
            self._ask_metadata(drained.topics_without_leader)

    def _drain(self) -> Drained:
        with self._changed:
            self._is_called = False
            self._drained_ms = precise_ms()
            return self._accumulator.drain(self._drained_ms, self._leader_of)

    def _leader_of(self, topic: str, partition: int) -> int | None:
        leader = self._client.core.routes.leader(topic, partition)
        # After a failed connection nothing is sent to the node for a while. Its batches wait.
        if leader is not None and self._not_before_ms.get(leader, 0) > precise_ms():
            return None
        return leader

    def _ask_producer_id(self) -> None:
        try:
            response = self._asking.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
        except ClientError:
            self._id_not_before_ms = precise_ms() + self._config.retry.backoff_ms_max
            return
        if not response.error_code:
            with self._changed:
                self._accumulator.on_producer_id(
                    producer_id=response.producer_id, producer_epoch=response.producer_epoch
                )
            return
        self._id_not_before_ms = precise_ms() + self._config.retry.backoff_ms_max
        if effect_of(response.error_code) is Effect.FAIL:
            with self._changed:
                self._accumulator.give_up(BrokerError(response.error_code, about="asking for a producer id"))

    def _add_partitions(self, session: Session) -> None:
        """Add the partitions of new batches to the transaction, if the brokers do not do that themselves."""
        with self._changed:
            missing = [TopicPartition(*it) for it in self._accumulator.unadmitted]
        if not missing:
            return
        try:
            self._asking.run(session.add_partitions(self._coordinator, missing))
        except ClientError as error:
            # The previous transaction is usually finished within milliseconds, so the wait is short.
            is_short = isinstance(error, BrokerError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            self._adding_not_before_ms = precise_ms() + (_ADDING_MS if is_short else self._config.retry.backoff_ms)
            if not is_passing(error):
                with self._changed:
                    self._accumulator.fail_transaction(error)
        else:
            with self._changed:
                self._accumulator.admit(missing)

    def _ask_metadata(self, topics: set[str]) -> None:
        self._metadata_not_before_ms = precise_ms() + self._config.retry.backoff_ms
        try:
            self._asking.metadata(topics)
        except ClientError:
            self._metadata_not_before_ms = precise_ms() + self._config.retry.backoff_ms_max
            return
        with self._changed:
            # Partitions may have a leader now, and nothing else would wake the thread for them.
            self._is_called = True

    def _send(self, send: Send) -> None:
        expects_response = self._config.acks != ACKS_NONE
        deadline_ms = precise_ms() + self._config.request_timeout_ms
        link: Link | None = None
        try:
            link = self._client.link(send.node_id)
            request = produce_request(send, self._config)
            version_max = None if self._session is None else self._session.produce_version_max
            number = link.send(
                request, deadline_ms=deadline_ms, version_max=version_max, expects_response=expects_response
            )
        except ClientError as error:
            self._on_failed_send(send, link, error)
            return
        self._failures.pop(send.node_id, None)
        if expects_response:
            self._expect(link, number, send, deadline_ms)
        else:
            with self._changed:
                self._accumulator.on_written(send)

    def _expect(self, link: Link, number: int, send: Send, deadline_ms: float) -> None:
        if link not in self._in_flight:
            # The client opens a new link if the old one is dead. The old one must leave the selector first, because
            # the new one may have the same file descriptor.
            for old in [it for it in self._in_flight if it.address == link.address]:
                self._forget(old, ConnectionLost(f"{link.address} closed the connection"))
            self._in_flight[link] = {}
            self._selector.register(link, selectors.EVENT_READ)
        self._in_flight[link][number] = (send, deadline_ms)

    def _on_failed_send(self, send: Send, link: Link | None, error: ClientError) -> None:
        failures = self._failures[send.node_id] = self._failures.get(send.node_id, 0) + 1
        self._not_before_ms[send.node_id] = precise_ms() + self._config.retry.delay_ms(failures, random.random())
        self._client.core.routes.on_disconnect(send.node_id)
        with self._changed:
            self._accumulator.on_lost(send, error, now_ms=precise_ms())
        if link is not None:
            self._lose(link, error)

    # In -------------------------------------------------------------------------------------------------------------

    def _receive(self, link: Link) -> None:
        try:
            responses = link.received()
        except ClientError as error:
            self._lose(link, error)
            return
        for number, response in responses:
            send, _deadline_ms = self._in_flight[link].pop(number)
            self._on_response(send, response)

    def _on_response(self, send: Send, response: ProduceResponse) -> None:
        answers: dict[tuple[str, int], Answer] = {}
        endpoints = nodes_of(response.node_endpoints)
        for topic in response.responses:
            for it in topic.partition_responses:
                message = it.error_message
                if it.record_errors and it.record_errors[0].batch_index_error_message:
                    message = f"{message or ''} ({it.record_errors[0].batch_index_error_message})".strip()
                answers[topic.name, it.index] = Answer(it.error_code, it.base_offset, it.log_append_time_ms, message)
                if it.error_code:
                    hint = hint_of(it.current_leader)
                    routes = self._client.core.routes
                    routes.on_error(topic.name, it.index, it.error_code, hint=hint, endpoints=endpoints)
        missing = Answer(-1, message="the answer of the broker does not contain this partition")
        with self._changed:
            self._accumulator.on_answers(
                send, lambda batch: answers.get((batch.topic, batch.partition), missing), now_ms=precise_ms()
            )

    def _lose(self, link: Link, error: ClientError) -> None:
        """Close a link, and report its requests in flight as lost."""
        self._client.drop(link.address)
        self._forget(link, error)

    def _forget(self, link: Link, error: ClientError) -> None:
        """Report the requests in flight on a link as lost; the broker may have carried them out or not."""
        sends = self._in_flight.pop(link, None)
        if sends is not None:
            self._selector.unregister(link)
        for send, _deadline_ms in (sends or {}).values():
            self._client.core.routes.on_disconnect(send.node_id)
            with self._changed:
                self._accumulator.on_lost(send, error, now_ms=precise_ms())

    def _drop_overdue(self) -> None:
        now = precise_ms()
        for link, sends in list(self._in_flight.items()):
            if any(deadline_ms <= now for _send, deadline_ms in sends.values()):
                self._lose(link, ConnectionLost(f"{link.address} did not answer in time"))
