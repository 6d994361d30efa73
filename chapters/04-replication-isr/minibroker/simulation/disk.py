"""A node's disk: it survives a kill, and loses what was not flushed when the power goes. A pure module.

Under it is chapter 01's `MemoryFiles`, above it chapter 02's log: the code that runs on a real disk runs here, and does
not know. A disk can also be told to let the process die after so many changes: in the middle of a roll or a truncation,
where a crash between two events would never hit.
"""

from random import Random

from minibroker.log.compression import Bytes
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.simulation.process import Died


class DiskFile:
    """An open file. Reading is that of the file in memory; every change is counted."""

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
    """A disk that outlives the processes that use it; it is chapter 01's `Files`."""

    def __init__(self, chance: Random) -> None:
        self._files = MemoryFiles()
        self._chance = chance
        self._changes_left: int | None = None

    # What happens to it -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process dies: its open files are of no use any more, the page cache stays."""
        self._changes_left = None
        self._files.crashes += 1

    def cut_power(self) -> None:
        """The machine dies: what was not flushed is there in part, or torn, or not at all."""
        self._changes_left = None
        self._files.crash(self._chance)

    def die_after(self, changes: int | None) -> None:
        """Let the process die after so many more changes of the disk, before the next one; None: let it live."""
        self._changes_left = changes

    def change(self) -> None:
        """Something is about to change; here the process may have to die, and then nothing changes any more."""
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
        """Remove a name."""
        self.change()
        self._files.unlink(path)

    def list(self, directory: str) -> list[str]:
        """The names in a directory."""
        return self._files.list(directory)

    def fsync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""
        self.change()
        self._files.fsync_directory(directory)
