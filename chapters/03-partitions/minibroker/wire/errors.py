"""The errors of the codec: bytes that are not a message, and messages that cannot be encoded. A pure module."""

from typing import TYPE_CHECKING

from minibroker.log.errors import ExpectedError

if TYPE_CHECKING:
    from minibroker.wire.headers import RequestHeader


class WireError(ExpectedError):
    """The base class of this package's errors. Raised for messages that cannot be encoded in a version."""


class MalformedMessage(WireError):
    """The received bytes are not a valid message. The connection is closed without an answer."""


class TooManyElements(MalformedMessage):
    """The arrays of a message have more elements than the reader accepts."""


class UnsupportedVersion(WireError):
    """A version that the tables do not have. The error names the versions that they have."""


class UnsupportedApi(WireError):
    """A request whose key or version the tables do not have.

    An ApiVersions request is answered nevertheless, so this error carries the header. Any other such request closes the
    connection.
    """

    def __init__(self, header: "RequestHeader") -> None:
        super().__init__(f"API key {header.api_key} version {header.api_version} is not in the tables")
        self.header = header
