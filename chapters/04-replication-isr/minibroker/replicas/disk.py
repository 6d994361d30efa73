"""A disk that refuses all changes after its first error, so that the node ends.

A node has one data directory. If it cannot be written any more, the node can write neither its logs nor its vote. If
it stayed up, it would remain leader of partitions that it cannot write to. So it ends with one line, as Kafka's broker
does when its last directory has failed (KIP-112), and other nodes become leaders of its partitions.

Every disk error passes through this module, even if the caller would ignore it. After the first one all writes and
flushes fail with the same error, on every thread. A flush is never repeated, because after a failed fsync the next one
may succeed without having written the data. Reads still work until the node has ended.
"""

import errno
import os
from collections.abc import Callable

from minibroker.log.compression import Bytes
from minibroker.log.disk import OSFile, OSFiles
from minibroker.log.interfaces import File, Files

# The errors of a broken, full or missing disk. Other errors concern a file name or a limit of the process.
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

# The errors of a disk that has no more room.
FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FLUSH = "flush"


def loses_records(what: str, error: OSError) -> bool:
    """Whether a failed operation may have lost records that were written before.

    A full disk refuses new bytes, and keeps the old ones: the torn end of a log is cut at the next start. After any
    other error, and after any failed flush, pages that were written may be gone.
    """
    return what.startswith(FLUSH) or error.errno not in FULL_DISK_ERRORS


class Watch:
    """Remembers a disk's first error. `on_failed` is called once, on the thread of the failed operation."""

    def __init__(self, on_failed: Callable[[str, OSError], None]) -> None:
        self.failure: OSError | None = None
        self._on_failed = on_failed

    def check(self) -> None:
        """Refuse if the disk has failed before."""
        if self.failure is not None:
            raise OSError(self.failure.errno, f"the disk has failed before: {self.failure.strerror}")

    def note(self, what: str, path: str, error: OSError) -> None:
        """Remember the error of a failed operation; the caller raises it."""
        if error.errno in DISK_ERRORS and self.failure is None:
            self.failure = error
            self._on_failed(f"{what} {path}", error)

    def guard(self, what: str, path: str) -> "_Guard":
        """Refuse a change if the disk has failed before; if the change itself fails, remember its error."""
        return _Guard(self, what, path)


class _Guard:
    """Guards one change of the disk. It is a class, because `contextmanager` costs more than a small write."""

    __slots__ = ("_path", "_watch", "_what")

    def __init__(self, watch: Watch, what: str, path: str) -> None:
        self._watch = watch
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        if self._watch.failure is not None:
            self._watch.check()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            self._watch.note(self._what, self._path, error)


class WatchedFile:
    """An open file of a `WatchedFiles`."""

    __slots__ = ("_file", "_path", "_watch")

    def __init__(self, file: File, path: str, watch: Watch) -> None:
        self._file = file
        self._path = path
        self._watch = watch

    def fileno(self) -> int:
        """The descriptor, for system calls such as `sendfile`."""
        assert isinstance(self._file, OSFile), f"{self._path} is a simulated file: it has no descriptor"
        return self._file.fileno()

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
        """The file's current size in bytes."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """Cut the file, unless the disk has failed."""
        with self._watch.guard("cut", self._path):
            self._file.truncate(size)

    def fsync(self) -> None:
        """Wait until the data has reached the disk. After a failure nothing is flushed any more."""
        with self._watch.guard(FLUSH, self._path):
            self._file.fsync()

    def drop_cache(self) -> None:
        """Drop the file's clean pages from the page cache."""
        self._file.drop_cache()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WatchedFiles:
    """The machine's files, or those of `files`. After the first disk error they can be read, but not changed."""

    def __init__(self, on_failed: Callable[[str, OSError], None], files: Files | None = None) -> None:
        self.watch = Watch(on_failed)
        self._files = files or OSFiles()

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> WatchedFile:
        """Open a file. After a failure an existing file can still be opened and read, but no file is created."""
        create = create and self.watch.failure is None
        try:
            file = self._files.open(path, create=create, writable=writable)
        except OSError as error:
            self.watch.note("open", path, error)
            raise
        return WatchedFile(file, path, self.watch)

    def mkdir(self, directory: str) -> None:
        """Make a directory and its missing parents."""
        with self.watch.guard("make", directory):
            self._files.mkdir(directory)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        with self.watch.guard("remove", directory):
            self._files.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step."""
        with self.watch.guard("rename", source):
            self._files.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with self.watch.guard("remove", path):
            self._files.unlink(path)

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._files.list(directory)

    def fsync_directory(self, directory: str) -> None:
        """Flush a directory, so that the names in it are durable."""
        with self.watch.guard(FLUSH, directory):
            self._files.fsync_directory(directory)


def disk_usage(path: str) -> tuple[str, int, int]:
    """A directory's full path, and the size and the free bytes of its disk, for DescribeLogDirs."""
    usage = os.statvfs(path)
    return os.path.abspath(path), usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
