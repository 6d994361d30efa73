"""A broker that measures how long its event loop is blocked; `bench_blocks.py` starts it.

    python watched.py FILE ARGUMENTS OF MINIBROKER

The longest CPU time of one step of the event loop, in nanoseconds, is written into FILE, which is mapped into memory.
The reader sets it to zero to begin a new measurement. While a step runs, no other client is served. The CPU time is
measured and not the wall time, so that other processes do not matter.
"""

import asyncio
import mmap
import sys
import time
from pathlib import Path
from struct import Struct

LONGEST_NS = Struct("<q")


def watch(path: Path) -> None:
    """Measure every step of every event loop of this process."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), LONGEST_NS.size)
    run, clock = asyncio.Handle._run, time.thread_time_ns

    def measured(handle: asyncio.Handle) -> None:
        begin = clock()
        run(handle)
        taken_ns = clock() - begin
        if taken_ns > LONGEST_NS.unpack(shared)[0]:
            LONGEST_NS.pack_into(shared, 0, taken_ns)

    setattr(asyncio.Handle, "_run", measured)  # noqa: B010 - every event loop calls this method


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    from minibroker.cli.main import main

    main()
