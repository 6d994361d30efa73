"""What a broker says no with, and why. A pure module."""

from collections.abc import Hashable, Sequence

from minibroker.log.errors import (
    CorruptBatch,
    ExpectedError,
    InvalidRecord,
    InvalidVarint,
    LogError,
    OffsetOutOfRange,
    RecordsTooLarge,
    StorageError,
    UnsupportedCompressionType,
)
from minibroker.wire.codes import ErrorCode


class Refused(ExpectedError):
    """A partition, a rule or a handler refuses something; the client gets the code, and the message where it fits."""

    def __init__(self, code: ErrorCode, message: str, *, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.records = records
        """Which records of a batch are to blame, by their place in it, and for what."""


class Held(Refused):
    """A batch cannot be judged yet: try again when `key` is woken, the same key each time. Too late, it is refused."""

    def __init__(self, key: Hashable, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.key = key


class BrokerFailure(ExpectedError):
    """The broker cannot start or go on; the message says what to do."""


class Disconnect(ExpectedError):
    """There is no answer that the client would understand, so the connection is closed; the message is for our log."""


# Errors of the log in Kafka's words -----------------------------------------------------------------------------------

_CODES: dict[type[LogError], ErrorCode] = {
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    InvalidRecord: ErrorCode.INVALID_RECORD,
    InvalidVarint: ErrorCode.INVALID_RECORD,
    RecordsTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    UnsupportedCompressionType: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
}


def refusal(error: LogError) -> Refused:
    """What a client is told of an error of the log."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return Refused(_CODES[kind], str(error))
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
