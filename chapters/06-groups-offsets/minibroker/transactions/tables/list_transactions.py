"""ListTransactions (key 66): the transactional ids whose coordinator this broker is. A pure module.

Version 1 filters by duration (KIP-994), version 2 by a pattern (KIP-1152).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Request, key=66, versions="0-2", flexible="0+"):
    """Ask for all transactional ids, or for some."""

    state_filters: list[str] = array(string, default=(), about="only ids in these states; none means all")
    producer_id_filters: list[int] = array(int64, default=(), about="only these producer ids; none means all")
    duration_filter: int = int64(
        versions="1+", default=-1, about="only transactions that are open for longer than this, in ms; all if below 0"
    )
    transactional_id_pattern: str | None = string(
        versions="2+", nullable="2+", default=None, about="only ids that match this regular expression as a whole"
    )


class ListedTransaction(Struct):
    """One transactional id."""

    transactional_id: str = string(about="the transactional id")
    producer_id: int = int64(about="its producer id")
    transaction_state: str = string(about="its state, such as Ongoing")


class ListTransactionsResponse(Response, key=66, versions="0-2", flexible="0+"):
    """The transactional ids."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the list is not complete")
    unknown_state_filters: list[str] = array(string, default=(), about="states in the request that do not exist")
    transaction_states: list[ListedTransaction] = array(ListedTransaction, default=(), about="the ids")


declare(ListTransactionsRequest, ListTransactionsResponse)
