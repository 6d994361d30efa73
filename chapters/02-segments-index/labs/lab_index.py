"""The lab `index` of chapter 02: how sparse an index should be.

Each entry costs bytes on disk and in the page cache, and shortens the walk of a search over the batches.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from minibroker.bench import (
    GB,
    KIB,
    MB,
    MIB,
    Case,
    Context,
    Findings,
    Lab,
    Line,
    LineChart,
    Point,
    Results,
    Table,
    bytes_text,
    scaled,
)
from minibroker.bench.context import quick_note
from minibroker.bench.units import number_text
from minibroker.log.disk import OSFiles
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, SparseLog

INTERVALS = (512, KIB, 4 * KIB, 16 * KIB, 64 * KIB)
DEFAULT_INTERVAL = 4 * KIB
SMALL_BATCH_BYTES = 256  # one record: the smaller the batches, the longer the walk from an entry to the right one
BY_OFFSET, BY_TIME = "by offset", "by timestamp"


@dataclass(frozen=True)
class Density:
    """One index interval: how much index it makes."""

    interval_bytes: int
    index_mb_per_gb: float


def run_index(context: Context) -> Findings:
    """Look up the same records in logs that differ only in their index interval."""
    densities, cases = [], []
    for interval in INTERVALS:
        log = indexed_log(context, interval)
        densities.append(Density(interval, log.index_bytes * 1000 / log.size))
        cases += index_cases(context, log)
    results = context.measure(cases)
    return Findings(
        index_table(densities, results), index_reading(densities, results), index_figure(densities, results), results
    )


def indexed_log(context: Context, interval_bytes: int) -> SparseLog:
    """A log that takes little room, with an index entry per interval of bytes."""
    # The densest index is larger than a broker would allow; here it may be.
    config = LogConfig(index_interval_bytes=interval_bytes, segment_index_bytes=64 * MIB)
    log = SparseLog(
        OSFiles(),
        f"{context.directory}/{interval_bytes}",
        size=scaled(full=1 * GB, quick=1 * MB),
        batch_bytes=SMALL_BATCH_BYTES,
        config=config,
    )
    log.write()
    return log


def index_cases(context: Context, sparse: SparseLog) -> list[Case]:
    """Look up random records by offset and by timestamp."""
    offsets = random.Random(0).choices(range(sparse.log_end_offset), k=scaled(full=1_000, quick=10))
    for offset in offsets:
        sparse.fill(offset)
    log = SegmentedLog.open(OSFiles(), sparse.directory, sparse.config, is_clean=True)
    context.on_close(log.close)

    def look_up(find: Callable[[int], object]) -> None:
        for offset in offsets:
            find(offset)

    interval = sparse.config.index_interval_bytes
    finds: dict[str, Callable[[int], object]] = {
        BY_OFFSET: lambda offset: log.read(offset, bytes_max=MIB),
        BY_TIME: lambda offset: log.find_time(START_MS + offset),
    }
    return [
        Case(index_case(series, interval), partial(look_up, find), operations_count=len(offsets))
        for series, find in finds.items()
    ]


def index_case(series: str, interval_bytes: int) -> str:
    """The name of a case."""
    return f"{series}, an entry per {bytes_text(interval_bytes)}"


def index_table(densities: Sequence[Density], results: Results) -> Table:
    """Set out the size of the indexes beside the time of a lookup."""
    rows = [
        [
            bytes_text(density.interval_bytes),
            number_text(density.index_mb_per_gb),
            *(number_text(_lookup_us(results, series, density.interval_bytes)) for series in (BY_OFFSET, BY_TIME)),
        ]
        for density in densities
    ]
    return Table(["an entry per", "MB of index per GB", f"µs {BY_OFFSET}", f"µs {BY_TIME}"], rows)


def index_figure(densities: Sequence[Density], results: Results) -> LineChart:
    """Draw the time of a lookup over the size of the index."""
    lines = []
    for series in (BY_OFFSET, BY_TIME):
        points = []
        for density in densities:
            spread = results[index_case(series, density.interval_bytes)].spread("us_per_op")
            assert spread is not None
            points.append(Point(density.index_mb_per_gb, *spread))
        lines.append(Line(series, points))
    ticks = [
        (density.index_mb_per_gb, f"{density.index_mb_per_gb:.2g} ({bytes_text(density.interval_bytes)})")
        for density in densities
    ]
    return LineChart(
        "What an index costs, and what it saves",
        "MB of index for a GB of log (an entry per)",
        "µs for one lookup",
        lines,
        log_x=True,
        x_ticks=ticks,
        note=quick_note(),
    )


def index_reading(densities: Sequence[Density], results: Results) -> list[str]:
    """Say what the figures mean, from Kafka's default to either side."""
    sizes = {density.interval_bytes: density.index_mb_per_gb for density in densities}
    times = {density.interval_bytes: _lookup_us(results, BY_OFFSET, density.interval_bytes) for density in densities}
    default, dense, sparse = DEFAULT_INTERVAL, min(sizes), max(sizes)
    return [
        f"Denser: an entry per {bytes_text(dense)} instead of Kafka's {bytes_text(default)} makes the index "
        f"{number_text(sizes[dense] / sizes[default])} times as large ({number_text(sizes[dense])} against "
        f"{number_text(sizes[default])} MB for a GB of log), and a lookup takes "
        f"{number_text(times[dense] / times[default])} of the time.",
        f"Sparser: an entry per {bytes_text(sparse)} makes it {number_text(sizes[default] / sizes[sparse])} times "
        f"smaller, and a lookup takes {number_text(times[sparse] / times[default])} times as long: "
        f"it walks over {sparse // SMALL_BATCH_BYTES // 2} batches on average.",
        _on_the_knee(sizes, times),
    ]


def _on_the_knee(sizes: dict[int, float], times: dict[int, float]) -> str:
    best = min(times.values())
    enough = max(interval for interval, time in times.items() if time <= 1.5 * best)
    return (
        f"The sparsest index whose lookups stay within one and a half times the fastest here has an entry per "
        f"{bytes_text(enough)}: {number_text(sizes[enough])} MB for a GB of log. With larger batches than the "
        f"{SMALL_BATCH_BYTES} B of this lab the walk is shorter, and a sparse index costs less."
    )


def _lookup_us(results: Results, series: str, interval_bytes: int) -> float:
    spread = results[index_case(series, interval_bytes)].spread("us_per_op")
    assert spread is not None
    return spread.median


LABS = [Lab("index", "02", "how sparse an index may be: lookup time against index size", run_index)]
