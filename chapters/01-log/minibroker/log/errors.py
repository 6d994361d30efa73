"""The errors of this package: invalid bytes, an invalid offset, a failing disk.

Every message has the numbers that a person needs to find the place. Chapter 03 maps each class to one of Kafka's error
codes.
"""


class ExpectedError(Exception):
    """A failure that is not a bug. A program shows its message as one line, without a traceback.

    The errors of every package derive from this class, so that a program can tell failures from bugs.
    """


class LogError(ExpectedError):
    """An error of this package. The message says what is wrong, where, and what to do about it."""


class InvalidVarint(LogError):
    """A varint that is cut off or longer than its type allows."""


class CorruptBatch(LogError):
    """Bytes that are not a whole, valid batch: cut off, wrong magic, wrong checksum (Kafka: CORRUPT_MESSAGE)."""


class InvalidRecord(LogError):
    """Records with a valid checksum that contradict themselves or their batch (Kafka: INVALID_RECORD)."""


class UnsupportedCompressionType(LogError):
    """An unassigned codec number, or a codec whose package is not installed."""


class RecordsTooLarge(LogError):
    """Records that would decompress to more than the caller allows, such as a zip bomb (Kafka: MESSAGE_TOO_LARGE)."""


class OffsetOutOfRange(LogError):
    """An offset before the log's start or past its end (Kafka: OFFSET_OUT_OF_RANGE)."""


class StorageError(LogError):
    """The disk refused a write; the log is unchanged (Kafka: KAFKA_STORAGE_ERROR)."""


class LogOffline(StorageError):
    """The disk refused a flush or a repair. The file's content is unknown, so nothing is written until a restart."""
