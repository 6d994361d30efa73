"""The earliest of many time limits, for groups or for members. A pure module.

Every heartbeat moves a time limit to a later time. Updating a heap each time would cost too much. So the heap keeps the
earlier time. When that time comes, `due` looks up the current time limit, and puts a later one back into the heap.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush


class Deadlines:
    """Time limits by name. `deadline_of` gives the current time limit of a name, or None."""

    def __init__(self, deadline_of: Callable[[str], int | None]) -> None:
        self._deadline_of = deadline_of
        self._heap: list[tuple[int, str]] = []
        self._known: dict[str, int] = {}
        """The time of each name's earliest entry in the heap."""

    def update(self, name: str) -> None:
        """Note that the time limit of a name may have changed. Only an earlier time limit changes the heap."""
        deadline_ms = self._deadline_of(name)
        if deadline_ms is None:
            return
        known = self._known.get(name)
        if known is None or deadline_ms < known:
            self._known[name] = deadline_ms
            heappush(self._heap, (deadline_ms, name))

    @property
    def earliest_ms(self) -> int | None:
        """A time before which no time limit ends, or None if there is none."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[str]:
        """The names whose time limit has ended. The caller must call `update` for each of them afterwards."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heappop(self._heap)
            # A name may be in the heap several times. Only its earliest entry counts.
            if self._known.get(name) != deadline_ms:
                continue
            del self._known[name]
            current_ms = self._deadline_of(name)
            if current_ms is not None and current_ms <= now_ms:
                yield name
            else:
                self.update(name)
