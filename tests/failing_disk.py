"""A node whose disk or clock fails on demand: `python tests/failing_disk.py MARK serve ...` is `minibroker serve ...`.

While the file MARK exists, every flush of a file whose path contains the text in MARK fails with EIO, as on Linux after
a write that did not reach the disk. Each failure is noted at the end of the file `MARK.asked`.

While the file `MARK.full` exists, the disk is full: files grow by a few more bytes together, so that one write is
accepted in part, and then no file grows and none is made. What is there can be overwritten.

While the file `MARK.clock` exists, the time of day is wrong by the number of seconds in it.

On SIGUSR1 the node writes to its log what each of its threads and tasks does.
"""

import asyncio
import contextlib
import errno
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from minibroker.cli.main import main
from minibroker.log import disk
from minibroker.log.compression import Bytes

LEFT_BYTES = 500


def path_of(descriptor: int, mark: Path) -> str:
    """The path of an open file. Only Linux tells it; elsewhere every file is one whose flush fails."""
    return os.readlink(f"/proc/self/fd/{descriptor}") if sys.platform == "linux" else mark.read_text()


def break_flushes(mark: Path) -> None:
    flush = disk._flush

    def flush_or_fail(descriptor: int) -> None:
        if mark.exists() and mark.read_text() in (path := path_of(descriptor, mark)):
            with open(f"{mark}.asked", "a") as asked:
                asked.write(f"{path}\n")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    disk._flush = flush_or_fail  # type: ignore[assignment]


class FullDisk:
    """A disk that is full while a file exists: files grow by a few bytes together, and then no more."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self._left = LEFT_BYTES

    def take(self, wanted: int) -> int:
        """How many of these bytes there is room for; without any room, raise ENOSPC."""
        if not self._mark.exists():
            self._left = LEFT_BYTES
            return wanted
        if not self._left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(wanted, self._left)
        self._left -= taken
        return taken

    def install(self) -> None:
        write, make = disk.OSFile.pwrite, disk.OSFile.__init__

        def write_or_fail(file: disk.OSFile, data: Bytes, position: int) -> int:
            growth = min(len(data), max(position + len(data) - file.size(), 0))
            room = len(data) - growth + (self.take(growth) if growth else 0)
            return write(file, memoryview(data)[:room], position)

        def make_or_fail(file: disk.OSFile, path: str, *, create: bool, writable: bool) -> None:
            if create and not os.path.exists(path):
                self.take(1)
            make(file, path, create=create, writable=writable)

        disk.OSFile.pwrite = write_or_fail  # type: ignore[assignment,method-assign]
        disk.OSFile.__init__ = make_or_fail  # type: ignore[assignment,method-assign]


def bend_clock(mark: Path) -> None:
    tell = time.time

    def tell_wrongly() -> float:
        try:
            return tell() + float(mark.read_text() or 0)
        except FileNotFoundError:
            return tell()

    time.time = tell_wrongly


def dump_stacks(*_: object) -> None:
    faulthandler.dump_traceback(all_threads=True)
    with contextlib.suppress(RuntimeError):  # the loop does not run yet, or has ended
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, dump_stacks)
    mark = Path(sys.argv.pop(1))
    break_flushes(mark)
    FullDisk(Path(f"{mark}.full")).install()
    bend_clock(Path(f"{mark}.clock"))
    main()
