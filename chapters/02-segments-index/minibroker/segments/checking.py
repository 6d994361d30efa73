"""Check every batch of a segment, and every index entry against its batch. A pure module.

The scrub and `dump --verify` use this module. The log is read once, in pieces, together with both indexes, so memory
use does not depend on their sizes. A damaged batch is one finding. The batch after it is not checked for order, and no
later index entry is checked against the log.

Some flipped bits cannot be found. The checksum covers a batch from its attributes on. Five fields come before:

- length, magic and the checksum itself: a flip makes the checksum wrong, or the batch unreadable
- base offset: found where offsets are dense, by comparison with the neighbouring batches. In a compacted log, a wrong
  base offset that fits into the gap around the batch is found only if the offset index has an entry for the batch
- leader epoch: found where both neighbouring batches have the same epoch. Where these differ, a wrong value between
  the two is not found. The first batch of a log has no earlier batch to compare with
"""

import struct
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from minibroker.log.batch import ATTRIBUTES_AT, NO_LEADER_EPOCH, NO_TIMESTAMP, BatchHeader
from minibroker.log.errors import CorruptBatch
from minibroker.log.interfaces import File, Files, FileSlice
from minibroker.log.recovery import CHUNK_BYTES, check_continuity, header_at, headers
from minibroker.log.text import time_text
from minibroker.segments.index import Index, OffsetIndex, TimeIndex
from minibroker.segments.segment import LOG_SUFFIX, SUFFIXES

_ZEROS_CHUNK_BYTES = 64 * 1024


class Progress(NamedTuple):
    """Reports that some bytes were read. The caller may pause here."""

    path: str
    bytes_read: int
    batch: BatchHeader | None = None  # the batch that ends with these bytes


class Finding(NamedTuple):
    """Damage, and where it is."""

    path: str
    position: int
    what: str

    @property
    def remedy(self) -> str:
        """How to repair the damage."""
        if LOG_SUFFIX in self.path.rpartition("/")[2]:
            return "restore the segment from a replica or a copy; its other batches are still good"
        return "rebuild the index from the log; no record is lost"

    def __str__(self) -> str:
        return f"{self.path}: position {self.position}: {self.what}"


class Source(NamedTuple):
    """The files of one segment, open for reading. A missing index is None."""

    base_offset: int
    log_path: str
    log: File
    offsets_path: str
    offsets: File | None
    times_path: str
    times: File | None

    def close(self) -> None:
        """Close the files."""
        for file in (self.log, self.offsets, self.times):
            if file is not None:
                file.close()


def open_source(files: Files, path: Callable[[str], str], base_offset: int) -> Source:
    """Open a segment's files for reading; `path` maps a suffix to a path. A missing log raises FileNotFoundError."""
    log_path, offsets_path, times_path = (path(suffix) for suffix in SUFFIXES)
    log = files.open(log_path, create=False, writable=False)
    offsets, times = _open_index(files, offsets_path), _open_index(files, times_path)
    return Source(base_offset, log_path, log, offsets_path, offsets, times_path, times)


def _open_index(files: Files, path: str) -> File | None:
    try:
        return files.open(path, create=False, writable=False)
    except FileNotFoundError:
        return None


class End(NamedTuple):
    """The end of a segment: the next offset, the last epoch, and whether the last batch is undamaged."""

    position: int  # the last batch begins here
    log_end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    is_sound: bool = True


# The indexes --------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One entry of an index, and its damage, if any."""

    slot: int
    key: int
    value: int
    damage: str | None = None


class IndexCheck:
    """Checks the entries of one index against the batches. The caller passes the batches in order."""

    def __init__(self, index: Index, base_offset: int, count: int) -> None:
        self._index = index
        self._base_offset = base_offset
        self._count = count
        self._slot = 0
        self._last_good = (-1, -1)
        self._waiting: Entry | None = self._next()
        self.damaged = self.unchecked = 0

    def on_batch(self, header: BatchHeader, position: int) -> list[Entry]:
        """Check the entries up to this batch, and return them, good or damaged."""
        place = self._place(header, position)
        decided = []
        while self._waiting is not None and (self._waiting.damage or self._waiting.value <= place):
            damage = self._waiting.damage or self._fault(self._waiting, header, position)
            decided.append(self._decide(self._waiting, damage))
        return decided

    def rest(self, *, saw_all: bool) -> Iterator[Entry]:
        """The entries that are left after the last checked batch.

        `saw_all` says that every batch was checked. Then the first of these entries is damaged, because it has no
        batch. The others stay unchecked.
        """
        while self._waiting is not None:
            self.unchecked += self._waiting.damage is None
            yield self._decide(
                self._waiting, self._waiting.damage or (self._nowhere(self._waiting) if saw_all else None)
            )
            saw_all = False

    def _next(self) -> Entry | None:
        if self._slot >= self._count:
            return None
        try:
            key, value = self._index.entry(self._slot)
        except struct.error:
            return None  # the index was rebuilt in the meantime and is shorter now
        # An entry is compared with the last good entry. So a single entry that is too high does not make later entries
        # fail.
        rises = key > self._last_good[0] and value > self._last_good[1]
        return Entry(self._slot, key, value, None if rises else "not greater than the entry before it")

    def _decide(self, entry: Entry, damage: str | None) -> Entry:
        self.damaged += damage is not None
        if damage is None:
            self._last_good = (entry.key, entry.value)
        self._slot += 1
        self._waiting = self._next()
        return entry._replace(damage=damage)

    def missing(self) -> str | None:
        """A fault if a closed segment's index is incomplete, else None. Call this after the last batch."""
        return None

    def _place(self, header: BatchHeader, position: int) -> int:
        """The value (the second number) of an index entry for this batch."""
        raise NotImplementedError

    def _fault(self, entry: Entry, header: BatchHeader, position: int) -> str | None:
        raise NotImplementedError

    def _nowhere(self, entry: Entry) -> str:
        raise NotImplementedError


