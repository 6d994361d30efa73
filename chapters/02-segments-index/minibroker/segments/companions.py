"""Companions of a log: tables and files that follow every change of it. A pure module.

The indexes of this chapter are the first companions. Chapter 03 adds the state of idempotent producers, chapter 04 the
leader epochs, chapter 06 the aborted transactions. Each of them can be rebuilt by reading the log, and would be wrong
if it missed one batch.

A companion may keep snapshots of itself on the disk, so that the next start has little to read. It writes them in
`on_roll` and `on_close`, and not with each flush, because a log may be flushed with every append. So after a crash only
the headers from the last roll on are read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from minibroker.log.batch import BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import FileSlice


class Companion(Protocol):
    """All methods are called after the log itself has changed, in the order of the changes.

    A companion inherits from this class and defines the first three methods. It ignores an event if it does not
    override that event's method. If it raises, it has missed a change, and the log goes offline. So it does not raise
    for a file that it can do without, such as a snapshot that a full disk refuses.
    """

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """The log was opened, or truncated. Load the saved state; return the first offset that is not in it.

        The log is replayed from that offset on. State of offsets past the log's end must be removed, durably. State of
        offsets from `recovery_point` on may be older or newer than the log, unless it was flushed.
        """
        raise NotImplementedError

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        """This batch is in the log. Only its header was read, and nothing was checked; `batch.read()` reads it all."""
        raise NotImplementedError

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
        """A batch was written at `position` of the active segment. Its bytes belong to the caller: copy them."""
        raise NotImplementedError

    def on_flush(self, offset: int) -> None:
        """Everything before `offset` is flushed. The recovery point moves there, unless this raises an OSError."""
        return

    def on_roll(self, base_offset: int) -> None:
        """A new active segment begins with `base_offset`."""
        return

    def on_truncate(self, offset: int) -> None:
        """Every batch from `offset` on was removed; with offset 0, all batches. `restore` follows."""
        return

    def on_delete(self, offset: int) -> None:
        """The log now starts with `offset`; records before it were deleted."""
        return

    def on_replace(self, base_offsets: Sequence[int]) -> None:
        """Compaction has replaced the segments with these base offsets by one segment with the first base offset."""
        return

    def on_close(self, offset: int) -> None:
        """Everything before `offset` is flushed, and the log is closed: the next start may be clean."""
        return


class Companions:
    """All companions of one log, told of each change in order. The first failure goes to `on_failure`."""

    def __init__(self, members: Sequence[Companion], *, on_failure: Callable[[Exception], NoReturn]) -> None:
        self.members = members
        self._on_failure = on_failure

    def tell(self, tell: Callable[[Companion], None]) -> None:
        """Tell each of them of one change."""
        try:
            for companion in self.members:
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
        """Let each companion load its saved state, and replay the batches that are not in it."""
        try:
            wanted = [
                (
                    companion.restore(
                        log_start_offset=log_start_offset, log_end_offset=log_end_offset, recovery_point=recovery_point
                    ),
                    companion,
                )
                for companion in self.members
            ]
            first = max(min((offset for offset, _companion in wanted), default=log_end_offset), log_start_offset)
            for header, batch in batches_from(first):
                for offset, companion in wanted:
                    if header.last_offset >= offset:
                        companion.replay(header, batch)
        except Exception as error:
            self._on_failure(error)
