"""The sessions of brokers with the active controller, which say which brokers are alive. A pure module.

A broker sends heartbeats. The controller fences a broker that has sent none for `broker.session.timeout.ms`: the broker
leads no partition, and leaves the in-sync sets, until its next heartbeat. Sessions are kept only in memory. A new
controller does not know when each broker sent its last heartbeat, so it gives every broker a whole session. The
previous controller is the exception: the new controller was its follower, and knows when it last answered.
"""

from collections.abc import Iterable


class Sessions:
    """The time at which the controller last heard from each broker."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self._heard_ms: dict[int, int] = {}

    def begin(self, brokers: Iterable[int], now_ms: int, *, previous: int = -1, previous_heard_ms: int = 0) -> None:
        """Begin as the active controller: every broker gets a whole session, except the previous controller."""
        self._heard_ms = dict.fromkeys(brokers, now_ms)
        if previous in self._heard_ms:
            # The previous controller may be alive, and have lost only its leadership. So it gets at least a third of a
            # session, in which it can send a heartbeat.
            self._heard_ms[previous] = min(max(previous_heard_ms, now_ms - self.session_ms * 2 // 3), now_ms)

    def touch(self, broker_id: int, now_ms: int) -> None:
        """Note that a broker is alive now."""
        self._heard_ms[broker_id] = now_ms

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        """Whether the controller has heard from a broker within its session."""
        return now_ms - self._heard_ms.get(broker_id, -(2**62)) <= self.session_ms

    def silent(self, brokers: Iterable[int], now_ms: int) -> list[int]:
        """The brokers among these whose session has expired."""
        return [broker_id for broker_id in brokers if not self.is_alive(broker_id, now_ms)]

    def next_end_ms(self, brokers: Iterable[int], now_ms: int) -> int | None:
        """The time until the first of these brokers is silent; None if there is none that is alive."""
        ends_ms = [self._heard_ms[it] + self.session_ms + 1 for it in brokers if self.is_alive(it, now_ms)]
        return min(ends_ms) - now_ms if ends_ms else None
