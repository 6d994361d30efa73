"""The earliest time limits of many groups. A pure module.

Every heartbeat moves a time limit of its group, usually to a later time. That is not worth a change of the heap. So
the heap keeps the earlier time, and `due` looks again: a group whose time limit is later by then goes back into the
heap.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush


class Deadlines:
    """Names with a time limit each. `deadline_of` gives the current time limit of a name, or None."""

    def __init__(self, deadline_of: Callable[[str], int | None]) -> None:
        self._deadline_of = deadline_of
        self._heap: list[tuple[int, str]] = []
        self._known: dict[str, int] = {}
        """The earliest entry of each name in the heap."""

    def update(self, name: str) -> None:
        """The time limit of a name may have changed. Only an earlier one counts now."""
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
        """The names whose time limit has come. Each must be updated afterwards."""
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
