"""A node's disk: it survives a kill, and loses unflushed data in a power cut. A pure module.

It wraps chapter 01's `MemoryFiles`, and chapter 02's log runs on it unchanged, as on a real disk. A disk can also make
the process die after some number of changes, in the middle of a roll or a truncation. A kill between two events would
never hit such a moment.
"""

import errno
from random import Random

from minibroker.log.compression import Bytes
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.simulation.process import Died


class DiskFile:
    """An open file in memory that counts its changes."""

    def __init__(self, disk: "Disk", file: MemoryFile) -> None:
        self._disk = disk
        self._file = file
        self.pread = file.pread
        self.size = file.size
        self.drop_cache = file.drop_cache
        self.close = file.close

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache."""
        self._disk.change()
        return self._file.pwrite(data, position)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._disk.change()
        self._file.truncate(size)

    def fsync(self) -> None:
        """Flush the file."""
        self._disk.change()
        self._file.fsync()


class Disk:
    """A disk that outlives the processes that use it. It implements chapter 01's `Files`."""

    def __init__(self, chance: Random) -> None:
        self._files = MemoryFiles()
        self._chance = chance
        self._changes_left: int | None = None

    # Faults -----------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies: its open files cannot be used any more, and the page cache stays."""
        self._changes_left = None
        self._files.crashes += 1

    def cut_power(self) -> None:
        """The machine loses power: data that was not flushed is lost, kept in part, or torn."""
        self._changes_left = None
        self._files.crash(self._chance)

    def die_after(self, changes: int | None) -> None:
        """Let the process die after `changes` more changes of the disk; None cancels that."""
        self._changes_left = changes

    def fail_flushes(self, is_failing: bool) -> None:
        """Let every fsync fail, or let every fsync work again."""
        self._files.fsync_error = OSError(errno.EIO, "input/output error") if is_failing else None

    def fail_reads(self, is_failing: bool) -> None:
        """Let every read fail, or let every read work again."""
        self._files.read_error = OSError(errno.EIO, "input/output error") if is_failing else None

    def limit(self, room_bytes: int | None) -> None:
        """Leave space for `room_bytes` more bytes; None means no limit."""
        self._files.room_bytes = room_bytes

    def change(self) -> None:
        """Count a change, or let the process die before it."""
        if self._changes_left is not None:
            if self._changes_left == 0:
                raise Died
            self._changes_left -= 1

    # Files ------------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> DiskFile:
        """Open a file."""
        return DiskFile(self, self._files.open(path, create=create, writable=writable))

    def mkdir(self, directory: str) -> None:
        """Make a directory."""
        self._files.mkdir(directory)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        self._files.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        self.change()
        self._files.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self.change()
        self._files.unlink(path)

    def list(self, directory: str) -> list[str]:
        """The names in a directory."""
        return self._files.list(directory)

    def fsync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""
        self.change()
        self._files.fsync_directory(directory)
