"""What goes along with a log and hears of everything that happens to it. A pure module.

The indexes of this chapter are the first companions. Chapter 03 adds the state of idempotent producers, chapter 04 the
leader epochs, chapter 06 the aborted transactions: each a file or a table that can be built anew by reading the log,
and that would be wrong if it missed one batch.

A companion may keep snapshots of itself on the disk, so that little must be read again at the next start. When one may
be written is told by `on_roll` and `on_close`. Nothing is told of flushes: a log that is flushed with every append
would have a snapshot with every append. So after a crash the headers from the last roll on are read, and no more.
"""

from typing import Protocol

from minibroker.log.batch import BatchHeader


class Companion(Protocol):
    """All methods are called after the log itself has changed, in the order of the changes.

    A companion that raises has missed something: the log goes offline. One that can do without a file of its own, such
    as a snapshot that a full disk refuses, does not raise for that.
    """

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """The log was opened, or truncated. Take up what was kept; return the first offset that is not in it.

        From there on the log is replayed. What was kept of a time when the log was longer has to go, durably. What was
        kept of offsets from `recovery_point` on may be older than the log, or younger, unless it was flushed.
        """

    def replay(self, header: BatchHeader, position: int) -> None:
        """This batch is in the log, at `position` of its segment. Only headers were read, and nothing was checked."""

    def on_append(self, header: BatchHeader, position: int) -> None:
        """A batch was written at `position` of the active segment."""

    def on_flush(self, offset: int) -> None:
        """Everything before `offset` is on the disk: soon that will be `recovery_point`. An OSError puts it off."""

    def on_roll(self, base_offset: int) -> None:
        """A new active segment begins with `base_offset`."""

    def on_truncate(self, offset: int) -> None:
        """Every batch from `offset` on is gone, with offset 0 really every one. `restore` follows."""

    def on_delete(self, offset: int) -> None:
        """The log now starts with `offset`; what was before is gone."""

    def on_close(self, offset: int) -> None:
        """Everything before `offset` is flushed, and the log is closed: the next start may be a clean one."""
