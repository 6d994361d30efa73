"""The real disk: `Files` on the operating system's calls.

This module, ``program`` and ``__main__`` are the only ones of this package that call the operating system.
"""

import os
import sys

from minibroker.log.compression import Bytes

if sys.platform == "darwin":
    import fcntl

    def _flush(descriptor: int) -> None:
        # On macOS, fsync returns while the data may still be in the drive's cache. This call waits until the data is on
        # the medium.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

else:
    # fdatasync skips metadata, such as the time of the last change, that readers of the data do not need.
    _flush = os.fdatasync


class OSFile:
    """An open file descriptor."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, *, create: bool, writable: bool) -> None:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        self.path = path
        self._descriptor = os.open(path, flags, 0o644)

    def __del__(self) -> None:
        # A reader may still hold a slice of a file that was deleted. The file is closed when the last slice is gone.
        if hasattr(self, "_descriptor"):
            self.close()

    def fileno(self) -> int:
        """The descriptor, for system calls such as `sendfile`."""
        return self._descriptor

    def pread(self, count: int, position: int) -> bytes:
        """Read `count` bytes, or up to the end of the file. One system call may return fewer, so it is repeated."""
        data = os.pread(self._descriptor, count, position)
        while len(data) < count and (more := os.pread(self._descriptor, count - len(data), position + len(data))):
            data += more
        return data

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache."""
        return os.pwrite(self._descriptor, data, position)

    def size(self) -> int:
        """The file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def fsync(self) -> None:
        """Wait until the data has reached the disk."""
        _flush(self._descriptor)

    def drop_cache(self) -> None:
        """Ask the kernel to drop the file's clean pages from the page cache, if the system has a call for it."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor; a second close does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OSFiles:
    """`Files` on the machine's own file systems."""

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> OSFile:
        """Open a file. Without `create`, a missing file raises FileNotFoundError."""
        return OSFile(path, create=create, writable=writable)

    def mkdir(self, directory: str) -> None:
        """Make a directory and its missing parents."""
        os.makedirs(directory, exist_ok=True)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        os.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` in one step."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        os.unlink(path)

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def fsync_directory(self, directory: str) -> None:
        """Wait until the names in a directory have reached the disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
