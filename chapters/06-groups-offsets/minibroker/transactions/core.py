"""The transaction coordinator's decisions, without IO. A pure module.

A transaction ends in two phases. The coordinator first writes the outcome to its own log. From then on the outcome is
decided, whatever fails. Then it writes a marker into every partition of the transaction:

    Ongoing ── EndTxn ──▶ PrepareCommit ── replicated ──▶ markers to all partitions ── all written ──▶ CompleteCommit
                           one record                       (again and again, until they are written)    one record

Each function below decides one request. It gets the state of a transactional id, and returns the next state, or raises
`TransactionRefused`. It changes nothing. If it returns the state that it got, the request is a retry of one that has
succeeded, and there is nothing to write.

A client of transaction version 2 (KIP-890) has a new epoch for each transaction. A late request of an earlier
transaction then has an old epoch, and is refused.
"""

from collections.abc import Callable

from minibroker.groups.pending import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.errors import TransactionRefused
from minibroker.transactions.ids import (
    EPOCH_GIVEN_MAX,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    Transaction,
)
from minibroker.transactions.markers import TRANSACTION_VERSION_2
from minibroker.transactions.transitions import COMPLETED, NEXT, PREPARED, Cause, TransactionState
from minibroker.wire.codes import ErrorCode

NewProducerId = Callable[[], int]
"""Takes a producer id that no producer has had. Raises `TransactionRefused` if there is none at the moment."""


# Decisions ------------------------------------------------------------------------------------------------------------


def initialized(
    old: Transaction | None, asked: Producer | None, *, timeout_ms: int, new_id: NewProducerId, now_ms: int
) -> Transaction:
    """InitProducerId: the next epoch, which fences all earlier producers with this transactional id.

    `asked` is the identity that the producer has, if it wants to keep its id. If a transaction is open, it is aborted,
    and the producer must ask again.
    """
    if old is None:
        return Transaction(new_id(), 0, timeout_ms, TransactionState.EMPTY, now_ms)
    _check_settled(old)
    epoch, last_epoch = _next_epoch(old, asked)
    if old.state is TransactionState.ONGOING:
        return fenced(old, now_ms)
    begun = old._replace(
        producer_epoch=epoch,
        last_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=_next_state(old, Cause.INIT),
        updated_ms=now_ms,
        started_ms=NO_TIME,
    )
    if epoch <= EPOCH_GIVEN_MAX:
        return begun
    return begun._replace(producer_id=new_id(), producer_epoch=0, previous_producer_id=old.producer_id)


