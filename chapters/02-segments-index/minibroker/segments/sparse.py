"""A log of any size that takes little disk space and is created in seconds, for benchmarks and labs. A pure module.

Names, sizes and indexes are the same as in a real log. Only the batches that a test reads are written. The rest of each
file is a hole, which takes no disk space and reads as zeros.

All batches have the same size, and the record with offset n was written n milliseconds after `START_MS`. So the result
of every lookup can be computed.
"""

import struct

from crc32c import crc32c

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    MAX_TIMESTAMP_AT,
    BatchBuilder,
    read_header,
    stamp,
)
from minibroker.log.interfaces import File, Files
from minibroker.log.record import encode_record
from minibroker.segments.config import LogConfig
from minibroker.segments.index import OffsetIndex, TimeIndex
from minibroker.segments.indexes import OFFSET_SUFFIX, TIME_SUFFIX
from minibroker.segments.segment import LOG_SUFFIX, stem

START_MS = 1_700_000_000_000
VALUE_BYTES = 1000

_TIMESTAMPS = struct.Struct(">qq")  # base timestamp and max timestamp, which are adjacent
_CRC = struct.Struct(">I")


class SparseLog:
    """Creates the files of a sparse log, and computes their content."""

    def __init__(
        self, files: Files, directory: str, *, size: int, batch_bytes: int, config: LogConfig | None = None
    ) -> None:
        self.directory = directory
        self.config = config or LogConfig()
        self._files = files
        self._batch = batch_of(batch_bytes)
        self._records = read_header(self._batch).record_count
        self._batch_count = size // batch_bytes
        self._segment_batches = self.config.segment_bytes // batch_bytes
        self._entry_batches = self.config.index_interval_bytes // batch_bytes + 1

    @property
    def size(self) -> int:
        """The size of all batches in bytes, written or not."""
        return self._batch_count * len(self._batch)

    @property
    def log_end_offset(self) -> int:
        """The offset after the last record."""
        return self._batch_count * self._records

    @property
    def index_bytes(self) -> int:
        """The size of all indexes in bytes."""
        names = [name for name in self._files.list(self.directory) if name.endswith((OFFSET_SUFFIX, TIME_SUFFIX))]
        return sum(self._files.open(f"{self.directory}/{name}").size() for name in names)

    def write(self) -> None:
        """Create the files with real indexes. Write the first batch of the last segment, and the end of the log."""
        self._files.mkdir(self.directory)
        for first in range(0, self._batch_count, self._segment_batches):
            self._write_segment(first, min(self._segment_batches, self._batch_count - first))
        self._fill(first, first + 1)
        self.fill(self.log_end_offset - 1)

    def fill(self, offset: int) -> None:
        """Write the batches that are read by a search for this offset or for its timestamp."""
        number = offset // self._records
        self._fill(self._entry_before(number), number + 1)

    def fill_from(self, offset: int) -> None:
        """Write all batches that a recovery checks if it begins at this offset."""
        self._fill(self._entry_before(offset // self._records), self._batch_count)

    def fill_headers(self) -> None:
        """Write the headers of all batches, without records, for a test that reads every header."""
        self._fill(0, self._batch_count, bytes_max=HEADER_SIZE)

    def _entry_before(self, number: int) -> int:
        """The number of the batch at which a search for this batch starts: it has an index entry, or is the first."""
        first = number - number % self._segment_batches
        return first + max(number - first - 1, 0) // self._entry_batches * self._entry_batches

    def _write_segment(self, first: int, count: int) -> None:
        path = stem(self.directory, first * self._records)
        log = self._files.open(path + LOG_SUFFIX)
        log.truncate(count * len(self._batch))
        log.close()
        offsets = OffsetIndex(self._files.open(path + OFFSET_SUFFIX))
        times = TimeIndex(self._files.open(path + TIME_SUFFIX))
        # Add the same entries as `Indexes` does: one whenever the log has grown by more than the interval.
        start_ms = START_MS + first * self._records
        for number in range(self._entry_batches, count, self._entry_batches):
            last_offset = (number + 1) * self._records - 1
            offsets.append(last_offset, number * len(self._batch))
            times.append(start_ms + last_offset, last_offset)
        last_offset = count * self._records - 1
        times.append_if_younger(start_ms + last_offset, last_offset)
        offsets.close()
        times.close()

    def _fill(self, first: int, stop: int, bytes_max: int | None = None) -> None:
        opened: dict[int, File] = {}
        for number in range(first, stop):
            segment, slot = divmod(number, self._segment_batches)
            if segment not in opened:
                base_offset = segment * self._segment_batches * self._records
                opened[segment] = self._files.open(stem(self.directory, base_offset) + LOG_SUFFIX)
            opened[segment].pwrite(self._stamped(number)[:bytes_max], slot * len(self._batch))
        for file in opened.values():
            file.close()

    def _stamped(self, number: int) -> bytearray:
        base_offset = number * self._records
        base_timestamp = START_MS + base_offset
        stamp(self._batch, base_offset=base_offset, leader_epoch=0)
        set_timestamps(self._batch, base_timestamp, base_timestamp + self._records - 1)
        return self._batch


def batch_of(batch_bytes: int) -> bytearray:
    """A batch of exactly `batch_bytes`. It has records of 1 KB, one millisecond apart. The last record fills it up."""
    builder = BatchBuilder(leader_epoch=0)
    while builder.size + 2 * VALUE_BYTES < batch_bytes:
        builder.append(timestamp=builder.record_count, key=None, value=bytes(VALUE_BYTES))
    # A record takes a few bytes more than its value, so find the right size of the value by trial.
    last = builder.record_count
    for size in range(batch_bytes - builder.size, -1, -1):
        record = encode_record(offset_delta=last, timestamp_delta=last, key=None, value=bytes(size))
        if builder.size + len(record) == batch_bytes:
            builder.append(timestamp=last, key=None, value=bytes(size))
            return builder.build()
    raise ValueError(f"no batch has exactly {batch_bytes} bytes")


def set_timestamps(batch: bytearray, base_timestamp: int, max_timestamp: int) -> None:
    """Change a batch's timestamps. Records store differences from the base timestamp, so only the header changes."""
    _TIMESTAMPS.pack_into(batch, MAX_TIMESTAMP_AT - 8, base_timestamp, max_timestamp)
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
