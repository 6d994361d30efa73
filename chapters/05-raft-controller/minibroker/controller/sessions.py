"""Who is alive, in the eyes of the active controller. A pure module.

A broker says every now and then that it is there. One that has been silent for `broker.session.timeout.ms` is fenced:
it leads nothing and is in sync nowhere until it is heard again. Sessions are kept in memory alone. A new controller
knows of nobody when it was heard last, so it gives everybody a whole session's time; but for the controller before it,
which it has followed, and whose silence is why there is a new one.
"""

from collections.abc import Iterable


class Sessions:
    """When each broker was heard last."""

    def __init__(self, session_ms: int) -> None:
        self.session_ms = session_ms
        self._heard_ms: dict[int, int] = {}

    def begin(self, brokers: Iterable[int], now_ms: int, *, before: int = -1, before_ms: int = 0) -> None:
        """This node begins to decide: everybody has been heard just now, and who decided before, at `before_ms`."""
        self._heard_ms = dict.fromkeys(brokers, now_ms)
        if before in self._heard_ms:
            # It may be there and only lead no more: then it needs time to say so, which is more than one heartbeat.
            self._heard_ms[before] = min(max(before_ms, now_ms - self.session_ms * 2 // 3), now_ms)

    def touch(self, broker_id: int, now_ms: int) -> None:
        """A broker was heard."""
        self._heard_ms[broker_id] = now_ms

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        """Whether a broker was heard within its session."""
        return now_ms - self._heard_ms.get(broker_id, -(2**62)) <= self.session_ms

    def silent(self, brokers: Iterable[int], now_ms: int) -> list[int]:
        """Those of the brokers whose session is over."""
        return [broker_id for broker_id in brokers if not self.is_alive(broker_id, now_ms)]
