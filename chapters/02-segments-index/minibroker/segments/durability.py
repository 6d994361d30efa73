"""How much of a log is on the disk, and whether the log can still be trusted. A pure module that `SegmentedLog` uses.

A log has one recovery point. Every record before it survives a power failure, and the next start does not check these
records. The recovery point moves forward *after* a flush and back *before* a truncation, so every record before it is
on the disk. A background thread flushes the rolled segments and may finish them in any order. The recovery point passes
them in the order of the log.

If the disk refuses a flush, or one step of a change that has several, the files are in an unknown state. The log is
then offline: it refuses every further change until a restart has recovered it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

from minibroker.log.errors import LogError, LogOffline, StorageError
from minibroker.log.interfaces import Files, directory_of
from minibroker.segments.companions import Companion
from minibroker.segments.segment import Segment


def run_now(work: Callable[[], None]) -> None:
    """Do background work immediately. It is used in tests, and by logs whose owner has no background thread."""
    work()


class Memory(Protocol):
    """Saves a log's recovery point and start offset for the next start. It is called on the log's thread."""

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        """Save the recovery point. If `is_urgent`, return only once it is on the disk."""

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        """Save the log start offset. If `is_urgent`, return only once it is on the disk."""


class Forgetful:
    """A `Memory` that saves nothing, so the next start checks the whole log."""

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        """Do nothing."""

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        """Do nothing."""


class _Rolled:
    """A segment that was rolled and is being flushed.

    The background thread only records the outcome. The log's own thread acts on it in `settle`.
    """

    def __init__(self, segment: Segment, end_offset: int) -> None:
        assert segment.tail is not None
        self.segment = segment
        self.tail = segment.tail
        self.end_offset = end_offset
        self.is_done = False
        self.failure: str | None = None


class Durability:
    """One log's recovery point, its rolled segments that are not flushed yet, and the failure of an offline log."""

    def __init__(
        self,
        files: Files,
        directory: str,
        active: Segment,
        *,
        is_named: bool,
        companions: Sequence[Companion],
        background: Callable[[Callable[[], None]], None],
        memory: Memory,
    ) -> None:
        assert active.tail is not None
        self._files = files
        self._directory = directory
        self._companions = companions
        self._background = background
        self._memory = memory
        self._active = active
        self._tail = active.tail
        self.rolled: deque[_Rolled] = deque()
        self.recovery_point = self._tail.flushed_offset
        self.is_named = is_named or self.recovery_point > active.base_offset
        """Whether the names of the log's files are certainly on the disk. Before the first flush they need not be."""

    def use(self, active: Segment) -> None:
        """Make another segment the active one. A log that is offline stays offline."""
        assert active.tail is not None
        active.tail.failure = self._tail.failure
        self._active, self._tail = active, active.tail

    @property
    def flushed_offset(self) -> int:
        """Records before this offset survive a power failure."""
        self.settle()
        return self.rolled[0].tail.flushed_offset if self.rolled else self._tail.flushed_offset

    # Offline ----------------------------------------------------------------------------------------------------------

    def fail(self, failure: str) -> None:
        """Take the log offline, because the state of its files is unknown or differs from the state in memory."""
        self._tail.failure = failure

    def check_online(self) -> None:
        """Raise if the log is offline."""
        if self._tail.failure is not None:
            raise self._offline()

    @contextmanager
    def offline_if_it_fails(self, what: str) -> Iterator[None]:
        """Take the log offline if a change of several steps fails, because the change may be half done."""
        self.check_online()
        try:
            yield
        except (OSError, LogError) as error:
            self.fail(f"{what} ({error})")
            raise self._offline() from error

    def _offline(self) -> LogOffline:
        return LogOffline(f"{self._tail.failure}: the log is offline until a restart has checked it")

    def fail_with_companion(self, error: Exception) -> NoReturn:
        """Take the log offline, because a companion missed a change and is wrong now. The log itself is intact."""
        self.fail(f"state that is derived from the log could not be updated ({error!r})")
        raise LogOffline(f"{self._tail.failure}: the log is offline until a restart has read it again") from error

    # Names ------------------------------------------------------------------------------------------------------------

    def name_durably(self) -> None:
        """Flush the names of a new log's files before its first batch is flushed. Until then a crash may lose them."""
        if self.is_named:
            return
        try:
            self.flush_names()
        except OSError as error:
            raise StorageError(
                f"the name of a new log could not be flushed ({error.strerror}): the log is unchanged; "
                "send the batch again"
            ) from error

    def flush_names(self) -> None:
        """Make the names of the log's files and of its directory durable."""
        if not self.is_named:
            self._files.fsync_directory(directory_of(self._directory))
        self._files.fsync_directory(self._directory)
        self.is_named = True

    # Flushing ---------------------------------------------------------------------------------------------------------

    def add_rolled(self, end_offset: int) -> None:
        """Note that the active segment is being rolled, ends before `end_offset`, and is not flushed yet."""
        self.rolled.append(_Rolled(self._active, end_offset))

    def flush_in_background(self) -> None:
        """Flush the last rolled segment in the background. Then the recovery point moves to that segment's end."""
        rolled = self.rolled[-1]
        self._background(lambda: self._flush_rolled(rolled))
        self.settle()

    def _flush_rolled(self, rolled: _Rolled) -> None:
        # This may run later, on another thread. It uses only the files of the rolled segment.
        try:
            rolled.tail.flush()
            rolled.segment.flush_indexes()
            self._files.fsync_directory(self._directory)
            rolled.is_done = True
        except (OSError, LogError) as error:
            rolled.failure = rolled.tail.failure or str(error)

    def settle(self) -> None:
        """Move the recovery point past the flushed segments, in order. Go offline if a flush failed."""
        recovery_point = self.recovery_point
        while self.rolled and self.rolled[0].is_done:
            recovery_point = self.rolled.popleft().end_offset
        self._move_forward(recovery_point)
        for rolled in self.rolled:
            if rolled.failure is not None and self._tail.failure is None:
                self.fail(rolled.failure)

    def flush(self) -> None:
        """Make everything appended so far survive a power failure."""
        self.check_online()
        if self.recovery_point == self._tail.log_end_offset and not self.rolled:
            return
        for rolled in list(self.rolled):
            self._flush_rolled(rolled)
        self.settle()
        with self.offline_if_it_fails("the active segment could not be flushed"):
            self.name_durably()
            self._active.flush()
        self._move_forward(self._tail.flushed_offset)

    def _move_forward(self, offset: int) -> None:
        """Move the recovery point. The next start does not check records before it, so companions flush first."""
        if offset <= self.recovery_point:
            return
        try:
            for companion in self._companions:
                companion.on_flush(offset)
        except OSError:
            return  # the recovery point does not move, so the next start checks more
        self.recovery_point = offset
        self._memory.recovery_point(offset, is_urgent=False)

    # Truncating -------------------------------------------------------------------------------------------------------

    def move_back(self, offset: int, *, is_urgent: bool = True) -> None:
        """Move the recovery point back to `offset`, because the records from `offset` on are being removed."""
        self.recovery_point = offset
        self._memory.recovery_point(offset, is_urgent=is_urgent)

    def finish_rolled(self) -> None:
        """Flush the segments that the background thread has not flushed yet. Its later flush then has no effect."""
        for rolled in self.rolled:
            rolled.tail.flush()
        self.rolled.clear()
