"""The log of the quorum, as `Raft` needs it. A pure module.

`Raft` reads and writes its log through this protocol and through nothing else. Chapter 02's `SegmentedLog` satisfies
it; so does any other log that can be truncated at both ends.
"""

from typing import Protocol

from minibroker.log.interfaces import Log


class QuorumLog(Log, Protocol):
    """Chapter 01's `Log`, plus appends as a follower and the deletion of its beginning."""

    @property
    def failure(self) -> str | None:
        """Why the log accepts no more writes after its disk has failed; None while it works."""

    @property
    def size(self) -> int:
        """The size of the log in bytes."""

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches with the offsets and epochs that the leader has given them."""

    def roll(self) -> None:
        """Begin a new segment, so that everything before it can be deleted."""

    def delete_before(self, offset: int) -> None:
        """Delete everything before an offset; the log starts there."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything; the log starts and ends at an offset."""
