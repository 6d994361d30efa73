"""The rate of new connections: of the whole node, and of one address (KIP-612). A pure module.

A connection beyond the rate of the node is accepted and served later. A connection beyond the rate of its address is
closed after the time that it would have to wait: if it were closed at once, the client would connect again at once.
"""

from typing import NamedTuple

from minibroker.transfer.rates import Rate, Windows
from minibroker.transfer.usage import Usage

_DELAY_MS_MAX = 1000


class Arrival(NamedTuple):
    """What becomes of a new connection: it is served after `delay_ms`, or closed then."""

    delay_ms: int = 0
    is_refused: bool = False


_WELCOME = Arrival()


class Arrivals:
    """Judges new connections."""

    def __init__(self, usage: Usage, *, rate_max: int, windows: Windows = Windows()) -> None:  # noqa: B008
        """`rate_max` is the limit of the node, max.connection.creation.rate."""
        self._usage = usage
        self.rate_max = rate_max
        self._rate = Rate(windows)

    def judge(self, address: str, now_ms: int) -> Arrival:
        """Count a new connection, and decide about it."""
        limited = self._usage.connecting(address, now_ms)
        if limited is not None:
            delay_ms = limited.delay_ms(1, now_ms)
            if delay_ms:
                # A connection that is refused does not count.
                limited.rate.record(-1, now_ms)
                return Arrival(min(delay_ms, _DELAY_MS_MAX), is_refused=True)
        self._rate.record(1, now_ms)
        delay_ms = self._rate.delay_ms(self.rate_max, now_ms)
        return Arrival(min(delay_ms, _DELAY_MS_MAX)) if delay_ms else _WELCOME
