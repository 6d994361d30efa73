"""Envelope (key 58): a client's request, forwarded by the node that it was sent to (KIP-590). A pure module.

Only nodes send this request.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, bytes_, int16


class EnvelopeRequest(Request, key=58, versions="0", flexible="0+"):
    """Ask the controller to answer a client's request."""

    request_data: bytes = bytes_(about="the client's request, its header included")
    request_principal: bytes | None = bytes_(nullable="0+", about="the client's principal, serialized")
    client_host_address: bytes = bytes_(about="the 4 or 16 bytes of the client's address")


class EnvelopeResponse(Response, key=58, versions="0", flexible="0+"):
    """The response for the client."""

    response_data: bytes | None = bytes_(
        nullable="0+", default=None, about="the response to the client's request, its header included"
    )
    error_code: int = int16(about="0, or why the controller did not answer the client's request")


declare(EnvelopeRequest, EnvelopeResponse)
