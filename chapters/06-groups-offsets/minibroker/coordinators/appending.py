"""The records of a coordinator as batches for the log. A pure module."""

from collections.abc import Iterable, Iterator, Sequence

from minibroker.groups.pending import Producer
from minibroker.log.batch import HEADER_SIZE, BatchBuilder
from minibroker.log.compression import Compression
from minibroker.wire.codes import ErrorCode

Encoded = tuple[bytes, bytes | None]

_RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 1  # length, attributes, time, offset, lengths of key and value, headers


def encoded(records: Iterable[Encoded], *, bytes_max: int) -> list[Encoded] | None:
    """The records; None if one of them does not fit into a batch of `bytes_max`."""
    found = list(records)
    fits = all(HEADER_SIZE + size_of(it) <= bytes_max for it in found)
    return found if fits else None


def size_of(record: Encoded) -> int:
    """The most bytes that a record can take in a batch."""
    key, value = record
    return _RECORD_OVERHEAD_MAX + len(key) + (0 if value is None else len(value))


class Collected:
    """The records of several steps, in order, until they are appended as batches.

    A batch is part of one transaction, or of none. A marker is a batch of its own.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Producer | None, list[Encoded]] | bytes | bytearray] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, records: list[Encoded], producer: Producer | None) -> None:
        """Add the records of a step, perhaps of a producer's transaction."""
        last = self._runs[-1] if self._runs else None
        if isinstance(last, tuple) and last[0] == producer:
            last[1].extend(records)
        elif records:
            self._runs.append((producer, records))

    def add_batch(self, batch: bytes | bytearray) -> None:
        """Add a batch as it is."""
        self._runs.append(batch)

    def batches(self, *, bytes_max: int, timestamp: int, compression: Compression) -> Iterator[bytes | bytearray]:
        """All records, in as few batches as possible."""
        for run in self._runs:
            if isinstance(run, tuple):
                producer, records = run
                yield from batches_of(
                    records, bytes_max=bytes_max, timestamp=timestamp, compression=compression, producer=producer
                )
            else:
                yield run


def batches_of(
    records: Sequence[Encoded],
    *,
    bytes_max: int,
    timestamp: int,
    compression: Compression = Compression.NONE,
    producer: Producer | None = None,
) -> Iterator[bytearray]:
    """The records in as few batches as possible, none larger than `bytes_max`."""
    builder, size = _builder(compression, producer), HEADER_SIZE
    for record in records:
        record_size = size_of(record)
        if size + record_size > bytes_max and builder.record_count:
            yield builder.build()
            builder, size = _builder(compression, producer), HEADER_SIZE
        key, value = record
        builder.append(timestamp=timestamp, key=key, value=value)
        size += record_size
    if builder.record_count:
        yield builder.build()


def _builder(compression: Compression, producer: Producer | None) -> BatchBuilder:
    if producer is None:
        return BatchBuilder(compression=compression)
    # A coordinator's batches have the sequence number 0, as in Kafka. Nobody checks it.
    return BatchBuilder(
        compression=compression,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        is_transactional=True,
    )


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
