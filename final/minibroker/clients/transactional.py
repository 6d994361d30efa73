"""The transactional producer: writes records to many partitions and commits offsets of groups, all of them or none.

    with TransactionalProducer(client, "copy-1") as producer:
        producer.init()
        producer.begin()
        producer.send("results", b"42")
        producer.send_offsets({TopicPartition("orders", 0): 7}, "copiers", consumer.signature)
        producer.commit()

`init` fences every older producer of the same transactional id. A `Fenced` error is final for this producer. After a
`TransactionFailed` the application calls `abort`, and does the work again. If `commit` or `abort` fails in another way,
such as a timeout, the outcome is not known: the application calls the same method again.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from minibroker.client.errors import BrokerError, ClientError, RequestTimedOut
from minibroker.clients.accumulator import ACKS_ALL
from minibroker.clients.batching import Callback, Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.coordination import NO_MEMBER, TRANSACTION, Coordinator, GroupCoordinator, Signature
from minibroker.clients.core import Dialogue
from minibroker.clients.errors import CommitRefused, Fenced, TransactionAborted, TransactionFailed, WrongState
from minibroker.clients.partitioners import Partitioner
from minibroker.clients.producer import CLOSE_TIMEOUT_MS, MAX_BLOCK_MS, Producer
from minibroker.clients.transacting import FEATURE, FENCING, Session, is_passing
from minibroker.log.clock import precise_ms
from minibroker.log.compression import Compression
from minibroker.log.record import Header
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

TRANSACTION_TIMEOUT_MS = 60_000


class State(enum.Enum):
    """What a transactional producer is doing."""

    NEW = "has no producer id yet: call init"
    READY = "has no open transaction: call begin"
    OPEN = "has an open transaction: call commit or abort"
    COMMITTING = "is committing a transaction, whose outcome is not known: call commit again"
    ABORTING = "is aborting a transaction: call abort again"
    DEAD = "has failed: make a new one"


ALLOWED = {
    "init": {State.NEW},
    "begin": {State.READY},
    "send": {State.OPEN},
    "send_offsets": {State.OPEN},
    "commit": {State.OPEN, State.COMMITTING},
    "abort": {State.OPEN, State.ABORTING},
}
"""The states in which each method may be called."""


class TransactionalProducer(Producer):
    """Sends records in transactions. Any thread may send; one thread begins and ends the transactions."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        partitioner: Partitioner | None = None,
        linger_ms: float = 5,
        batch_size: int = 16_384,
        compression: Compression = Compression.NONE,
        delivery_timeout_ms: int = 120_000,
        max_block_ms: int = MAX_BLOCK_MS,
    ) -> None:
        """Use the cluster and the settings of a client. The brokers abort a transaction after its timeout."""
        self._session = Session(transactional_id, transaction_timeout_ms)
        super().__init__(
            client,
            partitioner=partitioner,
            acks=ACKS_ALL,
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression=compression,
            delivery_timeout_ms=delivery_timeout_ms,
            max_block_ms=max_block_ms,
            session=self._session,
        )
        self._coordinating = client.sibling()
        self._coordinator = Coordinator(self._coordinating.core, transactional_id, TRANSACTION)
        self._groups: dict[str, GroupCoordinator] = {}
        self._state = State.NEW
        self._death: ClientError | None = None
        self._has_work = self._has_offsets = False

    @property
    def producer_id(self) -> int:
        """The producer id; -1 before `init`."""
        return self._session.identity.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer id; with transaction version 2, that of the next or the open transaction."""
        return self._session.identity.producer_epoch

    @property
    def transaction_version(self) -> int:
        """The transaction version of the brokers, as `init` found it."""
        return self._session.version

    # One transaction --------------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Fence older producers with this transactional id, and abort what they left open."""
        self._demand("init")
        self._run(self._session.init(self._coordinator, is_first=True, timeout_ms=self._max_block_ms))
        node_id = self._coordinator.node_id
        assert node_id is not None, "the coordinator has just answered"
        self._session.version = self._coordinating.link(node_id).level_of(FEATURE)
        self._state = State.READY

    def begin(self) -> None:
        """Begin a transaction."""
        self._demand("begin")
        with self._changed:
            self._accumulator.begin_transaction(self._session.identity, is_gated=not self._session.has_own_epochs)
        self._has_work = self._has_offsets = False
        self._state = State.OPEN

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
        """Queue a record of the open transaction. Its delivery says that it is written, not that it is committed."""
        if self._state is not State.OPEN or self._accumulator.failure is not None:
            self._demand("send")
            self._raise_if_failed()
        self._has_work = True
        return super().send(topic, value, key, partition, timestamp, headers, on_delivery=on_delivery)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group_id: str, signature: Signature = NO_MEMBER
    ) -> None:
        """Commit a group's offsets with the transaction; `signature` is that of a consumer in the group."""
        self._demand("send_offsets")
        self._raise_if_failed()
        if not offsets:
            return
        self._has_work = self._has_offsets = True
        group = self._groups.get(group_id) or GroupCoordinator(self._coordinating.core, group_id)
        self._groups[group_id] = group
        try:
            self._run(
                self._session.send_offsets(self._coordinator, group, offsets, signature, timeout_ms=self._max_block_ms)
            )
        except CommitRefused as error:
            with self._changed:
                self._accumulator.fail_transaction(error)
            raise

    def commit(self) -> None:
        """Wait until every record is written, then commit. Readers of committed records see all of them from now on."""
        self._demand("commit")
        if self._state is State.OPEN:
            self.flush()
            self._raise_if_failed()
        self._state = State.COMMITTING
        self._end(is_commit=True)

    def abort(self) -> None:
        """Drop the records that are not sent, and abort: readers of committed records see none of the transaction."""
        self._demand("abort")
        if self._state is State.OPEN:
            self._drop()
            self._raise_if_dead()
        self._state = State.ABORTING
        self._end(is_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction, and commit it at the end of the `with` block, or abort it after an exception."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            if self._state is State.OPEN:
                self.abort()
            raise

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Abort an open transaction, and stop. With a timeout of 0, the brokers abort it when it is too old."""
        if self._is_closed:
            return
        try:
            if timeout_ms > 0 and self._state is State.OPEN:
                # After a failure the application must see its own error, not this one. Brokers abort at the timeout.
                with suppress(ClientError):
                    self.abort()
        finally:
            super().close(0)
            self._coordinating.close()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Fail what is queued, and wait for the requests in flight, which must not arrive in the next transaction."""
        deadline_ms = precise_ms() + self._max_block_ms
        with self._changed:
            self._accumulator.fail_transaction(TransactionAborted("the transaction of this record was aborted"))
            self._sender.wake()
            while not self._accumulator.is_settled:
                self._sender.raise_if_dead()
                if precise_ms() >= deadline_ms:
                    raise RequestTimedOut(f"records in flight were not answered within {self._max_block_ms} ms")
                self._changed.wait((deadline_ms - precise_ms()) / 1000)

    def _end(self, *, is_commit: bool) -> None:
        if not self._has_work:
            # The coordinator knows nothing of this transaction, so there is nothing to end.
            self._state = State.READY
            return
        try:
            if self._accumulator.has_admitted or self._has_offsets:
                end = self._session.end(self._coordinator, is_commit=is_commit, timeout_ms=self._max_block_ms)
                self._run(end)
        except BrokerError as error:
            if error.code is ErrorCode.TRANSACTION_ABORTABLE and is_commit:
                self._state = State.OPEN
                with self._changed:
                    self._accumulator.fail_transaction(error)
                self._raise_if_failed()
            raise
        if not is_commit and not self._session.has_own_epochs:
            # A batch whose answer was lost may still arrive, so this transaction's epoch must not be used again.
            self._run(self._session.init(self._coordinator, is_first=False, timeout_ms=self._max_block_ms))
        self._state = State.READY

    def _run(self, dialogue: Dialogue[None]) -> None:
        try:
            self._coordinating.run(dialogue)
        except BrokerError as error:
            is_final = not is_passing(error) and not isinstance(error, CommitRefused)
            if isinstance(error, Fenced) or (is_final and error.code is not ErrorCode.TRANSACTION_ABORTABLE):
                self._die(error)
            raise

    def _die(self, error: ClientError) -> None:
        if self._state is not State.NEW:
            self._state, self._death = State.DEAD, error

    def _demand(self, method: str) -> None:
        self._raise_if_dead()
        if self._state not in ALLOWED[method]:
            raise WrongState(f"{method} is not possible now: this producer {self._state.value}")

    def _raise_if_dead(self) -> None:
        error = self._accumulator.failure
        if self._death is None and isinstance(error, BrokerError) and error.code in FENCING:
            self._die(self._session.refusal(error.code))
        if self._death is not None:
            raise self._death

    def _raise_if_failed(self) -> None:
        self._raise_if_dead()
        error = self._accumulator.failure
        if error is not None:
            raise TransactionFailed(f"the transaction can only be aborted: {error}") from error
