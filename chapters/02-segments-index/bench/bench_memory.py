"""The memory of a process that has a log of 10 GB open and looks up random records in it.

`python bench_memory.py DIRECTORY LOOKUPS` opens a log, looks up that many random records and prints its peak memory.
The benchmark runs this in a process of its own.
"""

import random
import subprocess
import sys
from functools import cache, partial

from minibroker.bench import (
    GB,
    MB,
    BarChart,
    BarRow,
    Benchmark,
    Case,
    Context,
    Fact,
    Figure,
    Results,
    peak_memory_mb,
    scaled,
)
from minibroker.bench.plot import Mark
from minibroker.log.disk import OSFiles
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import SparseLog

MEMORY_MB_MAX = 100
# Small batches are the worst case: an index entry for each 4 KiB.
BATCH_BYTES = 256


def benchmark(context: Context) -> Benchmark:
    small = sparse_log(context, 1 * MB)
    large = sparse_log(context, scaled(full=10 * GB, quick=4 * MB))
    lookups = scaled(full=10_000, quick=100)
    for offset in random_offsets(large.log_end_offset, lookups):
        large.fill(offset)

    @cache
    def memory_mb(log: SparseLog, lookups: int) -> float:
        command = [sys.executable, __file__, log.directory, str(lookups)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    states = {
        "1 MB open": (small, 0),
        f"{size_text(large.size)} open": (large, 0),
        f"{size_text(large.size)} and {lookups:,} lookups": (large, lookups),
    }

    def figure(_results: Results) -> Figure:
        rows = [BarRow(name, memory_mb(*state)) for name, state in states.items()]
        limit = Mark(MEMORY_MB_MAX, f"at most {MEMORY_MB_MAX} MB")
        return BarChart("Memory of a process with a log open", "MB resident at most", rows, limit=limit)

    return Benchmark(
        "Memory with a large log open",
        [Case(f"{lookups:,} lookups", lambda: look_up(large.directory, lookups), operations_count=lookups)],
        facts=[
            Fact(f"resident, {name}", "MB", partial(memory_mb, *state), at_most=MEMORY_MB_MAX)
            for name, state in states.items()
        ],
        figure=figure,
        note="An operation is one lookup of a random record. Most of the memory is Python itself.",
    )


def sparse_log(context: Context, size: int) -> SparseLog:
    log = SparseLog(OSFiles(), f"{context.directory}/{size}", size=size, batch_bytes=BATCH_BYTES)
    log.write()
    return log


def random_offsets(log_end_offset: int, count: int) -> list[int]:
    return random.Random(0).choices(range(log_end_offset), k=count)


def look_up(directory: str, count: int) -> None:
    log = SegmentedLog.open(OSFiles(), directory, is_clean=True)
    for offset in random_offsets(log.log_end_offset, count):
        assert log.read(offset, bytes_max=1 * MB).count > 0
    log.close()


def size_text(size: int) -> str:
    return f"{round(size / GB)} GB" if size > 500 * MB else f"{round(size / MB)} MB"


if __name__ == "__main__":
    look_up(sys.argv[1], int(sys.argv[2]))
    print(peak_memory_mb())
