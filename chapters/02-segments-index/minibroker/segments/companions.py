"""What goes along with a log and hears of everything that happens to it. A pure module.

The indexes of this chapter are the first companions. Chapter 03 adds the state of idempotent producers, chapter 04 the
leader epochs, chapter 06 the aborted transactions: each a file or a table that can be rebuilt by reading the log, and
that would be wrong if it missed one batch.

A companion may keep snapshots of itself on the disk, so that the next start reads little again. `on_roll` and
`on_close` tell when to write one. A log that is flushed with every append would otherwise have a snapshot with every
append. So after a crash the headers from the last roll on are read, and no more.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from minibroker.log.batch import BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import FileSlice


class Companion(Protocol):
    """All methods are called after the log itself has changed, in the order of the changes.

    A companion inherits from this class, has the first three methods, and ignores every other event that it does not
    override. One that raises has missed something: the log goes offline. One that can do without a file of its own,
    such as a snapshot that a full disk refuses, does not raise for that.
    """

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """The log was opened, or truncated. Take up what was kept; return the first offset that is not in it.

        From there on the log is replayed. What was kept of a time when the log was longer has to go, durably. What was
        kept of offsets from `recovery_point` on may be older than the log, or younger, unless it was flushed.
        """
        raise NotImplementedError

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        """This batch is in the log. Only its header was read, and nothing was checked; `batch.read()` reads it all."""
        raise NotImplementedError

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
        """A batch was written at `position` of the active segment. Its bytes belong to the caller: copy, not keep."""
        raise NotImplementedError

    def on_flush(self, offset: int) -> None:
        """Everything before `offset` is on the disk: soon that will be `recovery_point`. An OSError puts it off."""
        return

    def on_roll(self, base_offset: int) -> None:
        """A new active segment begins with `base_offset`."""
        return

    def on_truncate(self, offset: int) -> None:
        """Every batch from `offset` on is gone, with offset 0 really every one. `restore` follows."""
        return

    def on_delete(self, offset: int) -> None:
        """The log now starts with `offset`; what was before is gone."""
        return

    def on_replace(self, base_offsets: Sequence[int]) -> None:
        """Compaction has put one segment in the place of those with these base offsets; it has the first of them."""
        return

    def on_close(self, offset: int) -> None:
        """Everything before `offset` is flushed, and the log is closed: the next start may be a clean one."""
        return


class Companions:
    """All companions of one log, told of each change in their order. The first failure goes to `on_failure`."""

    def __init__(self, row: Sequence[Companion], *, on_failure: Callable[[Exception], NoReturn]) -> None:
        self.row = row
        self._on_failure = on_failure

    def tell(self, tell: Callable[[Companion], None]) -> None:
        """Tell each of them of one change."""
        try:
            for companion in self.row:
                tell(companion)
        except Exception as error:
            self._on_failure(error)

    def restore(
        self,
        batches_from: Callable[[int], Iterable[tuple[BatchHeader, FileSlice]]],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        """Let each take up what it kept, and replay to it the batches that it did not keep."""
        try:
            wanted = [
                (
                    companion.restore(
                        log_start_offset=log_start_offset, log_end_offset=log_end_offset, recovery_point=recovery_point
                    ),
                    companion,
                )
                for companion in self.row
            ]
            first = max(min((offset for offset, _companion in wanted), default=log_end_offset), log_start_offset)
            for header, batch in batches_from(first):
                for offset, companion in wanted:
                    if header.last_offset >= offset:
                        companion.replay(header, batch)
        except Exception as error:
            self._on_failure(error)
