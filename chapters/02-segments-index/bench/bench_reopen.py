"""Opening a log: after a clean shutdown by its names and its end, after kill -9 by checking what was not flushed.

The large logs are sparse files: all names, sizes and indexes are real, and so are the batches that are read.
"""

from minibroker.bench import GB, KIB, MB, Bar, Benchmark, Case, Context, Figure, Line, LineChart, Point, Results, scaled
from minibroker.log.disk import OSFiles
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import SparseLog

BATCH_BYTES = 16 * KIB


def benchmark_clean(context: Context) -> Benchmark:
    small, large = (sparse_log(context, size) for size in scaled(full=(100 * MB, 10 * GB), quick=(1 * MB, 4 * MB)))
    cases = [open_case(f"log of {size_text(log.size)}", log, is_clean=True) for log in (small, large)]
    return Benchmark(
        "Opening a log after a clean shutdown",
        cases,
        [Bar(cases[1].name, "ratio", at_least=0.5, against=cases[0].name)],
        metric="us_per_op",
        note="The names of the files say where each segment begins; only the end of the last one is read.",
    )


def benchmark_killed(context: Context) -> Benchmark:
    logs = [sparse_log(context, size) for size in scaled(full=(1 * GB, 10 * GB), quick=(1 * MB, 4 * MB))]
    unflushed_sizes = unflushed()
    cases = []
    for log in logs:
        log.fill_from(offset_before_end(log, unflushed_sizes[-1]))
        for size in unflushed_sizes:
            cases.append(open_case(killed_name(log.size, size), log, recovery_point=offset_before_end(log, size)))
    most = unflushed_sizes[-1]
    return Benchmark(
        "Opening a log after kill -9",
        cases,
        [Bar(killed_name(logs[1].size, most), "ratio", at_least=0.5, against=killed_name(logs[0].size, most))],
        figure=line_chart,
        note="Every batch after the recovery point is read and its checksum computed; those before it are not read.",
    )


def unflushed() -> list[int]:
    return scaled(full=[0, 32 * MB, 64 * MB, 128 * MB, 256 * MB], quick=[0, 500_000])


def sparse_log(context: Context, size: int) -> SparseLog:
    log = SparseLog(OSFiles(), f"{context.directory}/{size}", size=size, batch_bytes=BATCH_BYTES)
    log.write()
    return log


def offset_before_end(log: SparseLog, size: int) -> int:
    return log.log_end_offset - round(log.log_end_offset * size / log.size)


def open_case(name: str, sparse: SparseLog, *, is_clean: bool = False, recovery_point: int = 0) -> Case:
    opened: list[SegmentedLog] = []

    def run() -> None:
        log = SegmentedLog.open(
            OSFiles(), sparse.directory, sparse.config, is_clean=is_clean, recovery_point=recovery_point
        )
        assert log.log_end_offset == sparse.log_end_offset
        opened.append(log)

    return Case(name, run, operations_count=1, after=lambda: opened.pop().close())


def killed_name(log_size: int, size: int) -> str:
    return f"log of {size_text(log_size)}, {number(size)} MB not flushed"


def size_text(size: int) -> str:
    return f"{round(size / GB)} GB" if size > 500 * MB else f"{round(size / MB)} MB"


def number(size: int) -> str:
    return f"{size / MB:g}"


def line_chart(results: Results) -> Figure:
    logs = list(dict.fromkeys(name.partition(",")[0] for name in results))
    return LineChart(
        title="Opening a log after kill -9",
        x_label="MB written after the recovery point",
        y_label="ms until the log is open",
        lines=[Line(log, [point(results, log, size) for size in unflushed()]) for log in logs],
        x_ticks=[(size / MB, number(size)) for size in unflushed()],
    )


def point(results: Results, log: str, size: int) -> Point:
    spread = results[f"{log}, {number(size)} MB not flushed"].spread("us_per_op")
    assert spread is not None
    return Point(size / MB, *(value / 1000 for value in spread))
