"""The errors of a broker, and the error codes that clients get. A pure module."""

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
    """A partition, a rule or a handler refuses a request. The client gets the code, and often the message."""

    def __init__(self, code: ErrorCode, message: str, *, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.records = records
        """The records that caused the error: the index of each in its batch, and the reason."""


class Held(Refused):
    """The rules cannot decide about a batch yet. The batch is tried again when `key` is woken, and refused on timeout.

    If the batch is held again, the key must be the same.
    """

    def __init__(self, key: Hashable, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.key = key


class BrokerFailure(ExpectedError):
    """The broker cannot start or continue. The message says what to do."""


class Disconnect(ExpectedError):
    """The request gets no answer, and the connection is closed. The broker logs the message."""


class Overload(Disconnect):
    """Like `Disconnect`, for a request that would take too much memory or time. The broker warns about it."""


# Errors of the log as Kafka's codes -----------------------------------------------------------------------------------

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
    """The error of the log as a refusal with Kafka's code."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return Refused(_CODES[kind], str(error))
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
