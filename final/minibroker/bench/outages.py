"""Owns how long something did not answer: out of the times at which it did. A pure module.

A client that measures writes without a pause and notes when each was acknowledged. A fault begins at a known moment;
how long it was felt is the longest time without an acknowledgement from there on.
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
    """What one kind of fault has cost, again and again, in milliseconds."""

    name: str
    lasted_ms: tuple[int, ...]

    def at(self, percent: float) -> int:
        """How long it lasted at most, so many times out of a hundred."""
        return percentile(sorted(self.lasted_ms), percent)

    def text(self) -> str:
        """One line."""
        return (
            f"{self.name:32} {len(self.lasted_ms):4} times   p50 {self.at(50):6} ms   p99 {self.at(99):6} ms"
            f"   max {max(self.lasted_ms):6} ms"
        )

    def document(self) -> dict[str, object]:
        """The same for a file, from which it can be plotted."""
        return {
            "name": self.name,
            "lasted_ms": list(self.lasted_ms),
            "p50_ms": self.at(50),
            "p99_ms": self.at(99),
            "max_ms": max(self.lasted_ms),
        }

    def budget_text(self, promise: float) -> str:
        """How many of these a year may have, if so much of it is to be without one."""
        budget_s = YEAR_S * (1 - promise)
        often = [round(budget_s * 1000 / max(it, 1)) for it in (self.at(50), max(self.lasted_ms))]
        return f"{promise:.3%} of a year leaves {budget_s:,.0f} s: {often[0]:,} such at p50, {often[1]:,} at the max"


def distribution(found: Sequence[Outages], *, title: str, x_label: str, y_label: str, note: str = "") -> LineChart:
    """Draw which share of each kind lasted no longer than so many milliseconds."""
    lines = [
        Line(
            each.name,
            [Point(float(it), (n + 1) / len(each.lasted_ms)) for n, it in enumerate(sorted(each.lasted_ms))],
        )
        for each in found
    ]
    return LineChart(title, x_label, y_label, lines, note=note)
