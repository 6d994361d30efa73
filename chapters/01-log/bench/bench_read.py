"""Reading the newest record of a log that grows: what chapter 02 is for.

One file has no index, so every read walks over the headers of all batches before the one it wants.
"""

from minibroker.bench import Benchmark, Case, Context, Figure, Line, LineChart, Point, Results, scaled
from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import LogFile


def benchmark(context: Context) -> Benchmark:
    return Benchmark(
        "Finding the newest record in one file",
        [read_case(context, count) for count in scaled(full=[100, 1_000, 10_000, 100_000], quick=[10, 100])],
        metric="us_per_op",
        figure=line_chart,
        note="Ten times the batches, ten times the wait: a read is linear in the number of batches before it.",
    )


def read_case(context: Context, batch_count: int) -> Case:
    log = LogFile.open(OSFiles(), str(context.directory / f"{batch_count}.log"))
    context.on_close(log.close)
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=bytes(100))
    batch = builder.build()
    for _ in range(batch_count):
        log.append(batch)
    reads = max(1, 1_000 // batch_count)

    def run() -> None:
        for _ in range(reads):
            log.read(log.log_end_offset - 1, bytes_max=1).read()

    return Case(f"{batch_count} batches", run, operations_count=reads)


def line_chart(results: Results) -> Figure:
    points = []
    for name, result in results.items():
        spread = result.spread("us_per_op")
        assert spread is not None
        points.append(Point(int(name.split()[0]), spread.median))
    return LineChart(
        title="Finding the newest record in one file",
        x_label="batches in the file",
        y_label="µs for one read",
        lines=[Line("one file, no index", points)],
        log_x=True,
        log_y=True,
    )
