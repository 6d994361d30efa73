"""Both indexes of one segment, updated together: the first companion of a log. A pure module."""

from minibroker.log.batch import NO_TIMESTAMP, BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import File, FileSlice
from minibroker.segments.config import LogConfig
from minibroker.segments.index import OffsetIndex, TimeIndex

OFFSET_SUFFIX = ".index"
TIME_SUFFIX = ".timeindex"


class Indexes:
    """An offset index and a time index. Both get their entries at the same batches, as in Kafka."""

    def __init__(self, offsets: File, times: File, *, base_offset: int, config: LogConfig) -> None:
        self.offsets = OffsetIndex(offsets)
        self.times = TimeIndex(times)
        self._base_offset = base_offset
        self._interval_bytes = config.index_interval_bytes
        # One entry of the time index is reserved: it is added when the segment is sealed.
        self._offsets_max = config.segment_index_bytes // OffsetIndex.ENTRY_BYTES
        self._times_max = config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1
        self._load()

    def _load(self) -> None:
        """Read the last entries. The next batch is compared with them."""
        _relative_offset, self._entry_position = self.offsets.last or (0, 0)
        timestamp, relative_offset = self.times.last or (NO_TIMESTAMP, 0)
        self.max_timestamp = self._indexed_timestamp = timestamp
        self.max_timestamp_offset = self._base_offset + relative_offset
        self.is_full = self._has_no_room()

    def is_sane(self) -> bool:
        """Whether both files can be valid indexes."""
        return self.offsets.is_sane() and self.times.is_sane()

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:  # noqa: ARG002
        """Note a batch. If it begins more than the interval after the last entry's batch, add entries.

        The offset index then gets an entry for it, and the time index one if the largest timestamp has grown.
        """
        # Remember the first batch that has the largest timestamp so far.
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        # If the batch begins more than the interval after the last entry's batch, add an entry for it, remember its
        # position, and note whether the indexes have room for another one (`is_full`: the log then rolls).
        if position - self._entry_position > self._interval_bytes:
            self.offsets.append(last_offset - self._base_offset, position)
            self._append_time()
            self._entry_position = position
            self.is_full = self._has_no_room()

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        """Note a batch that is in the file already, to rebuild the indexes."""
        self.on_append(header, b"", batch.position)

    def _append_time(self) -> None:
        # Timestamps in the index only grow.
        if self.max_timestamp > self._indexed_timestamp:
            self._indexed_timestamp = self.max_timestamp
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self._base_offset)

    def position_before(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or before `offset`: the last offset of a batch, and that batch's position."""
        entry = self.offsets.floor(offset - self._base_offset)
        return None if entry is None else (self._base_offset + entry[0], entry[1])

    def last_position(self) -> tuple[int, int] | None:
        """The last entry: the last offset of a batch, and that batch's position."""
        entry = self.offsets.last
        return None if entry is None else (self._base_offset + entry[0], entry[1])

    def offset_before(self, timestamp: int) -> int:
        """An offset such that every batch that ends before it has only records older than `timestamp`."""
        entry = self.times.floor(timestamp)
        return self._base_offset + (entry[1] if entry else 0)

    @property
    def room(self) -> int:
        """How many more entries both indexes have room for."""
        return min(self._offsets_max - self.offsets.count, self._times_max - self.times.count)

    def _has_no_room(self) -> bool:
        return self.offsets.count >= self._offsets_max or self.times.count >= self._times_max

    def reset(self) -> None:
        """Remove all entries."""
        self.offsets.reset()
        self.times.reset()
        self._load()

    def truncate(self, offset: int) -> None:
        """Remove the entries of batches whose last offset is `offset` or later."""
        relative_offset = offset - self._base_offset
        self.offsets.truncate(self.offsets.floor_slot(relative_offset - 1) + 1)
        # The time index is sorted by timestamp and also by offset, so remove entries from its end.
        kept = self.times.count
        while kept and self.times.entry(kept - 1)[1] >= relative_offset:
            kept -= 1
        self.times.truncate(kept)
        self._load()

    def seal(self) -> None:
        """Add the segment's largest timestamp as the last entry, before the segment is closed."""
        self._append_time()
        self.offsets.write()
        self.times.write()

    def flush(self) -> None:
        """Flush both files."""
        self.offsets.flush()
        self.times.flush()

    def close(self) -> None:
        """Close both files."""
        self.offsets.close()
        self.times.close()
