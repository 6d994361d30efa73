"""The two indexes of one segment kept together: the first companion of a log. A pure module."""

from minibroker.log.batch import NO_TIMESTAMP, BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import File, FileSlice
from minibroker.segments.config import LogConfig
from minibroker.segments.index import OffsetIndex, TimeIndex

OFFSET_SUFFIX = ".index"
TIME_SUFFIX = ".timeindex"


class Indexes:
    """An offset index and a time index that get their entries at the same batches, as Kafka's do."""

    def __init__(self, offsets: File, times: File, *, base_offset: int, config: LogConfig) -> None:
        self.offsets = OffsetIndex(offsets)
        self.times = TimeIndex(times)
        self._base_offset = base_offset
        self._interval_bytes = config.index_interval_bytes
        # The time index keeps room for one entry more: the one it gets when the segment is sealed.
        self._offsets_max = config.segment_index_bytes // OffsetIndex.ENTRY_BYTES
        self._times_max = config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1
        self._load()

    def _load(self) -> None:
        """Take from the last entries what the next batch is held against."""
        _relative_offset, self._entry_position = self.offsets.last or (0, 0)
        timestamp, relative_offset = self.times.last or (NO_TIMESTAMP, 0)
        self.max_timestamp = self._indexed_timestamp = timestamp
        self.max_timestamp_offset = self._base_offset + relative_offset
        self.is_full = self._has_no_room()

    def is_sane(self) -> bool:
        """Whether both files can be indexes at all."""
        return self.offsets.is_sane() and self.times.is_sane()

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:  # noqa: ARG002
        """Take a batch into account; every so many bytes it becomes an entry of both."""
        # Remember the first batch that reached the largest timestamp so far.
        last_offset = header.base_offset + header.last_offset_delta
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        # If more than the interval has passed since the last entry, this batch becomes one.
        if position - self._entry_position > self._interval_bytes:
            self.offsets.append(last_offset - self._base_offset, position)
            self._append_time()
            self._entry_position = position
            self.is_full = self._has_no_room()

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        """Take a batch into account that the file holds already: the indexes are built anew."""
        self.on_append(header, b"", batch.position)

    def _append_time(self) -> None:
        # Not if the last entry says as much.
        if self.max_timestamp > self._indexed_timestamp:
            self._indexed_timestamp = self.max_timestamp
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self._base_offset)

    def position_before(self, offset: int) -> tuple[int, int] | None:
        """The last entry not behind `offset`: the offset with which a batch ends, and that batch's position."""
        entry = self.offsets.floor(offset - self._base_offset)
        return None if entry is None else (self._base_offset + entry[0], entry[1])

    def last_position(self) -> tuple[int, int] | None:
        """The same for an offset behind all entries."""
        entry = self.offsets.last
        return None if entry is None else (self._base_offset + entry[0], entry[1])

    def offset_before(self, timestamp: int) -> int:
        """An offset before which no record has this timestamp or a younger one."""
        entry = self.times.floor(timestamp)
        return self._base_offset + (entry[1] if entry else 0)

    def _has_no_room(self) -> bool:
        return self.offsets.count >= self._offsets_max or self.times.count >= self._times_max

    def reset(self) -> None:
        """Forget everything, whatever the files hold."""
        self.offsets.reset()
        self.times.reset()
        self._load()

    def truncate(self, offset: int) -> None:
        """Forget the entries of batches that end with `offset` or behind it."""
        relative_offset = offset - self._base_offset
        self.offsets.truncate(self.offsets.floor_slot(relative_offset - 1) + 1)
        # The time index is sorted by timestamp, and by offset as well.
        kept = self.times.count
        while kept and self.times.entry(kept - 1)[1] >= relative_offset:
            kept -= 1
        self.times.truncate(kept)
        self._load()

    def seal(self) -> None:
        """Before the segment is closed: the largest timestamp of all becomes the last entry."""
        self._append_time()
        self.offsets.write()
        self.times.write()

    def flush(self) -> None:
        """Make both durable."""
        self.offsets.flush()
        self.times.flush()

    def close(self) -> None:
        """Give both files back."""
        self.offsets.close()
        self.times.close()
