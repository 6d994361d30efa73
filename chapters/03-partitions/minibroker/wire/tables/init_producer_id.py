"""InitProducerId (key 22): gives a producer an id, by which repeated batches are recognised. A pure module.

Version 3 lets a producer keep its id after an error (KIP-360). Version 5 adds the error TRANSACTION_ABORTABLE.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, int64, string


class InitProducerIdRequest(Request, key=22, versions="0-5", flexible="2+"):
    """Ask for a producer id."""

    transactional_id: str | None = string(nullable="0+", about="the producer's name if it is transactional")
    transaction_timeout_ms: int = int32(about="after how long an open transaction is aborted")
    producer_id: int = int64(versions="3+", default=-1, about="the producer's current id, to get its next epoch")
    producer_epoch: int = int16(versions="3+", default=-1, about="the producer's current epoch")


class InitProducerIdResponse(Response, key=22, versions="0-5", flexible="2+"):
    """A producer id, and an epoch that fences earlier producers with the same id."""

    throttle_time_ms: int = int32(
        default=0, ignorable=True, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(about="0, or why no id was given")
    producer_id: int = int64(default=-1, about="the id")
    producer_epoch: int = int16(about="the epoch of the producer id")


declare(InitProducerIdRequest, InitProducerIdResponse)
