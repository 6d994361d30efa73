"""Helpers that the tests of this chapter share."""

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.compression import Compression
from minibroker.log.interfaces import Log
from minibroker.log.record import Record


def batch_of(records: list[Record], compression: Compression = Compression.NONE) -> bytearray:
    """A producer's batch of these records; their offsets do not matter."""
    builder = BatchBuilder(compression=compression)
    for record in records:
        builder.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=record.headers)
    return builder.build()


def values_batch(*values: bytes, timestamp: int = 0) -> bytearray:
    """A batch of these values."""
    return batch_of([Record(0, timestamp, None, value) for value in values])


def read_on(log: Log, offset: int, *, bytes_max: int = 300, upto_offset: int | None = None) -> list[Record]:
    """Every record from `offset` on, fetched as a consumer does: each fetch begins after the last record."""
    found: list[Record] = []
    while True:
        fetched = log.read(offset, bytes_max=bytes_max, upto_offset=upto_offset)
        if fetched.count == 0:
            return found
        last_offset = offset - 1
        for batch in batches(fetched.read()):
            batch.check_crc()
            found += [record._replace(headers=()) for record in batch.records() if record.offset >= offset]
            last_offset = batch.header.last_offset
        assert last_offset >= offset, "a read that gives bytes must bring the reader on"
        offset = last_offset + 1
