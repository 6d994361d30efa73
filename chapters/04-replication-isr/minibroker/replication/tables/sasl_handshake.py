"""SaslHandshake (key 17): a client chooses the mechanism of its login. A pure module.

After a handshake of version 1, the messages of the mechanism follow in SaslAuthenticate (KIP-152). After one of
version 0 they would follow without a header, and a broker would have to read the same connection in two ways.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, array, int16, string


class SaslHandshakeRequest(Request, key=17, versions="0-1", flexible="none"):
    """Choose a mechanism."""

    mechanism: str = string(about="the mechanism, such as SCRAM-SHA-256")


class SaslHandshakeResponse(Response, key=17, versions="0-1", flexible="none"):
    """The mechanisms of the broker."""

    error_code: int = int16(about="0, or why the login cannot begin")
    mechanisms: list[str] = array(string, about="the mechanisms that the broker offers")


declare(SaslHandshakeRequest, SaslHandshakeResponse)
