"""What this package raises: a configuration or a name that is refused, and a metadata log that cannot be understood.

Every message says what was found, where, and what would be right. What answers a client carries Kafka's code as well.
A pure module.
"""

from minibroker.log.errors import ExpectedError
from minibroker.wire.codes import ErrorCode


class MetadataError(ExpectedError):
    """Anything this package refuses."""


class UnknownRecord(MetadataError):
    """A metadata record of a kind or a version that this program does not know: a newer one wrote it."""


class CorruptMetadata(MetadataError):
    """A metadata log whose records contradict each other, or are no records. The message names the offset."""


class Refused(MetadataError):
    """A part of a command that is not carried out: what its client is told, with Kafka's code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class InvalidTopicName(Refused):
    """A name that no topic may have."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


class InvalidConfig(Refused):
    """A configuration that does not exist, or a value that it cannot have."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)


class TooManyRecords(MetadataError):
    """A command that would need more records than one batch may have (Kafka: POLICY_VIOLATION)."""
