"""The lab `retention` of chapter 02: what each retention setting protects.

It plays six hours of traffic with a burst, in virtual time, and compares how much of the disk each setting uses and
how far back a reader can go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minibroker.bench import KIB, MB, Context, Findings, Lab, Line, LineChart, Point, Table, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.plot import Mark
from minibroker.bench.units import number_text
from minibroker.log.memory import MemoryFiles
from minibroker.segments.config import UNLIMITED, LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, batch_of, set_timestamps

MINUTE_MS = 60_000
TIME_ONLY, SIZE_ONLY, BOTH = "retention.ms", "retention.bytes", "both"


@dataclass(frozen=True)
class Traffic:
    """The batches that are written in a minute, and how many more during a burst."""

    kept_minutes: int  # retention.ms
    batch_bytes: int = 16 * KIB
    batches: int = 4
    burst_factor: int = 10

    @property
    def minutes(self) -> int:
        """How many minutes of traffic are played."""
        return 6 * self.kept_minutes

    @property
    def burst(self) -> range:
        """The minutes of the burst, half as many as are kept."""
        return range(2 * self.kept_minutes, 2 * self.kept_minutes + self.kept_minutes // 2)

    @property
    def ordinary_bytes(self) -> int:
        """The bytes that are written without a burst in the time for which records are kept."""
        return self.kept_minutes * self.batches * self.batch_bytes

    def batches_in(self, minute: int) -> int:
        """How many batches are written in a minute."""
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
    """Retention by time, by size, and by both. The size is one and a half times what the time usually keeps."""
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
    """How many minutes a reader could always go back, from the time on when the log was old enough."""
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
        note=quick_note(),
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
        f"{number_text(played[SIZE_ONLY][before].past_minutes)}. A slower reader misses records.",
        f"Both: whichever comes first. At most {number_text(peak[BOTH])} MB, and in the burst "
        f"{number_text(past[BOTH])} minutes; in quiet times {number_text(played[BOTH][before].disk_bytes / MB)} MB, "
        f"for time deletes first. So choose the bytes that the disk has, and the time that the readers need, and watch "
        f"how far behind they are.",
    ]


LABS = [Lab("retention", "02", "time against size retention under a burst: the disk over time", run_retention)]
