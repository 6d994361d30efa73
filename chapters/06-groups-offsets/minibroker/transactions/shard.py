"""The transactional ids of one partition of `__transaction_state`, and their requests. A pure module.

The id determines which partition has its state. The leader of that partition is the id's transaction coordinator, and
has one `TransactionShard` for the partition. A request is decided by the functions of `core`. The result is a
`TransactionStep`: records that the driver appends and applies, and replies that wait until these are replicated.

While markers are being written, `core` refuses a request with CONCURRENT_TRANSACTIONS. The producer would ask again
after 20 ms or more, but markers take only a few ms. So the request is parked, and is decided again when they are
written. It is refused only if they are not written in time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

from minibroker.groups.pending import Producer
from minibroker.groups.steps import Reply, Ticket
from minibroker.metadata.image import Image
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions import core, records
from minibroker.transactions.describing import described, listed
from minibroker.transactions.errors import TransactionRefused
from minibroker.transactions.ids import NO_EPOCH, NO_PRODUCER_ID, Transaction
from minibroker.transactions.keys import TransactionSettings
from minibroker.transactions.markers import TRANSACTION_VERSION_2
from minibroker.transactions.outcomes import Transactions
from minibroker.transactions.records import TransactionRecord
from minibroker.transactions.tables.describe_transactions import DescribeTransactionsResponse
from minibroker.transactions.tables.end_txn import EndTxnRequest, EndTxnResponse
from minibroker.transactions.tables.list_transactions import ListedTransaction, ListTransactionsResponse
from minibroker.transactions.transitions import PREPARED, TransactionState
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PARKED_MS_MAX = 100
BROKER_PARKED_MS_MAX = 20
"""How long the request of a broker may wait. It has the questions of many producers, which wait together."""
END_EPOCHS_FROM = 5  # the first version of EndTxn with an epoch for each transaction
_RETRY_MS = 500


@dataclass(slots=True)
class TransactionStep:
    """The records and the replies of one event."""

    records: list[TransactionRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    on_refused: Callable[[ErrorCode], "TransactionStep"] | None = None
    producer: ClassVar[None] = None
    marker: ClassVar[None] = None

    def refused(self, code: ErrorCode) -> "TransactionStep":
        """The step to use instead if the log refuses the records. By default, every reply becomes a refusal."""
        if self.on_refused is not None:
            return self.on_refused(code)
        return TransactionStep(replies=[Reply(ticket, code) for ticket, _response in self.replies])


Decide = Callable[[Transaction | None, int], Transaction]
"""Decides a request: gets the state of its id and the time in ms, and returns the next state."""


class _Change(NamedTuple):
    """A request that may change the state of a transactional id."""

    ticket: Ticket
    transactional_id: str
    decide: Decide
    answer: Callable[[Transaction], Response | ErrorCode]
    parked_ms_max: int = PARKED_MS_MAX


class _Parked(NamedTuple):
    deadline_ms: int
    change: _Change


class TransactionShard:
    """The transactional ids of one partition."""

    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    def __init__(
        self, *, settings: Callable[[], TransactionSettings], new_producer_id: core.NewProducerId, image: Image
    ) -> None:
        self.image = image
        self.transactions = Transactions()
        self._settings = settings
        self._new_producer_id = new_producer_id
        self._parked: list[_Parked] = []
        self._retry_ms: dict[str, int] = {}
        """When to try again to write that a transaction is complete, because the log has refused the record."""
        self._abort_ms: int | None = None
        self._remove_ms: int | None = None

    @property
    def summary(self) -> str:
        """How much state there is, for the broker's log."""
        return f"{len(self.transactions)} transactional ids"

    # Records ----------------------------------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord, offset: int, producer: Producer | None = None) -> None:  # noqa: ARG002
        """Apply a record of the log while the shard is being loaded."""
        self.transactions.apply(record.transactional_id, record.value, offset)

    def on_loaded(self, now_ms: int) -> None:
        """The whole log has been replayed."""
        settings = self._settings()
        self._abort_ms = now_ms + settings.abort_interval_ms
        self._remove_ms = now_ms + settings.remove_interval_ms

    def apply(
        self,
        record: TransactionRecord,
        offset: int,
        now_ms: int,  # noqa: ARG002
        producer: Producer | None = None,  # noqa: ARG002
    ) -> None:
        """Apply a record that this shard has returned in a step."""
        self.transactions.apply(record.transactional_id, record.value, offset)

    def apply_marker(self, producer: Producer, *, is_commit: bool) -> None:
        """No transaction writes to `__transaction_state`, so there are no markers."""

    # Requests ---------------------------------------------------------------------------------------------------------

    def on_init(self, ticket: Ticket, request: InitProducerIdRequest, now_ms: int) -> TransactionStep:
        """Handle InitProducerId with a transactional id."""
        assert request.transactional_id
        asked = Producer(request.producer_id, request.producer_epoch)
        has_id, has_epoch = asked.id != NO_PRODUCER_ID, asked.epoch != NO_EPOCH
        if has_id != has_epoch:
            return _refusal(ticket, ErrorCode.INVALID_REQUEST)
        if not 0 < request.transaction_timeout_ms <= self._settings().timeout_ms_max:
            return _refusal(ticket, ErrorCode.INVALID_TRANSACTION_TIMEOUT)

        def decide(old: Transaction | None, now_ms: int) -> Transaction:
            return core.initialized(
                old,
                asked if has_id else None,
                timeout_ms=request.transaction_timeout_ms,
                new_id=self._new_producer_id,
                now_ms=now_ms,
            )

        return self._perform(_Change(ticket, request.transactional_id, decide, _initialized), now_ms)

    def on_add(
        self,
        ticket: Ticket,
        transactional_id: str,
        who: Producer,
        names: frozenset[TopicPartition],
        *,
        client_version: int,
        now_ms: int,
        parked_ms_max: int = PARKED_MS_MAX,
    ) -> TransactionStep:
        """Handle AddPartitionsToTxn, or AddOffsetsToTxn with a partition of `__consumer_offsets`."""

        def decide(old: Transaction | None, now_ms: int) -> Transaction:
            return core.added(old, who, names, client_version=client_version, now_ms=now_ms)

        change = _Change(ticket, transactional_id, decide, lambda _new: ErrorCode.NONE, parked_ms_max)
        return self._perform(change, now_ms)

    def on_verify(
        self,
        ticket: Ticket,
        transactional_id: str,
        who: Producer,
        names: Iterable[TopicPartition],
        answer: Callable[[dict[TopicPartition, ErrorCode]], Response],
    ) -> TransactionStep:
        """Handle an AddPartitionsToTxn that only asks. `answer` makes the response from the code of each partition."""
        state = self.transactions.get(transactional_id)
        try:
            found = {name: core.verified(state, who, name) for name in names}
        except TransactionRefused as refused:
            return _refusal(ticket, refused.code)
        return TransactionStep(replies=[Reply(ticket, answer(found))])

    def on_end(self, ticket: Ticket, request: EndTxnRequest, version: int, now_ms: int) -> TransactionStep:
        """Handle EndTxn."""
        who = Producer(request.producer_id, request.producer_epoch)
        client_version = TRANSACTION_VERSION_2 if version >= END_EPOCHS_FROM else 0

        def decide(old: Transaction | None, now_ms: int) -> Transaction:
            return core.ended(
                old,
                who,
                is_commit=request.committed,
                client_version=client_version,
                new_id=self._new_producer_id,
                now_ms=now_ms,
            )

        return self._perform(_Change(ticket, request.transactional_id, decide, _ended), now_ms)

    def on_describe(self, ticket: Ticket, transactional_id: str) -> TransactionStep:
        """Handle DescribeTransactions for one id."""
        found = described(transactional_id, self.transactions)
        return TransactionStep(replies=[Reply(ticket, DescribeTransactionsResponse(transaction_states=[found]))])

    def on_list(
        self, ticket: Ticket, passes: Callable[[ListedTransaction, Transaction, int], bool], now_ms: int
    ) -> TransactionStep:
        """Handle ListTransactions for the ids of this shard that pass the filter of the request."""
        both = ((listed(name, state), state) for name, state in self.transactions.items())
        found = [it for it, state in both if passes(it, state, now_ms)]
        return TransactionStep(replies=[Reply(ticket, ListTransactionsResponse(transaction_states=found))])

    # Changes ----------------------------------------------------------------------------------------------------------

    def _perform(self, change: _Change, now_ms: int) -> TransactionStep:
        name = change.transactional_id
        old = self.transactions.get(name)
        try:
            new = change.decide(old, now_ms)
        except TransactionRefused as refused:
            if refused.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return _refusal(change.ticket, refused.code)
            self._park(change, now_ms)
            return TransactionStep()
        if new is old:
            return TransactionStep(replies=[Reply(change.ticket, change.answer(new))])
        record = TransactionRecord(name, new)
        if new.state in PREPARED and change.answer is _initialized:
            # InitProducerId aborts the open transaction first, and is decided again afterwards.
            self._park(change, now_ms)
            return TransactionStep([record], on_refused=partial(self._refuse_parked, change))
        done = [record]
        if new.state in PREPARED and not new.partitions:
            # There are no markers to wait for.
            done.append(TransactionRecord(name, core.completed(new, now_ms)))
        return TransactionStep(done, [Reply(change.ticket, change.answer(new))])

    def _park(self, change: _Change, now_ms: int) -> None:
        self._parked.append(_Parked(now_ms + change.parked_ms_max, change))

    def _refuse_parked(self, change: _Change, code: ErrorCode) -> TransactionStep:
        self._parked = [it for it in self._parked if it.change is not change]
        return _refusal(change.ticket, code)

    # Markers ----------------------------------------------------------------------------------------------------------

    def on_marked(
        self, transactional_id: str, names: Iterable[TopicPartition], now_ms: int
    ) -> Iterator[TransactionStep]:
        """Markers are written. With the last one the transaction is complete, and parked requests are decided again."""
        if self.transactions.on_marked(transactional_id, names):
            yield from self._complete(transactional_id, now_ms)

    def _complete(self, transactional_id: str, now_ms: int) -> Iterator[TransactionStep]:
        self._retry_ms.pop(transactional_id, None)
        old = self.transactions.get(transactional_id)
        if old is None or old.state not in PREPARED:
            return
        new = core.completed(old, now_ms)

        def retry(_code: ErrorCode) -> TransactionStep:
            self._retry_ms[transactional_id] = now_ms + _RETRY_MS
            return TransactionStep()

        yield TransactionStep([TransactionRecord(transactional_id, new)], on_refused=retry)
        if self.transactions.get(transactional_id) is new:
            waiting = [it.change for it in self._parked if it.change.transactional_id == transactional_id]
            self._parked = [it for it in self._parked if it.change.transactional_id != transactional_id]
            for change in waiting:
                yield self._perform(change, now_ms)

    # Time and metadata ------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None."""
        times = [it for it in (self._abort_ms, self._remove_ms) if it is not None]
        times += [it.deadline_ms for it in self._parked]
        return min([*times, *self._retry_ms.values()], default=None)

    def on_time(self, now_ms: int) -> Iterator[TransactionStep]:
        """Act on the time limits that have ended. The driver applies each step before it takes the next one."""
        late = [it for it in self._parked if it.deadline_ms <= now_ms]
        for it in late:
            self._parked.remove(it)
            yield _refusal(it.change.ticket, ErrorCode.CONCURRENT_TRANSACTIONS)
        for name in [name for name, retry_ms in self._retry_ms.items() if retry_ms <= now_ms]:
            yield from self._complete(name, now_ms)
        if self._abort_ms is not None and self._abort_ms <= now_ms:
            self._abort_ms = now_ms + self._settings().abort_interval_ms
            yield from self._abort_timed_out(now_ms)
        if self._remove_ms is not None and self._remove_ms <= now_ms:
            self._remove_ms = now_ms + self._settings().remove_interval_ms
            yield from self._remove_expired(now_ms)

    def _abort_timed_out(self, now_ms: int) -> Iterator[TransactionStep]:
        """Abort the transactions that are open for longer than their timeout. Their producers are fenced."""
        for name, state in self.transactions.items():
            if state.state is TransactionState.ONGOING and state.started_ms + state.timeout_ms < now_ms:
                yield TransactionStep([TransactionRecord(name, core.fenced(state, now_ms))])

    def _remove_expired(self, now_ms: int) -> Iterator[TransactionStep]:
        """Delete the ids that have not been used for a long time. Their producers must begin again."""
        oldest_ms = now_ms - self._settings().expiration_ms
        for name, state in self.transactions.items():
            is_settled = state.state is not TransactionState.ONGOING and state.state not in PREPARED
            if is_settled and state.updated_ms <= oldest_ms:
                yield TransactionStep([TransactionRecord(name, None)])

    def on_image(self, old: Image, new: Image) -> Iterator[TransactionStep]:  # noqa: ARG002
        """The metadata have changed. No decision depends on them."""
        self.image = new
        return iter(())


def _refusal(ticket: Ticket, code: ErrorCode) -> TransactionStep:
    return TransactionStep(replies=[Reply(ticket, code)])


def _initialized(new: Transaction) -> Response:
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=new.producer_id, producer_epoch=new.producer_epoch
    )


def _ended(new: Transaction) -> Response:
    following = new.next_producer
    return EndTxnResponse(producer_id=following.id, producer_epoch=following.epoch)
