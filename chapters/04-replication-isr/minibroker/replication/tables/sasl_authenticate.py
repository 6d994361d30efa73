"""SaslAuthenticate (key 36): one message of a login, and the broker's answer (KIP-152). A pure module.

Version 1 says how long the login is valid (KIP-368).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, bytes_, int16, int64, string


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """The next message of the client."""

    auth_bytes: bytes = bytes_(about="the message, as the mechanism defines it")


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """The next message of the broker."""

    error_code: int = int16(default=0, about="0, or why the login has failed")
    error_message: str | None = string(nullable="0+", default=None, about="the error message, or null")
    auth_bytes: bytes = bytes_(default=b"", about="the message, as the mechanism defines it")
    session_lifetime_ms: int = int64(
        versions="1+", default=0, ignorable=True, about="after how many ms the client must log in again, 0 for never"
    )


declare(SaslAuthenticateRequest, SaslAuthenticateResponse)
