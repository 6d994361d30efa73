"""UnregisterBroker (key 64): remove a broker that will not come back (KIP-631). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, string


class UnregisterBrokerRequest(Request, key=64, versions="0", flexible="0+"):
    """Remove a broker."""

    broker_id: int = int32(about="the broker")


class UnregisterBrokerResponse(Response, key=64, versions="0", flexible="0+"):
    """Whether the broker was removed."""

    throttle_time_ms: int = int32(default=0, about="how long the client should pause")
    error_code: int = int16(default=0, about="0, or why the broker was not removed")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


declare(UnregisterBrokerRequest, UnregisterBrokerResponse)
