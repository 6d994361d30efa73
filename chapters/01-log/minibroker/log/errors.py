"""What can be wrong: with bytes, with an offset, with a disk.

Every message carries the numbers that a person needs to go and look. The wire of chapter 03 gives each class one of
Kafka's error codes.
"""


class ExpectedError(Exception):
    """A failure of the world and no bug: its message is one line for a person, who needs no traceback.

    The errors of every package derive from it, so that a program can tell both kinds apart.
    """


class LogError(ExpectedError):
    """Anything this package refuses. The message says what, where, and what to do if there is something to do."""


class InvalidVarint(LogError):
    """A varint that is cut off or longer than its type allows."""


class CorruptBatch(LogError):
    """Bytes that are not a whole, valid batch: cut off, wrong magic, wrong checksum (Kafka: CORRUPT_MESSAGE)."""


class InvalidRecord(LogError):
    """A valid checksum over records that contradict themselves or their batch (Kafka: INVALID_RECORD)."""


class UnsupportedCompressionType(LogError):
    """A codec number nobody assigned, or a codec whose package is not installed."""


class RecordsTooLarge(LogError):
    """Records that would decompress to more than the caller allows: perhaps a bomb (Kafka: MESSAGE_TOO_LARGE)."""


class OffsetOutOfRange(LogError):
    """An offset before the log's start or past its end (Kafka: OFFSET_OUT_OF_RANGE)."""


class StorageError(LogError):
    """The disk refused a write; the log is as it was before (Kafka: KAFKA_STORAGE_ERROR)."""


class LogOffline(StorageError):
    """The disk refused a flush or a repair. What is on it is unknown, so nothing is written until a restart."""
