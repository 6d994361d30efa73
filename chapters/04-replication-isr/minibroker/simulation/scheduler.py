"""The virtual clock and its timers. A pure module.

Time jumps to the next event. Events of the same millisecond happen in the order in which they were scheduled, so a run
has the same order on every machine.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]

EVENTS_MAX = 50_000
"""More events than this in one millisecond are a loop that would never end."""


class Timer:
    """An action that will run, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Cancel the action. After it has run, this does nothing."""
        self.action = None


class Scheduler:
    """A clock in milliseconds and a heap of events; `after_event` is called after each of them."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.events = 0
        self.after_event: Action | None = None
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0

    def after(self, delay_ms: int, action: Action) -> Timer:
        """Run an action in `delay_ms` milliseconds."""
        assert delay_ms >= 0, f"{delay_ms} ms from now is in the past"
        timer = Timer(action)
        # The serial number orders events of the same millisecond, so timers are never compared.
        self._serial += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._serial, timer))
        return timer

    def run(self, until_ms: int) -> None:
        """Run all actions that are due by `until_ms`, including actions that are scheduled in the meantime."""
        heap, first = self._heap, self.events
        while heap and heap[0][0] <= until_ms:
            at_ms, _serial, timer = heappop(heap)
            action, timer.action = timer.action, None
            if action is None:
                continue
            # Time moves only with an event.
            if at_ms != self.now_ms:
                self.now_ms, first = at_ms, self.events
            elif self.events - first > EVENTS_MAX:
                raise RuntimeError(f"more than {EVENTS_MAX} events at {at_ms} ms: time stands still")
            self.events += 1
            action()
            if self.after_event is not None:
                self.after_event()
        self.now_ms = until_ms
