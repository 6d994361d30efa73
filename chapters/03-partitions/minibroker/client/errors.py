"""What a client refuses or reports: every error says what happened, where, and what to do about it. A pure module."""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class ClientError(ExpectedError):
    """Anything that this package raises."""


class InvalidAddress(ClientError):
    """Text that is not HOST:PORT."""


class BrokerUnavailable(ClientError):
    """No connection could be made: refused, unreachable, or nobody answered in time."""


class TurnedAway(BrokerUnavailable):
    """Somebody is there, and closed the connection before saying a word."""

    def __init__(self, address: object) -> None:
        super().__init__(f"{address} closed the connection when it was asked for its versions")


class ConnectionLost(ClientError):
    """A connection ended before its answers came: whether the requests were carried out is not known."""


class RequestTimedOut(ClientError):
    """A deadline passed before the work was done."""


class UnsupportedByBroker(ClientError):
    """The broker has no version of a request that this client has too."""


class UnexpectedResponse(ClientError):
    """Bytes that no Kafka broker sends: the peer may be something else, such as a web server."""


class ClientClosed(ClientError):
    """The client was used after it was closed."""


class BrokerError(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, message: str | None = None, *, about: str = "") -> None:
        self.code = known_code(code)
        self.message = message or self.code.message
        number = f"{self.code.name} ({int(code)})"
        super().__init__(f"{about}: {number}: {self.message}" if about else f"{number}: {self.message}")


def known_code(code: int) -> ErrorCode:
    """The code by name; one that was assigned after this client was written counts as an unknown server error."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_CODES = {int(code): code for code in ErrorCode}
