"""The two indexes of a segment: one maps offsets to positions, one maps timestamps to offsets. A pure module.

Both are files of fixed-size entries in rising order, in Kafka's byte layout:

    .index      relative offset:int32  position:int32      the batch at `position` ends with this offset
    .timeindex  timestamp:int64  relative offset:int32     no record up to this offset is newer

Both are sparse. One entry per 4 KiB of log makes 2 MiB of offset index for a gibibyte of log. The first key of each
page of entries stays in memory, 8 bytes for each 4 KiB of index. So a search reads one page from the page cache,
however large the log is. New entries are written a page at a time. If a crash loses the end of an index, or all of it,
the index is rebuilt from the log.
"""

import struct
from array import array
from bisect import bisect_right
from contextlib import suppress

from minibroker.log.interfaces import File, write_all

_PAGE_BYTES = 4096


class Index:
    """Entries of two numbers, sorted by the first."""

    _entry = struct.Struct(">ii")

    def __init__(self, file: File) -> None:
        self._file = file
        self._page = _PAGE_BYTES // self._entry.size
        self._written, self._torn_bytes = divmod(file.size(), self._entry.size)
        self._pending = bytearray()
        self._is_flushed = True
        self.count = self._written  # the number of entries, written or pending
        self._first_keys = array("q")  # the first key of each page, as of the last search

    @property
    def size(self) -> int:
        """The size of all entries in bytes."""
        return self.count * self._entry.size

    @property
    def last(self) -> tuple[int, int] | None:
        """The last entry."""
        return self.entry(self.count - 1) if self.count else None

    def is_sane(self) -> bool:
        """Whether the file can be an index: whole entries, no negative number, the first entry below the last.

        An entry of the offset index is also checked against its batch when it is used, and every entry by a scrub.
        """
        if self._torn_bytes or not self._written:
            return not self._torn_bytes
        last = self.entry(self._written - 1)
        first = self.entry(0) if self._written > 1 else last
        return min(*first, *last) >= 0 and (self._written == 1 or first < last)

    def append(self, key: int, value: int) -> None:
        """Add an entry after all others. Entries stay pending until they fill a page, or until `write` is called."""
        pending = self._pending
        pending += self._entry.pack(key, value)
        self.count += 1
        if len(pending) >= _PAGE_BYTES:
            # If the index cannot be written, the append must still succeed: the batch is already in the log.
            with suppress(OSError):
                self.write()

    def write(self) -> None:
        """Write the pending entries into the page cache. If the write fails, they stay pending."""
        if self._pending:
            self._is_flushed = False
            write_all(self._file, self._pending, self._written * self._entry.size)
            self._written = self.count
            self._pending = bytearray()

    def entry(self, slot: int) -> tuple[int, int]:
        """The entry with this number; the first is 0."""
        size = self._entry.size
        if slot >= self._written:
            key, value = self._entry.unpack_from(self._pending, (slot - self._written) * size)
        else:
            key, value = self._entry.unpack(self._file.pread(size, slot * size))
        return key, value

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        _first, page = self._page_for(key)
        slot = self._floor_in(page, key)
        if slot < 0:
            return None
        found, value = self._entry.unpack_from(page, slot * self._entry.size)
        return found, value

    def floor_slot(self, key: int) -> int:
        """The number of the last entry whose key is at most `key`, or -1."""
        first, page = self._page_for(key)
        return first + self._floor_in(page, key)

    def _page_for(self, key: int) -> tuple[int, bytes]:
        """The page with the last entry whose key is at most `key`: the number of its first entry, and its bytes."""
        # Read the first key of each page that was added since the last search, and keep it. Bisect those keys for the
        # page. A key below all of them belongs to the first page. Read that page from the file. The pending entries may
        # begin in this page and continue in the next.
        for slot in range(len(self._first_keys) * self._page, self.count, self._page):
            self._first_keys.append(self.entry(slot)[0])
        first = max(bisect_right(self._first_keys, key) - 1, 0) * self._page
        size = self._entry.size
        page = self._file.pread(self._page * size, first * size) if first < self._written else b""
        if first + self._page > self._written:
            page += self._pending[max(first - self._written, 0) * size :]
        return first, page

    def _floor_in(self, page: bytes, key: int) -> int:
        """The number, within a page, of the last entry whose key is at most `key`; -1 if there is none."""
        size, unpack_from = self._entry.size, self._entry.unpack_from
        return bisect_right(range(len(page) // size), key, key=lambda slot: unpack_from(page, slot * size)[0]) - 1

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries. The file is only cut, and no pending entry is written."""
        if count >= self.count:
            return
        # This writes nothing, so that a log can be truncated on a full disk.
        self._is_flushed = False
        size = self._entry.size
        del self._pending[max(count - self._written, 0) * size :]
        if count < self._written:
            self._file.truncate(count * size)
            self._written, self._torn_bytes = count, 0
        self.count = count
        del self._first_keys[-(-count // self._page) :]

    def reset(self) -> None:
        """Remove all entries and any torn bytes at the end of the file."""
        # If this fails, the old entries are overwritten later, or the check against the log finds them wrong.
        self._is_flushed = False
        with suppress(OSError):
            self._file.truncate(0)
        self._written = self.count = self._torn_bytes = 0
        self._pending = bytearray()
        del self._first_keys[:]

    def flush(self) -> None:
        """Write the pending entries, and flush the file if it has changed."""
        self.write()
        if not self._is_flushed:
            self._file.fsync()
            self._is_flushed = True

    def close(self) -> None:
        """Write the pending entries and close the file."""
        self.write()
        self._file.close()


class OffsetIndex(Index):
    """Maps the last offset of a batch, relative to the base offset, to the batch's position."""

    _entry = struct.Struct(">ii")
    ENTRY_BYTES = _entry.size


class TimeIndex(Index):
    """Maps the largest timestamp so far to the relative offset of the batch that has it."""

    _entry = struct.Struct(">qi")
    ENTRY_BYTES = _entry.size

    def append_if_younger(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry, if the timestamp is larger than the last entry's."""
        last = self.last
        if timestamp > (last[0] if last else -1):
            self.append(timestamp, relative_offset)
