"""The errors of a client. Each message says what happened, where, and what to do. A pure module."""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class ClientError(ExpectedError):
    """The base class of this package's errors."""


class InvalidAddress(ClientError):
    """A text is not of the form HOST:PORT."""


class BrokerUnavailable(ClientError):
    """No connection could be opened: the node refused it, or did not answer in time."""


class TurnedAway(BrokerUnavailable):
    """A node accepted the connection and closed it before it answered."""

    def __init__(self, address: object) -> None:
        super().__init__(f"{address} closed the connection when it was asked for its versions")


class LoginFailed(BrokerUnavailable):
    """A node refused a login, so no request was sent."""


class ConnectionLost(ClientError):
    """A connection ended before the responses arrived. Its requests may or may not have been carried out."""


class RequestTimedOut(ClientError):
    """A request was not answered before its deadline."""


class UnsupportedByBroker(ClientError):
    """The client and the broker have no version of a request in common."""


class UnexpectedResponse(ClientError):
    """The received bytes are not a Kafka response. The peer may be another server, such as a web server."""


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
    """The error code for a number, or UNKNOWN_SERVER_ERROR if this client does not know the number."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_CODES = {int(code): code for code in ErrorCode}
