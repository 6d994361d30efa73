"""Bars: bounds that a benchmark promises to keep, and the verdict after the measurement.

```python
Bar("append, 1 MiB", "ratio", at_least=0.95)  # compared with the limit that the case names
Bar("append, 16 KiB", "us_beyond", at_most=10)  # microseconds more than that limit takes
Bar("decode", "ratio", at_least=1.0, against="kafka-python")  # compared with another case of the same run
Bar("decode", "ops_per_s", at_least=500_000)  # compared with nothing
Fact("resident memory", "MB", measure_memory, at_most=100)  # not timed, but determined once
```

The median decides. The quartiles are printed as well, so that a reader sees how close the result was.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minibroker.bench.measure import METRICS, Results, Spread
from minibroker.bench.units import number_text, tick_text


@dataclass(frozen=True)
class Bar:
    """A bound on one metric of one case."""

    case: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    against: str = ""  # the name of the case to compare with; if empty, the limit of the bar's own case

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"no metric {self.metric!r}; there are {', '.join(METRICS)}")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"the bar on {self.case!r} needs exactly one of at_least and at_most")

    def allows(self, value: float) -> bool:
        """Tell whether a figure is within the bound."""
        return _allows(value, self.at_least, self.at_most)

    @property
    def bound_text(self) -> str:
        """The bound as it is printed: ≥ 0.95."""
        return _bound_text(self.at_least, self.at_most)


def _allows(value: float, at_least: float | None, at_most: float | None) -> bool:
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def _bound_text(at_least: float | None, at_most: float | None) -> str:
    if at_least is not None:
        return f"≥ {tick_text(at_least)}"
    return "" if at_most is None else f"≤ {tick_text(at_most)}"


@dataclass(frozen=True)
class Verdict:
    """A bar and the figures that were measured."""

    bar: Bar
    against: str
    measured: Spread

    @property
    def is_met(self) -> bool:
        """Whether the median is within the bound."""
        return self.bar.allows(self.measured.median)

    @property
    def text(self) -> str:
        """The verdict in one word, in capitals if the bar was missed."""
        return "met" if self.is_met else "MISSED"

    @property
    def promise(self) -> str:
        """The promise: the case, the metric, the bound, and the case it is compared with."""
        metric = METRICS[self.bar.metric]
        beside = f" (beside {self.against})" if metric.is_comparison else ""
        return f"{self.bar.case}: {metric.label} {self.bar.bound_text}{beside}"


def judge(bar: Bar, results: Results) -> Verdict:
    """Check a bar against the results of its run."""
    result = results[bar.case]
    against = bar.against or result.case.limit
    measured = result.spread(bar.metric, results[against] if against else None)
    if measured is None:
        raise ValueError(
            f"{bar.case!r} has no {bar.metric}: count its bytes or operations, or give it a case to compare with"
        )
    return Verdict(bar, against, measured)


@dataclass(frozen=True)
class Fact:
    """A figure that is determined once, after the timing: memory, files, bytes on disk. It may have a bound.

    Percentiles that a client has reported in every round are facts, too; the figure is then their median over the
    rounds, with its quartiles.
    """

    name: str
    unit: str
    find: Callable[[], float | Spread]
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class FoundFact:
    """A fact and its figure."""

    fact: Fact
    found: float | Spread

    @property
    def value(self) -> float:
        """The figure, or the median of the rounds."""
        return self.found.median if isinstance(self.found, Spread) else self.found

    @property
    def quartiles_text(self) -> str:
        """The quartiles of the rounds; empty if the figure was determined once."""
        found = self.found
        return f"{number_text(found.low)}–{number_text(found.high)}" if isinstance(found, Spread) else ""

    @property
    def is_met(self) -> bool:
        """Whether the figure is within its bound, if it has one."""
        return _allows(self.value, self.fact.at_least, self.fact.at_most)

    @property
    def text(self) -> str:
        """The verdict in one word; empty without a bound."""
        if self.fact.at_least is None and self.fact.at_most is None:
            return ""
        return "met" if self.is_met else "MISSED"

    @property
    def promise(self) -> str:
        """The name of the figure, and its bound."""
        return f"{self.fact.name}: {self.fact.unit} {_bound_text(self.fact.at_least, self.fact.at_most)}".rstrip()