def added(
    old: Transaction | None, who: Producer, names: frozenset[TopicPartition], *, client_version: int, now_ms: int
) -> Transaction:
    """AddPartitionsToTxn: the partitions join the transaction. The first partitions open it."""
    old = _owned(old, who)
    is_open = old.state is TransactionState.ONGOING
    if is_open and names <= old.partitions:
        return old
    return old._replace(
        state=_next_state(old, Cause.ADD),
        partitions=old.partitions | names if is_open else names,
        started_ms=old.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def verified(old: Transaction | None, who: Producer, name: TopicPartition) -> ErrorCode:
    """NONE if a partition is in the open transaction; otherwise a code with which the producer must abort it."""
    old = _owned(old, who)
    return ErrorCode.NONE if name in old.partitions else ErrorCode.TRANSACTION_ABORTABLE


def ended(
    old: Transaction | None,
    who: Producer,
    *,
    is_commit: bool,
    client_version: int,
    new_id: NewProducerId,
    now_ms: int,
) -> Transaction:
    """EndTxn: the outcome is decided. With version 2, the next transaction has a new epoch."""
    if old is None:
        raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    has_epochs = client_version >= TRANSACTION_VERSION_2
    same_outcome = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    if has_epochs:
        _check_settled(old)
        if _is_retry_of_end(old, who):
            return _same(old, same_outcome)
    _check_producer(old, who)
    _check_settled(old)
    if old.state is TransactionState.ONGOING:
        return _decided(old, Cause.COMMIT if is_commit else Cause.ABORT, client_version, new_id, now_ms)
    if not has_epochs:
        return _same(old, same_outcome)
    # The producer cannot know whether a leader has added a partition. So an abort is valid even if none was added.
    return _decided(old, Cause.COMMIT if is_commit else Cause.ABORT_NOTHING, client_version, new_id, now_ms)


def fenced(old: Transaction, now_ms: int) -> Transaction:
    """Abort an open transaction that its producer does not end. The producer's epoch is not valid from now on."""
    assert old.producer_epoch < EPOCH_MAX, f"epoch {old.producer_epoch} was never given to a producer"
    state = _next_state(old, Cause.FENCE)
    return old._replace(state=state, producer_epoch=old.producer_epoch + 1, last_epoch=NO_EPOCH, updated_ms=now_ms)


def completed(old: Transaction, now_ms: int) -> Transaction:
    """All markers are written: the next transaction may begin."""
    new_id = old.next_producer_id
    done = old._replace(state=_next_state(old, Cause.MARKED), partitions=frozenset(), updated_ms=now_ms)
    if new_id == NO_PRODUCER_ID:
        return done
    return done._replace(
        producer_id=new_id, producer_epoch=0, previous_producer_id=old.producer_id, next_producer_id=NO_PRODUCER_ID
    )


def _decided(old: Transaction, cause: Cause, client_version: int, new_id: NewProducerId, now_ms: int) -> Transaction:
    has_nothing = cause is Cause.ABORT_NOTHING
    new = old._replace(
        state=_next_state(old, cause),
        started_ms=now_ms if has_nothing else old.started_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )
    if client_version < TRANSACTION_VERSION_2:
        return new
    is_used_up = old.producer_epoch >= EPOCH_GIVEN_MAX
    return new._replace(
        producer_epoch=old.producer_epoch + 1,
        last_epoch=old.producer_epoch,
        next_producer_id=new_id() if is_used_up else NO_PRODUCER_ID,
    )


# Checks ---------------------------------------------------------------------------------------------------------------


def _next_state(old: Transaction, cause: Cause) -> TransactionState:
    following = NEXT.get((old.state, cause))
    if following is None:
        raise TransactionRefused(ErrorCode.INVALID_TXN_STATE)
    return following


def _check_settled(old: Transaction) -> None:
    """Refuse while markers are being written. The producer tries again."""
    if old.state in PREPARED:
        raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)


def _check_producer(old: Transaction, who: Producer) -> None:
    if who.id != old.producer_id:
        raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # No producer was given the largest epoch, which belongs to a fenced transaction. No epoch could follow it.
    if who.epoch != old.producer_epoch or who.epoch == EPOCH_MAX:
        raise TransactionRefused(ErrorCode.PRODUCER_FENCED)


def _owned(old: Transaction | None, who: Producer) -> Transaction:
    # Look for unwritten markers first: meanwhile a producer may already use the id of its next transaction.
    if old is None:
        raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    _check_settled(old)
    _check_producer(old, who)
    return old


def _next_epoch(old: Transaction, asked: Producer | None) -> tuple[int, int]:
    """The next epoch and the one before it. A producer that repeats its request gets the same epoch again."""
    if asked is None:
        return old.producer_epoch + 1, NO_EPOCH
    if asked == old.producer:
        return old.producer_epoch + 1, old.producer_epoch
    is_known = asked.id == old.producer_id or (asked.id == old.previous_producer_id and asked.epoch >= EPOCH_GIVEN_MAX)
    if is_known and asked.epoch == old.last_epoch:
        return old.producer_epoch, old.last_epoch
    raise TransactionRefused(ErrorCode.PRODUCER_FENCED)


def _is_retry_of_end(old: Transaction, who: Producer) -> bool:
    """Whether a request of version 2 ends the previous transaction again: it has the epoch before the current one.

    The largest epoch belongs to a fenced transaction. The fenced producer must not get that epoch.
    """
    if old.client_version < TRANSACTION_VERSION_2 or old.state not in COMPLETED or old.producer_epoch == EPOCH_MAX:
        return False
    if old.producer_epoch == 0:
        return who == (old.previous_producer_id, EPOCH_GIVEN_MAX)
    return who == (old.producer_id, old.producer_epoch - 1)


def _same(old: Transaction, outcome: TransactionState) -> Transaction:
    """The state as it is, if it is the outcome that the producer wants."""
    if old.state is not outcome:
        raise TransactionRefused(ErrorCode.INVALID_TXN_STATE)
    return old
