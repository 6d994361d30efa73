"""UnregisterBroker (key 64): a broker that will not come back is to be forgotten (KIP-631). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, string


class UnregisterBrokerRequest(Request, key=64, versions="0", flexible="0+"):
    """Forget this broker."""

    broker_id: int = int32(about="the broker")


class UnregisterBrokerResponse(Response, key=64, versions="0", flexible="0+"):
    """Whether it is forgotten."""

    throttle_time_ms: int = int32(default=0, about="how long the client should pause")
    error_code: int = int16(default=0, about="0, or why it is not")
    error_message: str | None = string(nullable="0+", default=None, about="in words")


declare(UnregisterBrokerRequest, UnregisterBrokerResponse)
