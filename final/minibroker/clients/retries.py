"""How long to wait before the next attempt, and when to give up. A pure module.

Waits double from attempt to attempt up to a bound, and each is varied at random, so that clients that failed together
do not retry together (KIP-580). Chance and time are arguments.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Kafka's `retry.backoff.ms` and `retry.backoff.max.ms`, with its jitter of 20 %."""

    backoff_ms: int = 100
    backoff_ms_max: int = 1000
    jitter: float = 0.2

    def delay_ms(self, attempt: int, chance: float) -> int:
        """The wait after the given number of failed attempts, 1 or more; `chance` is from 0 up to 1, exclusive."""
        # After thirty doublings the bound has long been reached; more would only make a huge number.
        doubled = self.backoff_ms << min(max(attempt - 1, 0), 30)
        return int(min(doubled, self.backoff_ms_max) * (1 + self.jitter * (2 * chance - 1)))


class Attempts:
    """Counts the attempts at one piece of work that has a deadline."""

    def __init__(self, policy: RetryPolicy, *, deadline_ms: float) -> None:
        self._policy = policy
        self.deadline_ms = deadline_ms
        self.count = 0

    def left_ms(self, now_ms: float) -> float:
        """The time until the deadline, never negative."""
        return max(0.0, self.deadline_ms - now_ms)

    def next_delay_ms(self, *, now_ms: float, chance: float) -> int | None:
        """The wait after an attempt that failed now, or None if the wait would end after the deadline."""
        self.count += 1
        delay_ms = self._policy.delay_ms(self.count, chance)
        return delay_ms if now_ms + delay_ms < self.deadline_ms else None
