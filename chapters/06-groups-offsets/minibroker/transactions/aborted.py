"""The aborted transactions of a log, in one file `.txnindex` beside each segment that has some. A pure module.

    size  field
       2  version               0
       8  producer id
       8  first offset          of the transaction's first record in this partition
       8  last offset           of the abort marker
       8  last stable offset    at the moment when the marker was written

An entry is in the file of the segment that has the marker, so the last offsets of a file ascend. The search for the
entries of a read begins in the segment of the read's first offset. It can stop at an entry whose last stable offset is
at or after the end of the read: all transactions that ended later began at or after that last stable offset.

A file is created with its first entry, so a log without aborted transactions has none. The entries before the log's
recovery point are flushed. Later entries are cut off after a crash, and the log is read again from there.
"""

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from minibroker.log.interfaces import File, Files, write_all
from minibroker.segments.segment import TRANSACTION_SUFFIX, stem

VERSION = 0
_FILES_READ_MAX = 8  # how many files without new entries are kept in memory
ENTRY = struct.Struct(">h q q q q")
assert ENTRY.size == 2 + 8 + 8 + 8 + 8  # version, producer id, first offset, last offset, last stable offset


class AbortedTransaction(NamedTuple):
    """One entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
    last_stable_offset: int


class DamagedIndex(Exception):
    """A file has an entry that cannot be right. The index is built again from the log."""


def encode(entry: AbortedTransaction) -> bytes:
    """The 34 bytes of an entry."""
    return ENTRY.pack(VERSION, *entry)


def check(data: bytes) -> None:
    """Refuse the bytes of a file with an entry that is cut off, out of order, or of another version."""
    if len(data) % ENTRY.size:
        raise DamagedIndex(f"{len(data)} bytes are not a multiple of {ENTRY.size}")
    before: AbortedTransaction | None = None
    for slot, (version, *fields) in enumerate(ENTRY.iter_unpack(data)):
        entry = AbortedTransaction(*fields)
        damage = fault(version, entry, before)
        if damage is not None:
            raise DamagedIndex(f"entry {slot}: {damage}")
        before = entry


def fault(version: int, entry: AbortedTransaction, before: AbortedTransaction | None) -> str | None:
    """Why an entry cannot be right after the entry before it, or None."""
    if version != VERSION:
        return f"version {version}, but only {VERSION} is known"
    if not 0 <= entry.first_offset < entry.last_offset or not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
        return f"offsets {entry.first_offset}, {entry.last_offset}, {entry.last_stable_offset} are out of order"
    if before is not None and entry.last_offset <= before.last_offset:
        return f"its last offset {entry.last_offset} is not after {before.last_offset}"
    return None


class _Entries:
    """The entries of one file, kept as bytes, because there may be millions."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // ENTRY.size

    def __getitem__(self, slot: int) -> AbortedTransaction:
        if slot >= len(self):
            raise IndexError(slot)
        return AbortedTransaction(*ENTRY.unpack_from(self._data, slot * ENTRY.size)[1:])

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry at the end."""
        self._data += encode(entry)

    def slot_of(self, offset: int) -> int:
        """The first entry whose marker is at `offset` or later."""
        return bisect_left(self, offset, key=_last_offset)


class AbortedIndex:
    """The files of one log. The entries of a segment are read when they are first needed."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._bases: list[int] = []  # the segments that have a file
        self._read: dict[int, _Entries] = {}  # the entries of the files that were read
        self._dirty: dict[int, File] = {}  # files with entries that are not flushed
        self._is_named = True  # whether the names of all files are flushed

    def open(self, names: Iterable[str], *, upto_offset: int) -> int:
        """Find and check the files, and durably remove the entries of markers from `upto_offset` on.

        Returns the offset from which the log must be read again: `upto_offset`, or less if a file is damaged.
        """
        # After a truncation, the entries that stay must be flushed like all others.
        self.flush()
        self._read.clear()
        self._bases = _bases(names)
        for base in self._bases:
            try:
                check(self._bytes(base))
            except DamagedIndex:
                # All entries from this segment on are made again. A transaction that ends in it may have begun before,
                # but then a snapshot of the producers has its first offset.
                upto_offset = min(upto_offset, base)
                break
        self._truncate(upto_offset)
        return upto_offset

    def _truncate(self, offset: int) -> None:
        gone = [base for base in self._bases if base >= offset]
        for base in gone:
            self._files.unlink(self._path(base))
        if gone:
            self._files.fsync_directory(self._directory)
            del self._bases[-len(gone) :]
        if self._bases:
            self._cut(self._bases[-1], offset)

    def _cut(self, base_offset: int, offset: int) -> None:
        entries = self._entries(base_offset)
        kept = entries.slot_of(offset)
        if kept < len(entries):
            file = self._files.open(self._path(base_offset))
            try:
                file.truncate(kept * ENTRY.size)
                file.fsync()
            finally:
                file.close()
        self._read.clear()

    def add(self, base_offset: int, entry: AbortedTransaction) -> None:
        """Append an entry to the file of the segment that has its marker."""
        if base_offset not in self._bases:
            insort(self._bases, base_offset)
            self._read[base_offset] = _Entries()
            self._is_named = False
        entries = self._entries(base_offset)
        if base_offset not in self._dirty:
            self._dirty[base_offset] = self._files.open(self._path(base_offset))
        write_all(self._dirty[base_offset], encode(entry), len(entries) * ENTRY.size)
        entries.append(entry)

    def flush(self) -> None:
        """Flush the new entries. A file is kept open until then, so that an error of the disk is not missed."""
        if self._dirty:
            for file in self._dirty.values():
                file.fsync()
            if not self._is_named:
                self._files.fsync_directory(self._directory)
                self._is_named = True
            for file in self._dirty.values():
                file.close()
            self._dirty.clear()

    def refresh(self) -> None:
        """Segments were deleted, perhaps with their files of this index."""
        if self._bases:
            self._bases = _bases(self._files.list(self._directory))
            for known in (self._read, self._dirty):
                for base in known.keys() - set(self._bases):
                    del known[base]

    # Searching --------------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._bases)

    def from_offset(self, offset: int) -> Iterator[AbortedTransaction]:
        """The transactions whose marker is at `offset` or later, in the order of their markers."""
        for base in self._bases[max(bisect_right(self._bases, offset) - 1, 0) :]:
            entries = self._entries(base)
            for slot in range(entries.slot_of(offset), len(entries)):
                yield entries[slot]

    # Files ------------------------------------------------------------------------------------------------------------

    def _path(self, base_offset: int) -> str:
        return stem(self._directory, base_offset) + TRANSACTION_SUFFIX

    def _bytes(self, base_offset: int) -> bytes:
        file = self._files.open(self._path(base_offset), create=False, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _entries(self, base_offset: int) -> _Entries:
        entries = self._read.get(base_offset)
        if entries is None:
            entries = self._read[base_offset] = _Entries(self._bytes(base_offset))
            # Readers are usually in the same few segments. Files with new entries stay in memory.
            for base in [it for it in self._read if it not in self._dirty][:-_FILES_READ_MAX]:
                del self._read[base]
        return entries


def _bases(names: Iterable[str]) -> list[int]:
    return sorted(int(name.removesuffix(TRANSACTION_SUFFIX)) for name in names if name.endswith(TRANSACTION_SUFFIX))


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset
