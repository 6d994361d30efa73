"""The line of answers of a connection. A pure module.

A Produce with acks=all does not block while its batches are copied by the followers. The requests after it are served,
and their answers stand in line, because a client expects answers in the order of its requests. So the batches of many
requests are copied together:

    Produce 1 ──▶ appended, waits        line: 1
    Produce 2 ──▶ appended, waits        line: 1, 2          one fetch of a follower copies both
    Metadata  ──▶ answered               line: 1, 2, its answer
"""

from collections import deque
from collections.abc import Iterator

from minibroker.partitions.registry import Reply
from minibroker.partitions.waiting import Parked
from minibroker.wire.schema import Response

LINE_MAX = 32
"""How many answers of a connection may stand in line."""


class Place:
    """A place in the line of answers."""

    __slots__ = ("is_blocking", "parked", "reply")

    def __init__(self, reply: Reply | None, *, is_blocking: bool = False) -> None:
        self.reply = reply
        """The answer, or None as long as it must wait."""
        self.is_blocking = is_blocking
        """Whether no request may be served before this answer is sent."""
        self.parked: Parked[Response] | None = None


class Line(deque[Place]):
    """The answers that must wait, and the answers after them, in the order of their requests."""

    @property
    def is_blocked(self) -> bool:
        """Whether no further request may be served: the last one blocks, or the line is full."""
        return bool(self) and (self[-1].is_blocking or len(self) >= LINE_MAX)

    def next_ready(self) -> Reply | None:
        """Take the first answer out of the line. None if the first one must wait, or if the line is empty."""
        return self.popleft().reply if self and self[0].reply is not None else None

    def parked(self) -> Iterator[Parked[Response]]:
        """The requests that wait."""
        return (place.parked for place in self if place.parked is not None)
