"""EndTxn (key 26): commits or aborts a transaction. A pure module.

Version 2 adds the error PRODUCER_FENCED, version 4 TRANSACTION_ABORTABLE. With version 5 each transaction has an epoch
of its own, and the response gives the epoch of the next one (KIP-890).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, boolean, int16, int32, int64, string


class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction."""

    transactional_id: str = string(about="the transactional id")
    producer_id: int = int64(about="the producer id that the transactional id has")
    producer_epoch: int = int16(about="the epoch of the producer id")
    committed: bool = boolean(about="true to commit, false to abort")


class EndTxnResponse(Response, key=26, versions="0-5", flexible="3+"):
    """Whether the outcome is decided."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the transaction was not ended")
    producer_id: int = int64(
        versions="5+", default=-1, ignorable=True, about="the producer id for the next transaction"
    )
    producer_epoch: int = int16(versions="5+", default=-1, ignorable=True, about="the epoch for the next transaction")


declare(EndTxnRequest, EndTxnResponse)
