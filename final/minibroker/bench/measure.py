"""Measurements: cases run in turn, each repeat is timed, and all figures are derived from those times.

Three habits make figures comparable on a machine that other programs share:

1. Cases are *interleaved*: all cases once, then all cases again, so that a noisy neighbour disturbs them all alike.
2. The first round is thrown away: it warms files, caches and allocators.
3. A case is compared with another one, its *limit*, repeat by repeat, and the median of those comparisons is reported.
   Two cases that run a moment apart share their noise, which then cancels out. So list a case directly after its limit.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from minibroker.bench.units import GB, MB

REPEATS = 11
Number = TypeVar("Number", int, float)

# A case too quick for the clock counts as one nanosecond, which avoids a division by zero.
WALL_S_MIN = 1e-9


class Sample(NamedTuple):
    """A reading of the clock, or the difference of two: wall time, and CPU time (user + system) of this process."""

    wall_s: float
    cpu_s: float


Clock = Callable[[], Sample]
Progress = Callable[[int, int, str], None]


def process_clock() -> Sample:
    """Read the wall clock and the CPU time of all threads of this process."""
    return Sample(time.perf_counter(), time.process_time())


def no_progress(round_number: int, repeats: int, case_name: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Case:
    """A known amount of work to be timed: how many bytes it moves, how many operations it does, or both."""

    name: str
    run: Callable[[], object]
    bytes_count: int = 0
    operations_count: int = 0
    limit: str = ""  # the name of the case that this one is compared with
    series: str = ""  # the implementation that it measures; each has its colour in the figure
    group: str = ""  # the heading above it in the figure
    before: Callable[[], object] | None = None  # called before each repeat, outside the clock
    after: Callable[[], object] | None = None  # called after each repeat, outside the clock
    cpu_s: Callable[[], float] | None = None  # returns the CPU time of a server or thread, not of this process
    wall_s: Callable[[], float] | None = None  # returns the time that a client measured, not this process

    def __post_init__(self) -> None:
        if self.bytes_count <= 0 and self.operations_count <= 0:
            raise ValueError(f"case {self.name!r} counts no work: set bytes_count or operations_count")


class Spread(NamedTuple):
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise the repeats; both quartiles of a single value are that value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def percent(self) -> float:
        """Half the distance between the quartiles, as a percentage of the median: the ± of the tables."""
        return 50 * (self.high - self.low) / abs(self.median) if self.median else 0.0


def percentile(ordered: Sequence[Number], percent: float) -> Number:
    """The smallest value such that at least `percent` per cent of the ordered values are not greater."""
    assert ordered, "no operation was timed"
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


@dataclass(frozen=True)
class Result:
    """A case and the samples of its repeats, in their order."""

    case: Case
    samples: tuple[Sample, ...]

    @property
    def wall_s(self) -> Spread:
        """Wall time of one repeat."""
        return Spread.of([sample.wall_s for sample in self.samples])

    @property
    def cpu_s(self) -> Spread:
        """CPU time of one repeat."""
        return Spread.of([sample.cpu_s for sample in self.samples])

    @property
    def speed(self) -> Spread:
        """Work per second, in the unit that the case counts; the ± of the tables is its spread."""
        speed = self.spread("mb_per_s") or self.spread("ops_per_s")
        assert speed is not None, "a case counts bytes or operations"
        return speed

    def spread(self, metric_name: str, against: "Result | None" = None) -> Spread | None:
        """Compute a metric for every repeat and summarise it; None if this case has no such figure."""
        metric = METRICS[metric_name]
        if metric.is_comparison and against is None:
            return None
        other = against if against and metric.is_comparison else self
        if metric.work and not (getattr(self.case, metric.work) and getattr(other.case, metric.work)):
            return None
        pairs = zip(self.samples, other.samples, strict=True)
        return Spread.of([metric.compute(self.case, mine, other.case, theirs) for mine, theirs in pairs])


Results = dict[str, Result]


@dataclass(frozen=True)
class Metric:
    """A figure computed from one repeat of a case, alone or together with the same repeat of another case."""

    label: str
    compute: Callable[[Case, Sample, Case, Sample], float]
    work: str = ""  # the field of `Case` that the metric needs, such as bytes_count; if it is 0, there is no metric
    is_comparison: bool = False


def shared_work(case: Case, other: Case) -> tuple[int, int]:
    """Find the kind of work that both cases count, so that their speeds can be divided."""
    for work in ("bytes_count", "operations_count"):
        mine, theirs = getattr(case, work), getattr(other, work)
        if mine and theirs:
            return mine, theirs
    raise ValueError(f"{case.name!r} and {other.name!r} count different work: one counts bytes, the other operations")


def ratio(case: Case, sample: Sample, other: Case, theirs: Sample) -> float:
    """The speed of the case divided by the speed of the other case: 1 means as fast, 0.5 half as fast."""
    mine_work, their_work = shared_work(case, other)
    return mine_work / max(sample.wall_s, WALL_S_MIN) * theirs.wall_s / their_work


def cpu_ratio(case: Case, sample: Sample, other: Case, theirs: Sample) -> float:
    """The CPU time of the case divided by that of the other case, for the same work: 2 means twice as much."""
    mine_work, their_work = shared_work(case, other)
    return sample.cpu_s / mine_work * their_work / max(theirs.cpu_s, WALL_S_MIN)


def _per_s(work: float, sample: Sample) -> float:
    return work / max(sample.wall_s, WALL_S_MIN)


def _us(seconds: float, case: Case) -> float:
    return seconds * 1e6 / case.operations_count


METRICS = {
    "mb_per_s": Metric("MB/s", lambda case, it, *_: _per_s(case.bytes_count / MB, it), work="bytes_count"),
    "ops_per_s": Metric("ops/s", lambda case, it, *_: _per_s(case.operations_count, it), work="operations_count"),
    "us_per_op": Metric("µs/op", lambda case, it, *_: _us(it.wall_s, case), work="operations_count"),
    "ms_per_op": Metric("ms/op", lambda case, it, *_: it.wall_s * 1e3 / case.operations_count, work="operations_count"),
    "cpu_us_per_op": Metric("CPU µs/op", lambda case, it, *_: _us(it.cpu_s, case), work="operations_count"),
    "cpu_s_per_gb": Metric("CPU s/GB", lambda case, it, *_: it.cpu_s * GB / case.bytes_count, work="bytes_count"),
    "ratio": Metric("speed ratio", ratio, is_comparison=True),
    "cpu_ratio": Metric("CPU ratio", cpu_ratio, is_comparison=True),
    "us_beyond": Metric(
        "µs/op beyond",
        lambda case, it, other, theirs: _us(it.wall_s, case) - _us(theirs.wall_s, other),
        work="operations_count",
        is_comparison=True,
    ),
}
"""The figures that a benchmark can show or promise. MB are 10⁶ bytes, GB are 10⁹."""


def time_once(case: Case, clock: Clock) -> Sample:
    """Run a case once, with its set-up and tear-down outside the clock."""
    if case.before:
        case.before()
    try:
        # The garbage of the previous case must not be collected while this one is timed.
        gc.collect()
        start = _reading(case, clock)
        case.run()
        end = _reading(case, clock)
    finally:
        if case.after:
            case.after()
    return Sample(case.wall_s() if case.wall_s else end.wall_s - start.wall_s, end.cpu_s - start.cpu_s)


def _reading(case: Case, clock: Clock) -> Sample:
    now = clock()
    return now if case.cpu_s is None else Sample(now.wall_s, case.cpu_s())


def measure(
    cases: Sequence[Case],
    *,
    repeats: int = REPEATS,
    clock: Clock = process_clock,
    progress: Progress = no_progress,
) -> Results:
    """Time all cases in turn: one round to warm up, and then `repeats` measured rounds."""
    samples: dict[str, list[Sample]] = {case.name: [] for case in cases}
    if len(samples) < len(cases):
        raise ValueError("two cases have the same name")
    for round_number in range(repeats + 1):
        for case in cases:
            progress(round_number, repeats, case.name)
            sample = time_once(case, clock)
            if round_number > 0:
                samples[case.name].append(sample)
    return {case.name: Result(case, tuple(samples[case.name])) for case in cases}


def limit_of(result: Result, results: Results) -> Result | None:
    """Find the result that a case is compared with."""
    return results[result.case.limit] if result.case.limit else None
