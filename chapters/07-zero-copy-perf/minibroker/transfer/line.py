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
from minibroker.wire.schema import Response

LINE_MAX = 128
"""How many answers of a connection may stand in line. The next request waits until there is room."""


class Place:
    """A place in the line."""

    __slots__ = ("is_blocking", "parked", "reply")

    def __init__(self, reply: Reply | None, *, is_blocking: bool) -> None:
        self.reply = reply
        """The answer, or None until it is ready."""
        self.is_blocking = is_blocking
        self.parked: Parked[Response] | None = None
        """The wait for the answer."""


class Line(deque[Place]):
    """The answers of a connection, from the first one that waits on."""

    __slots__ = ()

    @property
    def is_blocked(self) -> bool:
        """Whether no further request may be served now. A blocking request is the last one in the line."""
        return bool(self) and (self[-1].is_blocking or len(self) >= LINE_MAX)

    def add(self, reply: Reply | None, *, is_blocking: bool = False) -> Place:
        """Add an answer, or a place for one that must wait, at the end."""
        place = Place(reply, is_blocking=is_blocking)
        self.append(place)
        return place

    def take(self) -> Reply | None:
        """Take the answer at the head out of the line, if it is ready."""
        reply = self[0].reply if self else None
        if reply is not None:
            self.popleft()
        return reply

    def waits(self) -> Iterator[Parked[Response]]:
        """The waits of all answers that are not ready."""
        return (it.parked for it in self if it.parked is not None)
