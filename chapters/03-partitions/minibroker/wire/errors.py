"""What the wire refuses: bytes that are no message, and messages that are no bytes. A pure module."""

from typing import TYPE_CHECKING

from minibroker.log.errors import ExpectedError

if TYPE_CHECKING:
    from minibroker.wire.headers import RequestHeader


class WireError(ExpectedError):
    """Anything this package refuses: alone, a message of ours that cannot be written in the version asked for."""


class MalformedMessage(WireError):
    """Bytes from outside that are not what they claim to be. There is no answer to them: close the connection."""


class UnsupportedVersion(WireError):
    """A version that the tables do not have; the message says which ones they have."""


class UnsupportedApi(WireError):
    """A request whose key or version the tables do not have.

    Only ApiVersions is answered then, and needs the header for it; for anything else close the connection.
    """

    def __init__(self, header: "RequestHeader") -> None:
        super().__init__(f"API key {header.api_key} version {header.api_version} is not in the tables")
        self.header = header
