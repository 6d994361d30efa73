"""The records of a coordinator as batches for the log. A pure module."""

from collections.abc import Iterator, Sequence

from minibroker.groups.records import GroupRecord, encode
from minibroker.log.batch import HEADER_SIZE, BatchBuilder
from minibroker.log.compression import Compression
from minibroker.wire.codes import ErrorCode

Encoded = tuple[bytes, bytes | None]

_RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 1  # length, attributes, time, offset, lengths of key and value, headers


def encoded(records: Sequence[GroupRecord], *, bytes_max: int) -> list[Encoded] | None:
    """The records as bytes; None if one of them does not fit into a batch of `bytes_max`."""
    found = [encode(record) for record in records]
    fits = all(HEADER_SIZE + size_of(it) <= bytes_max for it in found)
    return found if fits else None


def size_of(record: Encoded) -> int:
    """The most bytes that a record can take in a batch."""
    key, value = record
    return _RECORD_OVERHEAD_MAX + len(key) + (0 if value is None else len(value))


def batches_of(
    records: Sequence[Encoded], *, bytes_max: int, timestamp: int, compression: Compression = Compression.NONE
) -> Iterator[bytearray]:
    """The records in as few batches as possible, none larger than `bytes_max`."""
    builder, size = BatchBuilder(compression=compression), HEADER_SIZE
    for record in records:
        record_size = size_of(record)
        if size + record_size > bytes_max and builder.record_count:
            yield builder.build()
            builder, size = BatchBuilder(compression=compression), HEADER_SIZE
        key, value = record
        builder.append(timestamp=timestamp, key=key, value=value)
        size += record_size
    if builder.record_count:
        yield builder.build()


def code_for_client(code: ErrorCode) -> ErrorCode:
    """The error code for the client if the log refuses a coordinator's batch with `code`, as in Kafka."""
    return _CODES.get(code, ErrorCode.NOT_COORDINATOR)


_CODES = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
