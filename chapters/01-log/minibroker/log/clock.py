"""The clocks of a process. The pure modules get the time as an argument and never import this one."""

import time


def monotonic_ms() -> int:
    """A clock that only moves forward, for deadlines."""
    return int(time.monotonic() * 1000)


def precise_ms() -> float:
    """The same clock with fractions of a millisecond, for clients that measure."""
    return time.monotonic() * 1000


def wall_clock_ms() -> int:
    """The time of day, for timestamps."""
    return int(time.time() * 1000)
