"""The arithmetic of axes: the range of an axis, its ticks, and the position of a value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minibroker.bench.units import tick_text


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at or below the low end, 1 at or above the high end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def labels(self) -> list[tuple[float, str]]:
        """Give each tick its text."""
        return [(tick, tick_text(tick)) for tick in self.ticks]


def scale_for(values: Sequence[float], *, log: bool, for_bars: bool = False) -> Scale:
    """Choose an axis that shows all the values."""
    return log_scale(values, for_bars=for_bars) if log else linear_scale(values)


def nice_step(distance: float, ticks_max: int) -> float:
    """Find the smallest of 1, 2, 5, 10, 20, 50 … that divides a distance into at most `ticks_max` steps."""
    rough = distance / ticks_max
    magnitude = 10.0 ** math.floor(math.log10(rough))
    # The tolerance keeps a rounding error, such as 2.0000000000000004, from choosing the next step.
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= rough * (1 - 1e-9))


def linear_scale(values: Sequence[float], ticks_max: int = 6) -> Scale:
    """Cover the values and zero, because a bar that does not start at zero would mislead."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        return Scale(0.0, 1.0, (0.0, 1.0))
    step = nice_step(high - low, ticks_max)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def log_scale(values: Sequence[float], *, for_bars: bool = False) -> Scale:
    """Cover the positive values; zero, which a logarithmic axis does not have, is drawn at the low end."""
    positive = [value for value in values if value > 0] or [1.0, 10.0]
    low = _round_below(min(positive))
    if for_bars:
        # A bar needs some length, so its axis begins at a power of ten well below the smallest value.
        low = 10.0 ** math.floor(math.log10(min(positive) / 1.5))
    high = _round_above(max(positive))
    if low == high:
        low, high = low / 10, high * 10
    return Scale(low, high, _log_ticks(low, high), log=True)


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    # Over many decades only the powers of ten are labelled; over a few there is space for 2 and 5 as well.
    factors = (1,) if high / low >= 1000 else (1, 2, 5)
    ticks = [factor * 10.0**exponent for exponent in _decades(low, high) for factor in factors]
    return tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9))


def _decades(low: float, high: float) -> range:
    return range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)


def _round_below(value: float) -> float:
    return max(number for number in _round_numbers(value) if number <= value * (1 + 1e-9))


def _round_above(value: float) -> float:
    return min(number for number in _round_numbers(value) if number >= value * (1 - 1e-9))


def _round_numbers(near: float) -> list[float]:
    return [factor * 10.0**exponent for exponent in _decades(near, near) for factor in (1, 2, 5, 10)]
