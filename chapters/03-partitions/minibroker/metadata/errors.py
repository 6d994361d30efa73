"""The errors of this package: refused configurations and names, and metadata logs that cannot be decoded.

Every message names the value, its place and the valid values. An error that is sent to a client has Kafka's code, too.
A pure module.
"""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class MetadataError(ExpectedError):
    """The base class of this package's errors."""


class UnknownRecord(MetadataError):
    """A metadata record has an unknown kind or version. A newer program has written it."""


class CorruptMetadata(MetadataError):
    """A metadata log with bytes that are not records, or with records that contradict each other."""


class Refused(MetadataError):
    """A part of a command is refused. The client gets the message and Kafka's code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidTopicName(Refused):
    """A name that no topic may have."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


class InvalidConfig(Refused):
    """A configuration key that does not exist, or a value that is not allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


class TooManyRecords(MetadataError):
    """A command that would need more records than one batch may have (Kafka: POLICY_VIOLATION)."""
