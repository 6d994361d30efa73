"""One segment: a log file of chapter 01 and its indexes, named after its base offset. A pure module.

Only the last segment of a log, the active one, is written to. The others never change until they are deleted or
replaced. A segment opens its files when it is first used, so a log of a thousand segments opens as fast as one segment.
"""

from collections.abc import Iterator
from contextlib import suppress

from minibroker.log.batch import Batch, BatchHeader
from minibroker.log.interfaces import File, Files, FileSlice, directory_of
from minibroker.log.logfile import FlushPolicy, LogFile
from minibroker.log.record import Record
from minibroker.log.recovery import Recovered, header_at, headers, recover
from minibroker.segments.config import LogConfig
from minibroker.segments.hopping import header_ending_with, hop, walk
from minibroker.segments.indexes import OFFSET_SUFFIX, TIME_SUFFIX, Indexes

LOG_SUFFIX = ".log"
RELATIVE_OFFSET_MAX = 2**31 - 1  # the indexes store it as an int32
SUFFIXES = (LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)
TRANSACTION_SUFFIX = ".txnindex"  # a companion of chapter 06 writes this file; it belongs to one segment


def stem(directory: str, base_offset: int) -> str:
    """The name of a segment's files without their suffix: twenty digits, so that names sort like numbers."""
    return f"{directory}/{base_offset:020}"


