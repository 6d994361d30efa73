"""What a disk and a log must offer. A pure module: the state machines of later chapters know these and no more.

``Files`` is the only door to a disk. The broker enters it through ``disk.OSFiles``; crash tests through
``memory.MemoryFiles``, which can lose power between any two calls; the simulator of chapter 04 through a disk of its
own. So the code that is tested against lost power is the code that runs.

``Log`` is what a partition's state machine needs of its storage. Chapter 01 has it in one file, chapter 02 in many.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from minibroker.log.compression import Bytes


class File(Protocol):
    """One open file, written and read by position; it has no cursor."""

    def pread(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache and return how many bytes were taken: a full disk may take only some."""

    def size(self) -> int:
        """The file's bytes now."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fsync(self) -> None:
        """Return once the file's data has reached the disk. After an error nothing is known: never try again."""

    def drop_cache(self) -> None:
        """Ask the kernel to forget what it holds of the file in memory, save what it has yet to write."""

    def close(self) -> None:
        """Give the file back; what was not flushed stays in the page cache."""


class Files(Protocol):
    """A disk: named files that can be opened, renamed, removed and listed. Names are paths with `/`."""

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> File:
        """Open a file; without `create` a missing one is a FileNotFoundError."""

    def mkdir(self, directory: str) -> None:
        """Make a directory, and those above it; one that is there already is fine."""

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had that name, all at once; or a directory one that is free."""

    def unlink(self, path: str) -> None:
        """Remove a name. Those who have the file open go on reading it."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def fsync_directory(self, directory: str) -> None:
        """Return once the names in a directory have reached the disk: a new file is not durable before."""


def directory_of(path: str) -> str:
    """The directory that a path's name stands in."""
    directory, slash, _name = path.rpartition("/")
    return directory or slash or "."


def write_all(file: File, data: Bytes, position: int) -> None:
    """Write all of it: a disk that fills up takes a part first, and fails on the next call."""
    written = file.pwrite(data, position)
    while written < len(data):
        written += file.pwrite(memoryview(data)[written:], position + written)


@dataclass(slots=True)
class FileSlice:
    """A run of bytes in a file, not yet read. Chapter 07 hands it to the kernel, which sends it from the page cache."""

    file: File
    position: int
    count: int

    def read(self) -> bytes:
        """Bring the bytes into memory."""
        return self.file.pread(self.count, self.position)

    def chunks(self, chunk_bytes: int) -> Iterator[bytes]:
        """Bring them into memory piece by piece."""
        for start in range(0, self.count, chunk_bytes):
            yield self.file.pread(min(chunk_bytes, self.count - start), self.position + start)


class Log(Protocol):
    """An append-only sequence of batches. Offsets only grow; `log_end_offset` is exclusive, the next one given.

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
        """Records before it survive a power cut."""

    def append(self, batch: bytearray | memoryview, *, leader_epoch: int, log_append_time_ms: int | None = None) -> int:
        """Check one batch, stamp it in place, write it; return the base offset it was given."""

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        """Find whole batches from the one that holds `offset`: at least one, even above `bytes_max`.

        Only batches that end before `upto_offset` are given: a consumer's bound is the high watermark.
        """

    def truncate(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one."""

    def flush(self) -> None:
        """Make everything appended so far survive a power cut."""

    def close(self) -> None:
        """Flush and give the files back."""
