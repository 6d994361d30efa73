"""The interfaces of a disk and of a log. A pure module: later chapters' state machines reach a disk only through it.

All access to a disk goes through ``Files``. The broker uses ``disk.OSFiles``. Crash tests use ``memory.MemoryFiles``,
which can lose power between any two calls, and the simulator of chapter 04 has a disk of its own. So the code that is
tested against power failures is the code that the broker runs.

``Log`` is the storage of a partition's state machine. Chapter 01 implements it with one file, chapter 02 with many.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from minibroker.log.compression import Bytes


class File(Protocol):
    """One open file. Every read and write names its position; there is no cursor."""

    def pread(self, count: int, position: int) -> bytes:
        """Read `count` bytes, or fewer if the file ends earlier."""

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache and return how many bytes were written. A full disk may write only some of them."""

    def size(self) -> int:
        """The file's size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fsync(self) -> None:
        """Return once the data has reached the disk. After an error the file's content is unknown, so never retry."""

    def drop_cache(self) -> None:
        """Ask the kernel to drop the file's pages from memory, except those that it still has to write."""

    def close(self) -> None:
        """Close the file. Data that was not flushed stays in the page cache."""


class Files(Protocol):
    """A disk: named files that can be opened, renamed, removed and listed. Names are paths with `/`."""

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> File:
        """Open a file. Without `create`, a missing file raises FileNotFoundError."""

    def mkdir(self, directory: str) -> None:
        """Make a directory and its missing parents. An existing directory is left as it is."""

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file; atomically replace any file that has the new name. A directory's new name must be unused."""

    def unlink(self, path: str) -> None:
        """Remove a file's name. Readers that have the file open can still read it."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def fsync_directory(self, directory: str) -> None:
        """Return once the names in a directory have reached the disk. A new file is durable only then."""


def directory_of(path: str) -> str:
    """The directory part of a path."""
    directory, slash, _name = path.rpartition("/")
    return directory or slash or "."


def write_all(file: File, data: Bytes, position: int) -> None:
    """Write all of the data. A disk that fills up writes a part of it, and fails on the next call."""
    written = file.pwrite(data, position)
    while written < len(data):
        written += file.pwrite(memoryview(data)[written:], position + written)


@dataclass(slots=True)
class FileSlice:
    """A run of bytes in a file, not yet read. Chapter 07 lets the kernel send these bytes from the page cache."""

    file: File
    position: int
    count: int

    def read(self) -> bytes:
        """Read the bytes into memory."""
        return self.file.pread(self.count, self.position)

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """Read the bytes into memory, piece by piece."""
        for start in range(0, self.count, chunk_bytes):
            yield self.file.pread(min(chunk_bytes, self.count - start), self.position + start)


class Log(Protocol):
    """An append-only sequence of batches. Offsets only grow. `log_end_offset` is the offset after the last record.

    Always: log_start_offset <= flushed_offset <= log_end_offset.
    """

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def flushed_offset(self) -> int:
        """Records before this offset survive a power failure."""

    def append(self, batch: bytearray | memoryview, *, leader_epoch: int, log_append_time_ms: int | None = None) -> int:
        """Check one batch, stamp it in place, write it; return its new base offset."""

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        """Find whole batches, beginning with the one that holds `offset`. The first may exceed `bytes_max`.

        Only batches whose records are all before `upto_offset` are returned. For a consumer, `upto_offset` is the high
        watermark.
        """

    def truncate(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one."""

    def flush(self) -> None:
        """Make everything appended so far survive a power failure."""

    def close(self) -> None:
        """Flush and close the files."""
