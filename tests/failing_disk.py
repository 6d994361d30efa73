"""A node whose disk can be made to fail: `python tests/failing_disk.py MARK serve ...` is `minibroker serve ...`.

While the file MARK exists, every flush of a file whose path contains the text in MARK fails with EIO, as on Linux after
a write that did not reach the disk. Each failure is noted at the end of the file `MARK.asked`.
"""

import errno
import os
import sys
from pathlib import Path

from minibroker.cli.main import main
from minibroker.log import disk


def break_flushes(mark: Path) -> None:
    flush = disk._flush

    def flush_or_fail(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if mark.exists() and mark.read_text() in path:
            with open(f"{mark}.asked", "a") as asked:
                asked.write(f"{path}\n")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    disk._flush = flush_or_fail  # type: ignore[assignment]


if __name__ == "__main__":
    break_flushes(Path(sys.argv.pop(1)))
    main()
