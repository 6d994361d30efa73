"""AddOffsetsToTxn (key 25): makes the offsets of a group part of a transaction. A pure module.

Version 2 adds the error PRODUCER_FENCED, version 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, int64, string


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible="3+"):
    """Add the offsets of a group to a transaction."""

    transactional_id: str = string(about="the transactional id")
    producer_id: int = int64(about="the producer id that the transactional id has")
    producer_epoch: int = int16(about="the epoch of the producer id")
    group_id: str = string(about="the group")


class AddOffsetsToTxnResponse(Response, key=25, versions="0-4", flexible="3+"):
    """Whether the group is in the transaction."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the offsets are not in the transaction")


declare(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse)
