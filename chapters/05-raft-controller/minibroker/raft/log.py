"""The log that a quorum keeps, as `Raft` needs it. A pure module.

`Raft` reads and writes its log through this protocol and through nothing else. Chapter 02's `SegmentedLog` satisfies
it; so does any other log that can be cut at both ends.
"""

from typing import Protocol

from minibroker.log.interfaces import Log


class QuorumLog(Log, Protocol):
    """Chapter 01's `Log`, which a follower can also copy into, and whose beginning can be dropped."""

    @property
    def failure(self) -> str | None:
        """Why the log takes no more writes, if it does not: its disk has failed."""

    @property
    def size(self) -> int:
        """The bytes that the log holds."""

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches as the leader has stamped them."""

    def roll(self) -> None:
        """Begin a new segment, so that everything before it can be deleted."""

    def delete_before(self, offset: int) -> None:
        """Drop everything before an offset; the log starts there."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log starts, and ends, at an offset."""
