"""The line of a connection's answers, in the order of their requests. A pure module.

A client expects the answers in the order of its requests. If a request waits and does not block, the requests after it
are served meanwhile. Their answers stand in line after it, even those that are ready.

    Produce 1 ──▶ appended, waits        line: 1
    Produce 2 ──▶ appended, waits        line: 1, 2          one fetch of a follower copies both
    Metadata  ──▶ answered               line: 1, 2, its answer
"""

from collections import deque
from collections.abc import Iterator

from minibroker.partitions.registry import Reply
from minibroker.partitions.waiting import Parked
from minibroker.transfer.cuts import check_cuts, cuts_in
from minibroker.wire.schema import Response

LINE_MAX = 128
"""How many answers of a connection may stand in line. The next request waits until there is room."""


class Place:
    """A place in the line."""

    __slots__ = ("_cuts", "_reply", "is_blocking", "parked")

    def __init__(self, *, is_blocking: bool) -> None:
        self._reply: Reply | None = None
        self._cuts = 0
        self.is_blocking = is_blocking
        self.parked: Parked[Response] | None = None
        """The wait for the answer. None when the answer is ready."""

    def put(self, reply: Reply) -> None:
        """The answer is ready."""
        self._reply = reply
        self._cuts = cuts_in(reply.parts)
        # The wait refers to its place. Without this, the two would keep each other alive until a garbage collection.
        self.parked = None

    def look(self) -> Reply | None:
        """The answer; None until it is ready. Raises if a file of its slices was truncated while it stood in line."""
        if self._reply is not None:
            check_cuts(cuts_in(self._reply.parts), self._cuts)
        return self._reply


class Line(deque[Place]):
    """The answers of a connection, from the first one that waits on."""

    __slots__ = ()

    @property
    def is_blocked(self) -> bool:
        """Whether no further request may be served now. A blocking request is the last one in the line."""
        return bool(self) and (self[-1].is_blocking or len(self) >= LINE_MAX)

    def add(self, *, is_blocking: bool = False) -> Place:
        """Add a place for an answer at the end."""
        place = Place(is_blocking=is_blocking)
        self.append(place)
        return place

    def take(self) -> Reply | None:
        """Take the answer at the head out of the line, if it is ready."""
        reply = self[0].look() if self else None
        if reply is not None:
            self.popleft()
        return reply

    def waits(self) -> Iterator[Parked[Response]]:
        """The waits of all answers that are not ready."""
        return (it.parked for it in self if it.parked is not None)
