"""AllocateProducerIds (key 67): a broker gets a block of producer ids to hand out (KIP-730). A pure module.

Only brokers send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, int64


class AllocateProducerIdsRequest(Request, key=67, versions="0", flexible="0+"):
    """A broker asks for a block of producer ids."""

    broker_id: int = int32(about="the broker that asks")
    broker_epoch: int = int64(default=-1, about="the broker epoch of the sender")


class AllocateProducerIdsResponse(Response, key=67, versions="0", flexible="0+"):
    """A block that no other broker has."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the sender, because of a quota"
    )
    error_code: int = int16(about="0, or why there is no block")
    producer_id_start: int = int64(default=0, about="the first id of the block")
    producer_id_len: int = int32(default=0, about="how many ids the block has")


declare(AllocateProducerIdsRequest, AllocateProducerIdsResponse)
