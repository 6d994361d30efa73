"""The lengths of outages, computed from the times of acknowledgements.

The measuring client writes all the time and keeps the time of each acknowledgement. A fault begins at a known moment;
its outage is the longest time without an acknowledgement after that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from minibroker.bench.measure import percentile
from minibroker.bench.plot import Line, LineChart, Point

YEAR_S = 365 * 24 * 3600
PROMISES = (0.9999, 0.99999)


def longest_gap_ms(times_s: Sequence[float], *, begun_s: float, ended_s: float) -> int:
    """The longest time without an answer between two moments."""
    inside = [it for it in times_s if begun_s < it < ended_s]
    moments = [begun_s, *inside, ended_s]
    return round(max(after - before for before, after in pairwise(moments)) * 1000)


@dataclass(frozen=True)
class Outages:
    """The outages of one kind of fault, in milliseconds."""

    name: str
    lasted_ms: tuple[int, ...]

    def at(self, percent: float) -> int:
        """The percentile of the lengths."""
        return percentile(sorted(self.lasted_ms), percent)

    def text(self) -> str:
        """The number of outages, their percentiles and the longest, in one line."""
        return (
            f"{self.name:32} {len(self.lasted_ms):4} times   p50 {self.at(50):6} ms   p99 {self.at(99):6} ms"
            f"   max {max(self.lasted_ms):6} ms"
        )

    def document(self) -> dict[str, object]:
        """The outages as a JSON document, from which they can be plotted."""
        return {
            "name": self.name,
            "lasted_ms": list(self.lasted_ms),
            "p50_ms": self.at(50),
            "p99_ms": self.at(99),
            "max_ms": max(self.lasted_ms),
        }

    def budget_text(self, promise: float) -> str:
        """How many such outages a year may have, if the share `promise` of the year must be without an outage."""
        budget_s = YEAR_S * (1 - promise)
        often = [round(budget_s * 1000 / max(it, 1)) for it in (self.at(50), max(self.lasted_ms))]
        counts = f"{often[0]:,} of the median length, or {often[1]:,} of the longest"
        return f"{promise:.3%} of a year leaves {budget_s:,.0f} s for outages: {counts}"


def distribution(found: Sequence[Outages], *, title: str, x_label: str, y_label: str, note: str = "") -> LineChart:
    """Draw the cumulative distribution of each kind: the share of outages up to each duration."""
    lines = [
        Line(
            each.name,
            [Point(float(it), (n + 1) / len(each.lasted_ms)) for n, it in enumerate(sorted(each.lasted_ms))],
        )
        for each in found
    ]
    return LineChart(title, x_label, y_label, lines, note=note)
