"""Companions of a log: tables and files that are updated with every change of the log. A pure module.

The indexes of this chapter are the first companions. Chapter 03 adds the state of idempotent producers, chapter 04 the
leader epochs, chapter 06 the aborted transactions. Each companion can be rebuilt by reading the log. A companion that
missed a batch would be wrong.

A companion may save snapshots of its state, so that the next start reads only the end of the log. It writes them in
`on_roll` and `on_close`. It does not write them at each flush, because a log may be flushed at every append. So after a
crash, only the batch headers after the last roll are read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from minibroker.log.batch import BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import FileSlice


class Companion(Protocol):
    """All methods are called after the log itself has changed, in the order of the changes.

    A companion inherits from this class and defines the first three methods. It overrides the others only for the
    events that it needs. If a method raises, the companion has missed a change, and the log goes offline. So a method
    must not raise for a file that is not essential, such as a snapshot that does not fit on a full disk.
    """

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """The log was opened or truncated. Load the saved state, and return the first offset that it does not cover.

        The log is replayed from that offset on. State about offsets past the log's end must be removed durably. Saved
        state about offsets from `recovery_point` on can differ from the log, unless the companion flushed it.
        """
        raise NotImplementedError

    def replay(self, header: BatchHeader, batch: FileSlice) -> None:
        """Add a batch of the log. Only its header was read; no checksum was checked. `batch.read()` reads all of it."""
        raise NotImplementedError

    def on_restored(self) -> None:
        """The batches that `restore` asked for have been replayed."""
        return

    def on_append(self, header: BatchHeader, batch: Bytes, position: int) -> None:
        """A batch was written at `position` of the active segment. A companion that keeps the batch must copy it."""
        raise NotImplementedError

    def on_flush(self, offset: int) -> None:
        """Everything before `offset` is flushed. The recovery point moves there, unless this method raises OSError."""
        return

    def on_roll(self, base_offset: int) -> None:
        """A new active segment begins with `base_offset`."""
        return

    def on_truncate(self, offset: int) -> None:
        """Every batch from `offset` on was removed; with offset 0, all batches. `restore` is called next."""
        return

    def on_delete(self, offset: int) -> None:
        """The log now starts with `offset`; records before it were deleted."""
        return

    def on_replace(self, base_offsets: Sequence[int]) -> None:
        """Compaction has replaced the segments with these base offsets by one segment with the first base offset."""
        return

    def on_close(self, offset: int) -> None:
        """The log is closed, and everything before `offset` is flushed. The next start may skip its checks."""
        return


class Companions:
    """All companions of one log. Each change is passed to them in order. `on_failure` gets the first failure."""

    def __init__(self, members: Sequence[Companion], *, on_failure: Callable[[Exception], NoReturn]) -> None:
        self.members = members
        self._on_failure = on_failure

    def tell(self, tell: Callable[[Companion], None]) -> None:
        """Call `tell` with each companion, to report one change."""
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
        """Let each companion load its saved state, and replay the batches that the state does not cover."""
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
            for companion in self.members:
                companion.on_restored()
        except Exception as error:
            self._on_failure(error)
