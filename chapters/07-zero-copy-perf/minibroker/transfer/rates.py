"""How much is used of a quota, and how long a client must wait. A pure module.

A rate is measured over the last samples, eleven of one second each. The current sample is never complete, so a rate is
a mean over at least ten seconds. A client that exceeds its quota must wait until the mean has fallen to the quota:

    delay = (rate - quota) / quota * window

A bucket of tokens fits work that comes in bursts. Tokens flow in at the rate of the quota, up to eleven seconds' worth.
Work takes tokens, and may take more than there are. While their number is below zero, no more work is accepted.
"""

from collections import deque
from typing import NamedTuple

SAMPLES = 11
SAMPLE_MS = 1000


class Windows(NamedTuple):
    """The samples over which a rate is measured."""

    samples: int = SAMPLES
    ms: int = SAMPLE_MS

    @property
    def full_s(self) -> float:
        """The seconds of all complete samples. An amount above the quota for this many seconds never fits."""
        return max(self.samples - 1, 1) * self.ms / 1000


class Rate:
    """A mean of the amounts of the last samples, per second."""

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows = Windows()) -> None:  # noqa: B008
        self._windows = windows
        self._samples: deque[tuple[int, float]] = deque()  # when each sample began, and its amount
        self._total = 0.0

    def record(self, amount: float, now_ms: int) -> None:
        """Count an amount. A negative one takes back an earlier one."""
        self._forget(now_ms)
        # A sample holds the amounts of one window. After its end, the next amount begins another sample.
        begin_ms, known = self._samples[-1] if self._samples else (now_ms, 0.0)
        if not self._samples or now_ms - begin_ms >= self._windows.ms:
            self._samples.append((now_ms, amount))
        else:
            self._samples[-1] = (begin_ms, known + amount)
        self._total += amount

    def per_second(self, now_ms: int) -> float:
        """The rate now."""
        self._forget(now_ms)
        return max(self._total, 0.0) / self._window_s(now_ms)

    def delay_ms(self, quota: float, now_ms: int) -> int:
        """How long to wait until the rate has fallen to a quota; 0 if it is not exceeded."""
        rate = self.per_second(now_ms)
        if rate <= quota:
            return 0
        return max(round((rate - quota) / quota * self._window_s(now_ms) * 1000), 1)

    def is_empty(self, now_ms: int) -> bool:
        """Whether this rate is the same as a new one."""
        self._forget(now_ms)
        return not self._samples

    def _window_s(self, now_ms: int) -> float:
        """The time since the first sample, but at least that of all complete samples."""
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        missing = max(self._windows.samples - 1 - elapsed_ms // self._windows.ms, 0)
        return max(elapsed_ms + missing * self._windows.ms, self._windows.ms) / 1000

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] >= self._windows.samples * self._windows.ms:
            self._total -= self._samples.popleft()[1]
        if not self._samples:
            # The sum of many fractions is not exact, so begin again at zero.
            self._total = 0.0


class Bucket:
    """Tokens that flow in at the rate of a quota. A new bucket is full."""

    __slots__ = ("_now_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows = Windows()) -> None:  # noqa: B008
        self._windows = windows
        self._tokens: float | None = None
        self._now_ms = 0

    def tokens(self, quota: float, now_ms: int) -> float:
        """The tokens now; below zero if more were taken than there were."""
        full = quota * self._windows.samples * self._windows.ms / 1000
        if self._tokens is None:
            self._tokens, self._now_ms = full, now_ms
        self._tokens = min(self._tokens + quota * max(now_ms - self._now_ms, 0) / 1000, full)
        self._now_ms = max(now_ms, self._now_ms)
        return self._tokens

    def take(self, count: float, quota: float, now_ms: int) -> None:
        """Take tokens, even if there are too few."""
        self._tokens = self.tokens(quota, now_ms) - count

    def delay_ms(self, quota: float, now_ms: int) -> int:
        """How long to wait until the number of tokens is not below zero."""
        tokens = self.tokens(quota, now_ms)
        return max(round(-tokens / quota * 1000), 1) if tokens < 0 else 0

    def is_full(self, quota: float, now_ms: int) -> bool:
        """Whether this bucket is the same as a new one."""
        return self.tokens(quota, now_ms) >= quota * self._windows.samples * self._windows.ms / 1000
