"""DescribeTransactions (key 65): the state of transactional ids, from their coordinator. A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Request, key=65, versions="0", flexible="0+"):
    """Ask about transactional ids."""

    transactional_ids: list[str] = array(string, about="the transactional ids")


class DescribedTransactionTopic(Struct):
    """Partitions of one topic."""

    topic: str = string(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class DescribedTransaction(Struct):
    """The state of one transactional id."""

    error_code: int = int16(default=0, about="0, or why the state is not known")
    transactional_id: str = string(about="the transactional id")
    transaction_state: str = string(default="", about="the state, such as Ongoing")
    transaction_timeout_ms: int = int32(default=0, about="after how long an open transaction is aborted")
    transaction_start_time_ms: int = int64(default=0, about="when the open transaction began, or -1")
    producer_id: int = int64(default=0, about="the producer id")
    producer_epoch: int = int16(default=0, about="the epoch of the producer id")
    topics: list[DescribedTransactionTopic] = array(
        DescribedTransactionTopic,
        default=(),
        about="the partitions of the open transaction; while it ends, those whose marker is not written yet",
    )


class DescribeTransactionsResponse(Response, key=65, versions="0", flexible="0+"):
    """The states."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction, about="one for each transactional id")


declare(DescribeTransactionsRequest, DescribeTransactionsResponse)
