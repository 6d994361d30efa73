"""The disk of a node that others can do without: after its first error it takes nothing more, and the node ends.

A node has one data directory. If that cannot be written any more, neither can its logs, nor its vote, nor the note that
it was there: it can keep no promise. While it lived on, it would lead what it cannot write, and nobody else would. So
it ends with one line, as Kafka's broker does when its last directory has failed (KIP-112), and the others take over.

Every error of the disk is seen here, whoever was about to live with it. From that moment on all writes and flushes fail
with the same error, on every thread: a flush is never tried again, for after a failed one the next could succeed and
have written nothing. Reads go on, for as long as the node still answers.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minibroker.log.compression import Bytes
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import File

# What a disk says that is broken, full, or gone. Other errors are of a name or of a limit of the process.
DISK_ERRORS = frozenset(
    {
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EFBIG,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
    }
)


class Watch:
    """What is known of a disk. `on_failed` is told once what it refused, on the thread that asked."""

    def __init__(self, on_failed: Callable[[str, OSError], None]) -> None:
        self.failure: OSError | None = None
        self._on_failed = on_failed

    def check(self) -> None:
        """Refuse if the disk has failed before."""
        if self.failure is not None:
            raise OSError(self.failure.errno, f"the disk has failed before: {self.failure.strerror}")

    def note(self, what: str, path: str, error: OSError) -> None:
        """An operation has failed; whoever ordered it hears of it, too."""
        if error.errno in DISK_ERRORS and self.failure is None:
            self.failure = error
            self._on_failed(f"{what} {path}", error)

    @contextmanager
    def over(self, what: str, path: str) -> Iterator[None]:
        """Do something that changes the disk."""
        self.check()
        try:
            yield
        except OSError as error:
            self.note(what, path, error)
            raise


class WatchedFile:
    """An open file of a `WatchedFiles`."""

    __slots__ = ("_file", "_path", "_watch")

    def __init__(self, file: File, path: str, watch: Watch) -> None:
        self._file = file
        self._path = path
        self._watch = watch

    def pread(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes."""
        try:
            return self._file.pread(count, position)
        except OSError as error:
            self._watch.note("read", self._path, error)
            raise

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache, unless the disk has failed."""
        if self._watch.failure is not None:
            self._watch.check()
        try:
            return self._file.pwrite(data, position)
        except OSError as error:
            self._watch.note("write", self._path, error)
            raise

    def size(self) -> int:
        """The file's bytes now."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """Cut the file, unless the disk has failed."""
        with self._watch.over("cut", self._path):
            self._file.truncate(size)

    def fsync(self) -> None:
        """Wait until the data has reached the disk, unless it has failed: it is not asked a second time."""
        with self._watch.over("flush", self._path):
            self._file.fsync()

    def drop_cache(self) -> None:
        """Let the clean pages go."""
        self._file.drop_cache()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WatchedFiles:
    """The machine's file systems, up to the first error."""

    def __init__(self, on_failed: Callable[[str, OSError], None]) -> None:
        self.watch = Watch(on_failed)
        self._files = OSFiles()

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> WatchedFile:
        """Open a file. After a failure one that is there can still be opened, and read; none is made."""
        create = create and self.watch.failure is None
        try:
            file = self._files.open(path, create=create, writable=writable)
        except OSError as error:
            self.watch.note("open", path, error)
            raise
        return WatchedFile(file, path, self.watch)

    def mkdir(self, directory: str) -> None:
        """Make a directory, and those above it."""
        with self.watch.over("make", directory):
            self._files.mkdir(directory)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        with self.watch.over("remove", directory):
            self._files.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step."""
        with self.watch.over("rename", source):
            self._files.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        with self.watch.over("remove", path):
            self._files.unlink(path)

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._files.list(directory)

    def fsync_directory(self, directory: str) -> None:
        """Wait until the names in a directory have reached the disk."""
        with self.watch.over("flush", directory):
            self._files.fsync_directory(directory)


def disk_usage(path: str) -> tuple[str, int, int]:
    """A directory's full path, the size of its disk, and the room that is left, for DescribeLogDirs."""
    usage = os.statvfs(path)
    return os.path.abspath(path), usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
