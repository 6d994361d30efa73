"""Owns the labs of chapter 02.

`index` asks how sparse an index should be. Each entry costs bytes on disk and in the page cache, and saves a search the
batches that it would have to walk over.

`retention` plays six hours of traffic with a burst in them, in virtual time, and asks what each retention setting
protects: the disk, or the past that a reader can go back to.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from minibroker.bench.context import QUICK_NOTE, is_quick
from minibroker.bench.plot import Mark
from minibroker.bench.units import number_text
from minibroker.log.disk import OSFiles
from minibroker.log.memory import MemoryFiles
from minibroker.segments.config import UNLIMITED, LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, SparseLog, batch_of, set_timestamps

# The lab `index` ----------------------------------------------------------------------------------------------------

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
    """A log that takes little room, with an index entry each time so many bytes were passed."""
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
        note=QUICK_NOTE if is_quick() else "",
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


# The lab `retention` ------------------------------------------------------------------------------------------------

MINUTE_MS = 60_000
TIME_ONLY, SIZE_ONLY, BOTH = "retention.ms", "retention.bytes", "both"


@dataclass(frozen=True)
class Traffic:
    """What is written in a minute: so many batches, and many more during a burst."""

    kept_minutes: int  # retention.ms
    batch_bytes: int = 16 * KIB
    batches: int = 4
    burst_factor: int = 10

    @property
    def minutes(self) -> int:
        """How long it is played."""
        return 6 * self.kept_minutes

    @property
    def burst(self) -> range:
        """The minutes of the burst: half of what is kept."""
        return range(2 * self.kept_minutes, 2 * self.kept_minutes + self.kept_minutes // 2)

    @property
    def ordinary_bytes(self) -> int:
        """What is written, without a burst, in the time for which it is kept."""
        return self.kept_minutes * self.batches * self.batch_bytes

    def batches_in(self, minute: int) -> int:
        """What is written in a minute."""
        return self.batches * (self.burst_factor if minute in self.burst else 1)


@dataclass(frozen=True)
class Sample:
    """One minute: the bytes on the disk, and how far back a reader can go."""

    minute: int
    disk_bytes: int
    past_minutes: float


def run_retention(_context: Context) -> Findings:
    """Play the same traffic with three settings."""
    traffic = Traffic(kept_minutes=scaled(full=60, quick=10))
    played = {name: play(config, traffic) for name, config in settings(traffic).items()}
    return Findings(
        retention_table(played, traffic), retention_reading(played, traffic), retention_figure(played, traffic), {}
    )


def settings(traffic: Traffic) -> dict[str, LogConfig]:
    """Keep by time, by size, or by whichever comes first; the size has room for half as much again as usual."""
    config = LogConfig(
        segment_bytes=8 * traffic.batches * traffic.batch_bytes,
        segment_ms=max(1, traffic.kept_minutes // 10) * MINUTE_MS,
    )
    by_time = replace(config, retention_ms=traffic.kept_minutes * MINUTE_MS)
    retention_bytes = traffic.ordinary_bytes * 3 // 2
    return {
        TIME_ONLY: by_time,
        SIZE_ONLY: replace(config, retention_ms=UNLIMITED, retention_bytes=retention_bytes),
        BOTH: replace(by_time, retention_bytes=retention_bytes),
    }


def play(config: LogConfig, traffic: Traffic) -> list[Sample]:
    """Append for hours of virtual time, on a disk in memory, and let the log clean up each minute."""
    log = SegmentedLog.open(MemoryFiles(), "orders-0", config)
    batch = batch_of(traffic.batch_bytes)
    samples = []
    for minute in range(traffic.minutes):
        now_ms = START_MS + minute * MINUTE_MS
        set_timestamps(batch, now_ms, now_ms)
        for _ in range(traffic.batches_in(minute)):
            log.append(batch)
        log.retain(now_ms)
        past_ms = now_ms - log.segments[0].first_timestamp
        samples.append(Sample(minute, log.size, past_ms / MINUTE_MS))
    log.close()
    return samples


def disk_peak(samples: Sequence[Sample]) -> int:
    """The most bytes on the disk at any time."""
    return max(sample.disk_bytes for sample in samples)


def past_least(samples: Sequence[Sample], traffic: Traffic) -> float:
    """The least that a reader could go back, once there was enough to go back to."""
    return min(sample.past_minutes for sample in samples if sample.minute >= traffic.kept_minutes)


def calm_after(samples: Sequence[Sample], traffic: Traffic) -> int:
    """How many minutes after the burst the disk holds no more than in the fullest minute before it."""
    usual = max(sample.disk_bytes for sample in samples[: traffic.burst.start])
    calm = (sample.minute for sample in samples[traffic.burst.stop :] if sample.disk_bytes <= usual)
    return next(calm, traffic.minutes) - traffic.burst.stop


def retention_table(played: dict[str, list[Sample]], traffic: Traffic) -> Table:
    """Set out what each setting costs and keeps."""
    before = traffic.burst.start - 1
    rows = [
        [
            name,
            number_text(samples[before].disk_bytes / MB),
            number_text(disk_peak(samples) / MB),
            number_text(samples[before].past_minutes),
            number_text(past_least(samples, traffic)),
        ]
        for name, samples in played.items()
    ]
    columns = ["setting", "MB before the burst", "MB at most", "minutes kept before the burst", "minutes kept at least"]
    return Table(columns, rows)


def retention_figure(played: dict[str, list[Sample]], traffic: Traffic) -> LineChart:
    """Draw the bytes on the disk over time."""
    every = max(1, traffic.minutes // 60)  # more points than that run into each other
    lines = [
        Line(name, [Point(sample.minute, sample.disk_bytes / MB) for sample in samples[::every]])
        for name, samples in played.items()
    ]
    burst = f"{traffic.burst_factor} times the traffic from minute {traffic.burst.start} to {traffic.burst.stop}"
    return LineChart(
        "A burst, and what is kept of it",
        f"minutes; {burst}",
        "MB on the disk",
        lines,
        limit=Mark(traffic.ordinary_bytes * 3 / 2 / MB, "retention.bytes"),
        note=QUICK_NOTE if is_quick() else "",
    )


def retention_reading(played: dict[str, list[Sample]], traffic: Traffic) -> list[str]:
    """Say what the figures mean."""
    before = traffic.burst.start - 1
    peak = {name: disk_peak(samples) / MB for name, samples in played.items()}
    past = {name: past_least(samples, traffic) for name, samples in played.items()}
    usual = played[TIME_ONLY][before].disk_bytes / MB
    return [
        f"By time: every record is kept for {traffic.kept_minutes} minutes and more, burst or not. The disk pays: "
        f"{number_text(usual)} MB become {number_text(peak[TIME_ONLY])}, {number_text(peak[TIME_ONLY] / usual)} times "
        f"as much, and are back to normal {calm_after(played[TIME_ONLY], traffic)} minutes after the burst.",
        f"By size: the disk never holds more than {number_text(peak[SIZE_ONLY])} MB. The readers pay: during the burst "
        f"they can go back {number_text(past[SIZE_ONLY])} minutes instead of "
        f"{number_text(played[SIZE_ONLY][before].past_minutes)}. Whoever is slower than that misses records.",
        f"Both: whichever comes first. At most {number_text(peak[BOTH])} MB, and in the burst "
        f"{number_text(past[BOTH])} minutes; in quiet times {number_text(played[BOTH][before].disk_bytes / MB)} MB, "
        f"for time deletes first. So choose the bytes that the disk has, and the time that the readers need, and watch "
        f"how far behind they are.",
    ]


LABS = [
    Lab("index", "02", "how sparse an index may be: lookup time against index size", run_index),
    Lab("retention", "02", "time against size retention under a burst: the disk over time", run_retention),
]
