"""The errors of the codec: bytes that are not a message, and messages that cannot be encoded. A pure module."""

from typing import TYPE_CHECKING

from minibroker.log.errors import ExpectedError

if TYPE_CHECKING:
    from minibroker.wire.headers import RequestHeader


class WireError(ExpectedError):
    """Any error of this package. This class itself is for a message that cannot be encoded in a version."""


class MalformedMessage(WireError):
    """Received bytes that are not a valid message. They get no answer; the connection is closed."""


class UnsupportedVersion(WireError):
    """A version that the tables do not have. The error names the versions that they have."""


class UnsupportedApi(WireError):
    """A request whose key or version the tables do not have.

    An ApiVersions request is answered nevertheless, and the answer needs the header. Any other such request closes
    the connection.
    """

    def __init__(self, header: "RequestHeader") -> None:
        super().__init__(f"API key {header.api_key} version {header.api_version} is not in the tables")
        self.header = header
