"""Transactional ids as administrators see them: DescribeTransactions and ListTransactions. A pure module."""

from collections.abc import Callable, Sequence

from minibroker.transactions.ids import Transaction
from minibroker.transactions.outcomes import Transactions
from minibroker.transactions.records import by_topic
from minibroker.transactions.tables.describe_transactions import DescribedTransaction, DescribedTransactionTopic
from minibroker.transactions.tables.list_transactions import ListedTransaction, ListTransactionsRequest
from minibroker.transactions.transitions import COMPLETED, TransactionState
from minibroker.wire.codes import ErrorCode

_KAFKAS_OTHER_STATES = {"Dead", "PrepareEpochFence"}
_LABELS = {state.label for state in TransactionState} | _KAFKAS_OTHER_STATES


def described(transactional_id: str, transactions: Transactions) -> DescribedTransaction:
    """The state of one id."""
    state = transactions.get(transactional_id)
    if state is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribedTransaction(transactional_id=transactional_id, error_code=code)
    topics = by_topic(transactions.unmarked(transactional_id))
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=state.state.label,
        transaction_timeout_ms=state.timeout_ms,
        transaction_start_time_ms=state.started_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        topics=[DescribedTransactionTopic(topic=topic, partitions=indexes) for topic, indexes in topics],
    )


def listed(transactional_id: str, state: Transaction) -> ListedTransaction:
    """One line of a list."""
    return ListedTransaction(
        transactional_id=transactional_id, producer_id=state.producer_id, transaction_state=state.state.label
    )


def unknown_states(labels: Sequence[str]) -> list[str]:
    """The states in a filter that do not exist."""
    return [label for label in labels if label not in _LABELS]


def filter_of(
    request: ListTransactionsRequest, matches: Callable[[str], bool]
) -> Callable[[ListedTransaction, Transaction, int], bool]:
    """The filter of a request. `matches` says whether an id matches its pattern."""
    labels, ids, duration_ms = set(request.state_filters), set(request.producer_id_filters), request.duration_filter

    def passes(it: ListedTransaction, state: Transaction, now_ms: int) -> bool:
        is_open = state.state is not TransactionState.EMPTY and state.state not in COMPLETED
        if duration_ms >= 0 and not (is_open and now_ms - state.started_ms > duration_ms):
            return False
        if labels and it.transaction_state not in labels:
            return False
        return (not ids or it.producer_id in ids) and matches(it.transactional_id)

    return passes
