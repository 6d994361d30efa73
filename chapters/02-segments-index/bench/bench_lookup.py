"""Finding an offset or a timestamp in a log that grows a thousandfold, beside chapter 01's walk from the start.

The large logs are sparse files: all names, sizes and indexes are real, and so are the batches that are looked for.
"""

import random
from collections.abc import Callable, Sequence

from minibroker.bench import GB, KIB, MB, Bar, Benchmark, Case, Context, Figure, Line, LineChart, Point, Results, scaled
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import NEVER, LogFile
from minibroker.log.recovery import Recovered
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, SparseLog

WALK, BY_OFFSET, BY_TIME, SMALL = "one file", "by offset", "by timestamp", "by offset, 256 B batches"
READ_BYTES_MAX = 1024 * KIB


def benchmark(context: Context) -> Benchmark:
    sizes = scaled(full=[10 * MB, 100 * MB, 1 * GB, 10 * GB], quick=[1 * MB, 4 * MB])
    cases = [walk_case(context, size) for size in scaled(full=sizes[:-1], quick=sizes[:1])]
    for size in sizes:
        cases += lookup_cases(context, size, 16 * KIB, {BY_OFFSET: find_offset, BY_TIME: find_time})
        cases += lookup_cases(context, size, 256, {SMALL: find_offset})
    return Benchmark(
        "Finding a record in a log of any size",
        cases,
        [half_as_fast_at_least(series, sizes) for series in (BY_OFFSET, SMALL, BY_TIME)],
        figure=line_chart,
        note="An operation is one lookup of a random record, in the page cache. Batches have 16 KiB unless said.",
    )


def half_as_fast_at_least(series: str, sizes: Sequence[int]) -> Bar:
    """At most twice the time in the largest log."""
    return Bar(case_name(series, sizes[-1]), "ratio", at_least=0.5, against=case_name(series, sizes[0]))


def lookup_cases(
    context: Context, size: int, batch_bytes: int, finds: dict[str, Callable[[SegmentedLog, int], int]]
) -> list[Case]:
    sparse = SparseLog(OSFiles(), f"{context.directory}/{size}-{batch_bytes}", size=size, batch_bytes=batch_bytes)
    sparse.write()
    offsets = random.Random(0).choices(range(sparse.log_end_offset), k=scaled(full=2_000, quick=20))
    for offset in offsets:
        sparse.fill(offset)
    log = SegmentedLog.open(OSFiles(), sparse.directory, sparse.config, is_clean=True)
    context.on_close(log.close)
    return [lookup_case(case_name(series, size), find, log, offsets) for series, find in finds.items()]


def lookup_case(name: str, find: Callable[[SegmentedLog, int], int], log: SegmentedLog, offsets: Sequence[int]) -> Case:
    def run() -> None:
        for offset in offsets:
            find(log, offset)

    return Case(name, run, operations_count=len(offsets))


def find_offset(log: SegmentedLog, offset: int) -> int:
    return log.read(offset, bytes_max=READ_BYTES_MAX).count


def find_time(log: SegmentedLog, offset: int) -> int:
    record = log.find_time(START_MS + offset)
    assert record is not None
    assert record.offset == offset
    return record.offset


def walk_case(context: Context, size: int) -> Case:
    # One segment as large as the log is one file; a walk passes every header, so all of them are written.
    sparse = SparseLog(OSFiles(), f"{context.directory}/{size}-one", size=size, batch_bytes=16 * KIB)
    sparse.write()
    sparse.fill_headers()
    file = OSFiles().open(f"{sparse.directory}/{0:020}.log")
    context.on_close(file.close)
    end = Recovered(size=sparse.size, log_end_offset=sparse.log_end_offset)
    log = LogFile(file, end, base_offset=0, flush_policy=NEVER)
    middle = sparse.log_end_offset // 2
    lookups = max(1, 10 * MB // size)

    def run() -> None:
        # Walk to the middle, where a random offset is on average, and take only one batch.
        for _ in range(lookups):
            log.read(middle, bytes_max=1)

    return Case(case_name(WALK, size), run, operations_count=lookups)


def case_name(series: str, size: int) -> str:
    return f"{series}, {size_text(size)}"


def size_text(size: int) -> str:
    return f"{size // GB} GB" if size >= GB else f"{size // MB} MB"


def line_chart(results: Results) -> Figure:
    sizes = scaled(full=[10 * MB, 100 * MB, 1 * GB, 10 * GB], quick=[1 * MB, 4 * MB])
    lines = [
        Line(series, [point(results, series, size) for size in sizes if case_name(series, size) in results])
        for series in (WALK, SMALL, BY_TIME, BY_OFFSET)
    ]
    return LineChart(
        title="Finding a record in a log of any size",
        x_label="size of the log",
        y_label="µs for one lookup, logarithmic",
        lines=lines,
        log_x=True,
        log_y=True,
        x_ticks=[(size / MB, size_text(size)) for size in sizes],
    )


def point(results: Results, series: str, size: int) -> Point:
    spread = results[case_name(series, size)].spread("us_per_op")
    assert spread is not None
    return Point(size / MB, *spread)
