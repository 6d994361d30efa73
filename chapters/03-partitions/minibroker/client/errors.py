"""What a client refuses or reports: every error says what happened, where, and what to do about it. A pure module."""

from collections.abc import Mapping

from minibroker.wire.codes import ErrorCode


class ClientError(Exception):
    """Anything that this room raises."""


class InvalidAddress(ClientError):
    """Text that is not HOST:PORT."""


class InvalidSetting(ClientError):
    """Settings that cannot work, alone or together."""


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


class BrokerErrors(ClientError):
    """Several things were asked for in one request, and some of them were refused."""

    def __init__(self, errors: Mapping[str, BrokerError]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(str(error) for error in self.errors.values()))


class BufferFull(ClientError):
    """Records are produced faster than the brokers take them, and the memory set aside for them is used up."""


class RecordTooLarge(ClientError):
    """A record that no request may carry."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged in time; whether it was written is not known."""


class DeliveryInDoubt(ClientError):
    """A record may have been written or not, and cannot be sent again without the risk of a second copy."""


class OffsetOutOfRange(ClientError):
    """The log no longer has, or does not have yet, the offset that a consumer wants to read."""


class LogTruncated(ClientError):
    """A new leader's log ends before what a consumer has read: the records after that are gone."""


class CorruptRecords(ClientError):
    """A fetched batch whose checksum or layout is wrong."""


def known_code(code: int) -> ErrorCode:
    """The code by name; one that was assigned after this client was written counts as an unknown server error."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_CODES = {int(code): code for code in ErrorCode}
