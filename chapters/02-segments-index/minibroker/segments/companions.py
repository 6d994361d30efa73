"""What goes along with a log and hears of everything that happens to it. A pure module.

The indexes of this chapter are the first companions. Chapter 03 adds the state of idempotent producers, chapter 04 the
leader epochs, chapter 06 the aborted transactions: each a file or a table that can be built anew by reading the log,
and that would be wrong if it missed one batch.
"""

from typing import Protocol

from minibroker.log.batch import BatchHeader


class Companion(Protocol):
    """All methods are called after the log itself has changed, in the order of the changes."""

    def on_append(self, header: BatchHeader, position: int) -> None:
        """A batch was written at `position` of the active segment."""

    def on_roll(self, base_offset: int) -> None:
        """A new active segment begins with `base_offset`."""

    def on_truncate(self, offset: int) -> None:
        """The log now ends before `offset`."""

    def on_delete(self, offset: int) -> None:
        """The log now starts with `offset`; what was before is gone."""

    def replay(self, header: BatchHeader, position: int) -> None:
        """After a crash: this batch is in the log, and was perhaps not heard of before."""