class OffsetCheck(IndexCheck):
    """Checks that each entry leads to a batch that ends with the entry's offset."""

    def _place(self, header: BatchHeader, position: int) -> int:  # noqa: ARG002
        return position

    def _fault(self, entry: Entry, header: BatchHeader, position: int) -> str | None:
        if entry.value != position:
            return self._nowhere(entry)
        if header.last_offset != self._base_offset + entry.key:
            return f"the batch at position {position} ends with offset {header.last_offset}"
        return None

    def _nowhere(self, entry: Entry) -> str:
        return f"no batch begins at position {entry.value}"


class TimeCheck(IndexCheck):
    """Checks that each entry belongs to a batch with a larger timestamp than all earlier batches."""

    max_timestamp = before = NO_TIMESTAMP

    def on_batch(self, header: BatchHeader, position: int) -> list[Entry]:
        """Check the entries up to this batch, and return them, good or damaged."""
        self.before, self.max_timestamp = self.max_timestamp, max(self.max_timestamp, header.max_timestamp)
        return super().on_batch(header, position)

    def missing(self) -> str | None:
        """A fault if the last entry lacks the largest timestamp. Retention and searches by time rely on that entry."""
        if self.damaged or self._last_good[0] >= self.max_timestamp:
            return None
        return f"the index ends before the largest timestamp, {time_text(self.max_timestamp)}"

    def _place(self, header: BatchHeader, position: int) -> int:  # noqa: ARG002
        return header.last_offset - self._base_offset

    def _fault(self, entry: Entry, header: BatchHeader, position: int) -> str | None:
        if entry.value != self._place(header, position):
            return self._nowhere(entry)
        if entry.key != self.max_timestamp:
            return f"the largest timestamp up to this offset is {time_text(self.max_timestamp)}"
        if entry.key == self.before:
            return "an earlier batch has this timestamp too"
        return None

    def _nowhere(self, entry: Entry) -> str:
        return f"no batch ends with offset {self._base_offset + entry.value}"


class _IndexFile(NamedTuple):
    """One index of a segment: its file, and the check of its entries."""

    path: str
    file: File
    entry_bytes: int
    check: IndexCheck

    def on_batch(self, header: BatchHeader, position: int) -> Iterator[Finding]:
        """Check the entries up to this batch, and return the damaged ones."""
        yield from self._findings(self.check.on_batch(header, position))

    def finish(self, *, is_sound: bool, is_closed: bool) -> Iterator[Progress | Finding]:
        """The remaining findings, after the whole log was read."""
        yield from self._findings(self.check.rest(saw_all=is_sound))
        fault = self._wrong_size(is_closed=is_closed)
        lack = self.check.missing() if is_sound and is_closed else None
        if fault is not None:
            yield fault
        elif lack is not None:
            yield Finding(self.path, self.file.size(), lack)
        yield Progress(self.path, self.file.size())

    def _findings(self, entries: Iterable[Entry]) -> Iterator[Finding]:
        for entry in entries:
            if entry.damage is not None:
                yield Finding(self.path, entry.slot * self.entry_bytes, f"entry {entry.slot}: {entry.damage}")

    def _wrong_size(self, *, is_closed: bool) -> Finding | None:
        size, written = self.file.size(), written_bytes(self.file, self.entry_bytes)
        if size % self.entry_bytes:
            what = f"{size} bytes are not a multiple of {self.entry_bytes}"
            return Finding(self.path, size - size % self.entry_bytes, what)
        if is_closed and written < size:
            return Finding(self.path, written, f"{size - written} zero bytes at the end")
        return None


