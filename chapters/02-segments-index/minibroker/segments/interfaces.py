"""What a copy of a log needs of its storage, beyond chapter 01's `Log`. A pure module.

A state machine that replicates a log, such as Raft in chapter 05, takes this protocol. `SegmentedLog` keeps it.
"""

from typing import Protocol

from minibroker.log.interfaces import Log


class ReplicatedLog(Log, Protocol):
    """A log that follows a leader's, and whose beginning can go once a snapshot holds it."""

    @property
    def failure(self) -> str | None:
        """Why the log is offline, if it is."""

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches that a leader has given their place; a batch cut off at the end is left out."""

    def roll(self) -> None:
        """Begin a new segment, so that `delete_before` can give the space of the old one back."""

    def delete_before(self, offset: int) -> None:
        """Let the log start with `offset`, and delete the segments that are wholly before it."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything, and let the log start and end with `offset`."""
