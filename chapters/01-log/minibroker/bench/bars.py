"""Owns bars: what a benchmark promises, and the verdict once it was measured.

```python
Bar("append, 1 MiB", "ratio", at_least=0.95)  # beside the limit that the case names
Bar("append, 16 KiB", "us_beyond", at_most=10)  # microseconds beyond that limit
Bar("decode", "ratio", at_least=1.0, against="kafka-python")  # beside any other case of the same run
Bar("decode", "ops_per_s", at_least=500_000)  # in itself
```

The median decides. The quartiles are printed beside it, so that a reader sees how narrowly.
"""

from dataclasses import dataclass

from minibroker.bench.measure import METRICS, Results, Spread
from minibroker.bench.units import tick_text


@dataclass(frozen=True)
class Bar:
    """A bound on one metric of one case."""

    case: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    against: str = ""  # the limit of the case, unless another case is named

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"no metric {self.metric!r}; there are {', '.join(METRICS)}")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"the bar on {self.case!r} needs one of at_least and at_most")

    def allows(self, value: float) -> bool:
        """Say whether a figure keeps the promise."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is None or value <= self.at_most

    @property
    def bound_text(self) -> str:
        """The bound as it is printed: ≥ 0.95."""
        if self.at_least is not None:
            return f"≥ {tick_text(self.at_least)}"
        return f"≤ {tick_text(self.at_most or 0)}"


@dataclass(frozen=True)
class Verdict:
    """A bar and what was measured."""

    bar: Bar
    against: str
    measured: Spread

    @property
    def is_met(self) -> bool:
        """Whether the median keeps the promise."""
        return self.bar.allows(self.measured.median)

    @property
    def text(self) -> str:
        """The verdict in one word, loud when it is bad."""
        return "met" if self.is_met else "MISSED"

    @property
    def promise(self) -> str:
        """What was promised: the case, the metric, beside what."""
        metric = METRICS[self.bar.metric]
        beside = f" (beside {self.against})" if metric.is_comparison else ""
        return f"{self.bar.case}: {metric.label} {self.bar.bound_text}{beside}"


def judge(bar: Bar, results: Results) -> Verdict:
    """Hold a bar against the results of its run."""
    result = results[bar.case]
    against = bar.against or result.case.limit
    measured = result.spread(bar.metric, results[against] if against else None)
    if measured is None:
        raise ValueError(f"{bar.case!r} has no {bar.metric}: it needs the work counted, or a case to compare with")
    return Verdict(bar, against, measured)