def _index_files(source: Source) -> Iterator[_IndexFile]:
    """The indexes of a segment, without those whose file is missing."""
    if source.offsets is not None:
        count = written_bytes(source.offsets, OffsetIndex.ENTRY_BYTES) // OffsetIndex.ENTRY_BYTES
        offsets = OffsetCheck(OffsetIndex(source.offsets), source.base_offset, count)
        yield _IndexFile(source.offsets_path, source.offsets, OffsetIndex.ENTRY_BYTES, offsets)
    if source.times is not None:
        count = written_bytes(source.times, TimeIndex.ENTRY_BYTES) // TimeIndex.ENTRY_BYTES
        times = TimeCheck(TimeIndex(source.times), source.base_offset, count)
        yield _IndexFile(source.times_path, source.times, TimeIndex.ENTRY_BYTES, times)


def _missing_indexes(source: Source) -> Iterator[Finding]:
    for path, file in ((source.offsets_path, source.offsets), (source.times_path, source.times)):
        if file is None:
            yield Finding(path, 0, "missing")


def written_bytes(file: File, entry_bytes: int) -> int:
    """The size without the zeros at the end, rounded up to whole entries. A single entry of zeros counts as written.

    Kafka preallocates the indexes of its active segment, and cuts off the zeros when the segment is rolled.
    """
    size = file.size()
    end = size
    while end > 0:
        start = max(end - _ZEROS_CHUNK_BYTES, 0)
        kept = len(file.pread(end - start, start).rstrip(b"\0"))
        if kept:
            return min(-(-(start + kept) // entry_bytes) * entry_bytes, size)
        end = start
    return size if size <= entry_bytes else 0


# The log ------------------------------------------------------------------------------------------------------------


def check_segment(source: Source, *, dense: bool, is_closed: bool) -> Iterator[Progress | Finding | End]:
    """Check one segment, step by step. The last step is an `End`."""
    indexes = list(_index_files(source))
    yield from _missing_indexes(source)
    end, is_sound, position = End(0, source.base_offset), True, 0
    try:
        for position, header in headers(source.log):
            damage = yield from _batch_damage(source, position, header, end, dense)
            if damage is not None:
                is_sound = False
                yield Finding(source.log_path, position, damage)
            elif is_sound:
                for index in indexes:
                    yield from index.on_batch(header, position)
            end = End(position, header.next_offset, header.leader_epoch, is_sound=damage is None)
            position += header.size
    except CorruptBatch as error:
        # Without a header, the start of the next batch is unknown.
        is_sound = False
        end = end._replace(is_sound=False)
        yield Finding(source.log_path, position, f"{_without_position(error)}; the bytes after it were not checked")
    for index in indexes:
        yield from index.finish(is_sound=is_sound, is_closed=is_closed)
    yield end


def against_next(source: Source, end: End, *, base_offset: int, log: File, dense: bool) -> Iterator[Finding]:
    """Check a segment's last batch against the first batch of the next segment, whose log file is `log`."""
    if not end.is_sound:
        return
    if end.log_end_offset > base_offset or (dense and end.log_end_offset < base_offset):
        what = f"the next offset is {end.log_end_offset}, but the next segment begins with {base_offset}"
        yield Finding(source.log_path, end.position, what)
    epoch = _first_epoch(log)
    if epoch is not None and epoch < end.leader_epoch:
        what = f"leader epoch {end.leader_epoch}, but the next segment begins with {epoch}"
        yield Finding(source.log_path, end.position, what)


def _first_epoch(log: File) -> int | None:
    try:
        return header_at(log, 0).leader_epoch if log.size() else None
    except CorruptBatch:
        return None


def _batch_damage(
    source: Source, position: int, header: BatchHeader, end: End, dense: bool
) -> Generator[Progress, None, str | None]:
    try:
        yield from _check_crc(source, position, header)
        if end.is_sound:
            check_continuity(position, header, expected_offset=end.log_end_offset, dense=dense)
            _check_epoch(header, end.leader_epoch)
    except CorruptBatch as error:
        return _without_position(error)
    return None


def _check_crc(source: Source, position: int, header: BatchHeader) -> Iterator[Progress]:
    # This is chapter 01's check_batch with a pause after each piece, because a damaged length may span the whole file.
    crc = 0
    covered = FileSlice(source.log, position + ATTRIBUTES_AT, header.size - ATTRIBUTES_AT)
    unread = covered.count
    for chunk in covered.chunks(CHUNK_BYTES):
        crc = crc32c(chunk, crc)
        unread -= len(chunk)
        yield Progress(source.log_path, len(chunk), None if unread else header)
    if crc != header.crc:
        raise CorruptBatch(f"crc {crc:#010x}, header says {header.crc:#010x}")


def _check_epoch(header: BatchHeader, leader_epoch: int) -> None:
    if header.leader_epoch < leader_epoch:
        raise CorruptBatch(f"leader epoch {header.leader_epoch} is older than the one before it, {leader_epoch}")


def _without_position(error: CorruptBatch) -> str:
    text = str(error)
    return text.partition(": ")[2] if text.startswith("batch at position ") else text
