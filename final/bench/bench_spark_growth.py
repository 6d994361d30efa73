"""The cost of a read as a topic has more partitions and more rows, and the memory of a worker."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from bench.spark_peers import PEAKS
from bench.spark_stage import OURS, Stage

from minibroker.bench import (
    MIB,
    Bar,
    Benchmark,
    Case,
    Context,
    Fact,
    Figure,
    Line,
    LineChart,
    Point,
    Results,
    bytes_text,
    scaled,
)

PARTITIONS = scaled(full=(1, 10, 100), quick=(1, 2, 3))
ROWS_OF_A_PARTITION = scaled(full=20_000, quick=100)
MILLION = scaled(full=1_000_000, quick=1_000)
MILLIONS = (1, 3, 10)
VALUE_BYTES = 100
FETCH = "kafka.max.partition.fetch.bytes"
FETCHES = (MIB, 8 * MIB)
MEMORY_TITLE = "Memory of a Spark worker that reads, at its peak"

# The peak memory for each fetch size and number of rows.
Peaks = dict[tuple[int, int], list[float]]


# Memory ---------------------------------------------------------------------------------------------------------------


def benchmark_memory(context: Context) -> Benchmark:
    stage = Stage(context)
    few, many = (number * scaled(full=200_000, quick=1_000) for number in (1, 10))
    topic = stage.filled_topic(many, VALUE_BYTES)
    peaks: Peaks = {(fetch_bytes, rows): [] for fetch_bytes in FETCHES for rows in (few, many)}
    return Benchmark(
        MEMORY_TITLE,
        [memory_case(context, stage, topic, peaks, place) for place in peaks],
        facts=[fact for fetch_bytes in FETCHES for fact in memory_facts(peaks, fetch_bytes, few, many)],
        figure=lambda _results: memory_figure(peaks),
        note="The memory is that of the Python process, with the interpreter and its modules.",
    )


def memory_case(context: Context, stage: Stage, topic: str, peaks: Peaks, place: tuple[int, int]) -> Case:
    fetch_bytes, rows = place
    folder = context.directory / f"peaks-{fetch_bytes}-{rows}"
    folder.mkdir()

    def collect() -> None:
        for path in folder.iterdir():
            peaks[place].append(float(path.read_text()))
            path.unlink()

    return Case(
        f"{rows:,} rows, fetches of {bytes_text(fetch_bytes)}",
        partial(stage.read, "watched", topic, rows, **{PEAKS: str(folder), FETCH: str(fetch_bytes)}),
        operations_count=rows,
        after=collect,
        cpu_s=stage.cpu_s,
    )


def memory_facts(peaks: Peaks, fetch_bytes: int, few: int, many: int) -> list[Fact]:
    # A worker may keep memory after a task, so the smallest peak of few rows is compared with the largest of many.
    name = f"fetches of {bytes_text(fetch_bytes)}"
    small, large = partial(min, peaks[fetch_bytes, few]), partial(max, peaks[fetch_bytes, many])
    return [
        Fact(f"{name}, {few:,} rows", "MB", small),
        Fact(f"{name}, {many:,} rows", "MB", large),
        Fact(f"{name}, the second to the first", "ratio", lambda: large() / small(), at_most=1.2),
    ]


def memory_figure(peaks: Peaks) -> Figure:
    lines = []
    for fetch_bytes in FETCHES:
        points = [
            Point(rows, median(found), min(found), max(found))
            for (size, rows), found in peaks.items()
            if size == fetch_bytes
        ]
        lines.append(Line(f"fetches of {bytes_text(fetch_bytes)}", points))
    ticks = [(point.x, f"{point.x:,.0f}") for point in lines[0].points]
    return LineChart(MEMORY_TITLE, "rows read, logarithmic", "MB", lines, log_x=True, x_ticks=ticks)


# Partitions and rows --------------------------------------------------------------------------------------------------


def benchmark_partitions(context: Context) -> Benchmark:
    stage = Stage(context)
    return growth(
        f"Read a topic of 1 to {PARTITIONS[-1]} partitions, {ROWS_OF_A_PARTITION:,} rows in each, one task slot",
        [partitions_case(stage, count) for count in PARTITIONS],
        column="ms_per_op",
        figure=lambda results: growth_figure(results, "partitions", "milliseconds for a partition", 1e3),
        note="An operation is one partition: planned, and read by a task of its own.",
    )


def partitions_case(stage: Stage, count: int) -> Case:
    topic = stage.filled_topic(count * ROWS_OF_A_PARTITION, VALUE_BYTES, partitions=count)
    name = f"{count} partition{'s' * (count > 1)}"
    return Case(name, partial(stage.read, OURS, topic), operations_count=count, cpu_s=stage.cpu_s)


def benchmark_rows(context: Context) -> Benchmark:
    stage = Stage(context)
    topic = stage.filled_topic(MILLIONS[-1] * MILLION, VALUE_BYTES)
    cases = [
        Case(
            f"{number} million rows",
            partial(stage.read, OURS, topic, number * MILLION),
            operations_count=number * MILLION,
            cpu_s=stage.cpu_s,
        )
        for number in MILLIONS
    ]
    title = f"Read 1 to 10 million rows of {VALUE_BYTES} B from one partition, one task slot"
    note = "An operation is one row, the planning of the query included."
    return growth(title, cases, column="cpu_us_per_op", figure=rows_figure, note=note)


def rows_figure(results: Results) -> Figure:
    return growth_figure(results, "rows", "microseconds for a row", 1e6)


def growth(
    title: str, cases: Sequence[Case], *, column: str, figure: Callable[[Results], Figure], note: str
) -> Benchmark:
    """Make a benchmark of the same work in three sizes."""
    first, middle, last = (case.name for case in cases)
    # A ratio of 1 is linear growth. A query also has fixed costs, so more work is cheaper per unit.
    bars = [Bar(last, "ratio", at_least=1, against=first), Bar(last, "ratio", at_least=0.9, against=middle)]
    return Benchmark(title, cases, bars, columns=[column], figure=figure, note=note)


def growth_figure(results: Results, what: str, y_label: str, unit_of_a_second: float) -> Figure:
    points = []
    for result in results.values():
        count = result.case.operations_count
        points.append(Point(count, *(seconds / count * unit_of_a_second for seconds in result.wall_s)))
    ticks = [(point.x, f"{point.x:,.0f}") for point in points]
    title = f"The cost of {'a partition' if what == 'partitions' else 'a row'} as there are more of them"
    return LineChart(title, f"{what}, logarithmic", y_label, [Line(OURS, points)], log_x=True, x_ticks=ticks)