class Segment:
    """A run of batches from `base_offset` on."""

    def __init__(self, files: Files, directory: str, base_offset: int, config: LogConfig, suffix: str = "") -> None:
        self._files = files
        self._stem = stem(directory, base_offset)
        self._suffix = suffix  # `.cleaned` and `.swap` while compaction replaces a segment
        self._config = config
        self._file: File | None = None
        self._indexes: Indexes | None = None
        self._size: int | None = None
        self._first_timestamp: int | None = None
        self.base_offset = base_offset
        self.tail: LogFile | None = None

    # Files ----------------------------------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        """The path of one of the segment's files."""
        return self._stem + suffix + self._suffix

    @property
    def file(self) -> File:
        """The log file."""
        if self._file is None:
            self._file = self._files.open(self.path(LOG_SUFFIX))
        return self._file

    @property
    def indexes(self) -> Indexes:
        """The indexes, rebuilt if they are missing or not plausible, which is checked when they are opened here."""
        if self._indexes is None and self._are_missing(self.open_indexes()):
            self.rebuild_indexes()
        return self.open_indexes()

    def open_indexes(self) -> Indexes:
        """The indexes as they are in the files, even if they are wrong."""
        if self._indexes is None:
            self._indexes = Indexes(
                self._files.open(self.path(OFFSET_SUFFIX)),
                self._files.open(self.path(TIME_SUFFIX)),
                base_offset=self.base_offset,
                config=self._config,
            )
        return self._indexes

    def _are_missing(self, indexes: Indexes) -> bool:
        # A segment that is longer than the index interval must have an offset entry, and a segment whose first batch
        # has a timestamp must have a time entry. An index without that entry counts as missing.
        if not indexes.is_sane():
            return True
        if indexes.offsets.count == 0 and self.size > self._config.index_interval_bytes:
            return True
        return indexes.times.count == 0 and self.first_timestamp >= 0

    @property
    def size(self) -> int:
        """The size of the log file in bytes."""
        if self.tail is not None:
            return self.tail.size
        if self._size is None:
            self._size = self.file.size()
        return self._size

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment's records, or -1."""
        return self.indexes.max_timestamp

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, or -1. `segment.ms` is counted from it."""
        if self._first_timestamp is None:
            if self.size == 0:
                return -1
            self._first_timestamp = header_at(self.file, 0).max_timestamp
        return self._first_timestamp

    # Writing --------------------------------------------------------------------------------------------------------

    def open_tail(self, recovered: Recovered, flush_policy: FlushPolicy) -> LogFile:
        """Make this the active segment."""
        assert self.indexes is not None, "the indexes must be opened before the first append changes the file"
        self.tail = LogFile(self.file, recovered, base_offset=self.base_offset, flush_policy=flush_policy)
        return self.tail

    def write(self, batch: bytearray | memoryview, header: BatchHeader) -> int:
        """Append a batch that was checked and stamped; return its position."""
        assert self.tail is not None, "only the active segment is written to"
        position = self.tail.size
        self.tail.write(batch, header)
        self.indexes.on_append(header, batch, position)
        return position

    def drop_cache(self) -> None:
        """Drop the cached pages of the log file and the indexes, so that the next reads see the disk's content."""
        self.file.drop_cache()
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            index = self._files.open(self.path(suffix))
            index.drop_cache()
            index.close()

    def check(self, *, start: Recovered, recovery_point: int) -> Recovered:
        """Find how much is valid from `start` on, without changing anything.

        Gaps are valid. The log may have been compacted, here or on another node, and no file records that.
        """
        return recover(self.file, start=start, dense=False, recovery_point=recovery_point)

    def keep(self, *, start: Recovered, recovered: Recovered) -> None:
        """Cut off the invalid rest, and put the checked batches into the indexes."""
        if recovered.damage is not None:
            self.file.truncate(recovered.size)
        self._size = recovered.size
        self.open_indexes().truncate(start.log_end_offset)
        self._index_from(start.size)

    def check_start(self, recovery_point: int) -> Recovered:
        """Where the check must begin to cover everything from `recovery_point` on.

        The check begins at the last index entry before the recovery point, not at the segment's start. The index may be
        damaged, too, so the entry is used only if the batch at its position ends with the entry's offset.
        """
        # Indexes that are not plausible, lead to another batch, or lack all times are emptied. `keep` fills them again.
        nothing = Recovered(size=0, log_end_offset=self.base_offset)
        indexes = self.open_indexes()
        if not indexes.is_sane():
            indexes.reset()
        entry = indexes.position_before(recovery_point - 1)
        header = None if entry is None else header_ending_with(self.file, *entry)
        if entry is None or header is None or (header.max_timestamp >= 0 and indexes.times.count == 0):
            indexes.reset()
            return nothing
        return Recovered(size=entry[1], log_end_offset=header.base_offset)

    def truncate(self, offset: int) -> Recovered:
        """Remove every batch that holds `offset` or a later one; return the remaining part."""
        found = self.find(offset)
        if found is not None:
            # Cut the indexes first. After a crash in between, entries are missing, but none points to a removed batch.
            self.indexes.truncate(found[1].base_offset)
            self.file.truncate(found[0])
            self._size = found[0]
        self.tail = self._first_timestamp = None
        return self.end()

    def end(self) -> Recovered:
        """The end of the segment. Headers are read from the last index entry on, without checking checksums."""
        entry = self.indexes.last_position()
        end = Recovered(size=0, log_end_offset=self.base_offset)
        if entry is not None and header_ending_with(self.file, *entry) is not None:
            end = Recovered(size=entry[1], log_end_offset=self.base_offset)
        for position, header in self.walk(end.size):
            end = Recovered(position + header.size, header.next_offset, header.leader_epoch)
            if header.max_timestamp > self.indexes.max_timestamp:
                self.indexes.max_timestamp = header.max_timestamp
                self.indexes.max_timestamp_offset = header.last_offset
        return end

    def seal(self) -> None:
        """Add the last entry to the time index, because the segment is closed. Nothing is flushed."""
        with suppress(OSError):
            self.indexes.seal()
        self._size = self.size

    def flush(self) -> None:
        """Make the log file and the indexes durable."""
        assert self.tail is not None, "only a segment that was written to can be flushed"
        self.tail.flush()
        self.flush_indexes()

    def flush_indexes(self) -> None:
        """Flush the open indexes. If that fails, remove the files: a missing index is rebuilt, half of one is wrong.

        Raises OSError if an index can neither be flushed nor removed.
        """
        indexes = self._indexes
        if indexes is None:
            return
        try:
            indexes.flush()
        except OSError:
            for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                with suppress(FileNotFoundError):
                    self._files.unlink(self.path(suffix))

    # Finding --------------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch whose last offset is at least `offset`: its position and header, or None."""
        return self._hop(self._start_for(offset), offset=offset)

    def find_time(self, timestamp: int, *, offset: int = 0) -> Record | None:
        """The first record from `offset` on that is not older than `timestamp`."""
        # The time index gives an offset, and the offset index gives a position. From that position on, only batches
        # whose max timestamp is not older than `timestamp` are decoded.
        position = self._start_for(max(self.indexes.offset_before(timestamp), offset))
        while (found := self._hop(position, timestamp=timestamp)) is not None:
            position, header = found
            for record in Batch(self.file.pread(header.size, position)).records():
                if record.timestamp >= timestamp and record.offset >= offset:
                    return record
            position += header.size
        return None

    def _start_for(self, offset: int) -> int:
        entry = self.indexes.position_before(offset)
        if entry is not None and header_ending_with(self.file, *entry) is None:
            self.rebuild_indexes()
            entry = self.indexes.position_before(offset)
        return 0 if entry is None else entry[1]

    def _hop(self, position: int, *, offset: int = 2**63, timestamp: int = 2**63) -> tuple[int, BatchHeader] | None:
        """The first batch from `position` on with a last offset >= `offset` or a max timestamp >= `timestamp`."""
        return hop(self.file, self.path(LOG_SUFFIX), position, size=self.size, offset=offset, timestamp=timestamp)

    def walk(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """All batch headers from a position on."""
        return walk(self.file, self.path(LOG_SUFFIX), position, size=self.size)

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the log file."""
        indexes = self.open_indexes()
        indexes.reset()
        self._index_from(0)
        with suppress(OSError):
            indexes.seal()
            indexes.flush()
            self._files.fsync_directory(directory_of(self._stem))

    def _index_from(self, position: int) -> None:
        indexes = self.open_indexes()
        for at, header in headers(self.file, position=position):
            indexes.replay(header, FileSlice(self.file, at, header.size))

    # Deleting and renaming ------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Remove the files. A reader that holds a slice can still read it, because the system keeps the bytes."""
        # The log file is removed last. If the process is killed before that, the segment is still whole: the next start
        # rebuilds its indexes.
        self.release_files()
        for suffix in (TRANSACTION_SUFFIX, *reversed(SUFFIXES)):
            with suppress(FileNotFoundError):
                self._files.unlink(self.path(suffix))

    def release_files(self) -> None:
        """Drop the references to the open files. A file stays open only while a reader's slice refers to it."""
        self._file = self._indexes = self.tail = None

    def rename(self, suffix: str) -> None:
        """Rename the files to another suffix, or to none. Open files stay open."""
        # The log file is renamed last. Until then the segment has its old name. An index file may be missing.
        for part in (TIME_SUFFIX, OFFSET_SUFFIX):
            with suppress(FileNotFoundError):
                self._files.rename(self.path(part), self._stem + part + suffix)
        self._files.rename(self.path(LOG_SUFFIX), self._stem + LOG_SUFFIX + suffix)
        self._suffix = suffix

    def close(self) -> None:
        """Close the files."""
        if self._indexes is not None:
            with suppress(OSError):
                self._indexes.close()
        if self._file is not None:
            self._file.close()
        self.release_files()
