"""The log in many files: what a partition is on disk. A pure module.

It keeps the contract of chapter 01's `Log` with a row of segments. Appends go to the last one; when that is full the
log rolls. Old segments are deleted from the front, replaced by compaction in the middle, and cut off at the end when a
leader says so. Every read answers with a slice of one file, and stays good whatever happens to the segment afterwards.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

from minibroker.log.batch import (
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    Batch,
    BatchHeader,
    check_crc,
    check_whole,
    read_header,
    stamp,
    stamp_log_append_time,
)
from minibroker.log.errors import LogError, LogOffline, OffsetOutOfRange, StorageError
from minibroker.log.interfaces import Files, FileSlice, directory_of
from minibroker.log.logfile import FlushPolicy, LogFile
from minibroker.log.record import Record
from minibroker.log.recovery import Recovered, check_continuity
from minibroker.segments.companions import Companion
from minibroker.segments.config import LogConfig
from minibroker.segments.loading import CLEANED, SWAP, load
from minibroker.segments.retention import excess, expired
from minibroker.segments.segment import RELATIVE_OFFSET_MAX, Segment

_NEVER_MS = 2**63


def run_now(work: Callable[[], None]) -> None:
    """Do background work at once: for tests, and for logs whose owner has no thread."""
    work()


class Memory(Protocol):
    """Where a log's two most important numbers are kept between two starts. Called where the log is used."""

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        """What is before `offset` needs no checking. If it is urgent, return once that is on the disk."""

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        """The log starts with `offset`. If it is urgent, return once that is on the disk."""


class Forgetful:
    """Remembers nothing: everything is checked at the next start."""

    def recovery_point(self, offset: int, *, is_urgent: bool) -> None:
        """Forget it."""

    def log_start(self, offset: int, *, is_urgent: bool) -> None:
        """Forget it."""


class _Rolled:
    """A segment that was rolled and is being flushed; made for one roll, and never used again.

    The background thread only writes down what came of it. The owner of the log draws the conclusions.
    """

    def __init__(self, segment: Segment, end_offset: int) -> None:
        assert segment.tail is not None
        self.segment = segment
        self.tail = segment.tail
        self.end_offset = end_offset
        self.is_done = False
        self.failure: str | None = None


class SegmentedLog:
    """One partition's log. One thread at a time; `background` may run what it is given on another."""

    def __init__(
        self,
        files: Files,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        companions: Sequence[Companion] = (),
        background: Callable[[Callable[[], None]], None] = run_now,
        memory: Memory | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._rolled: deque[_Rolled] = deque()
        self._companions = companions
        self._background = background
        self._memory: Memory = memory or Forgetful()
        self._failure: str | None = None
        self.config = config
        self.log_start_offset = log_start_offset
        self._use(segments[-1])
        self._recovery_point = self._tail.flushed_offset
        self._is_named = len(segments) > 1 or self._recovery_point > segments[0].base_offset
        """Whether the names of its files are certain to be on the disk. They need not be before anything else is."""

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        config: LogConfig | None = None,
        *,
        recovery_point: int = 0,
        is_clean: bool = False,
        log_start_offset: int = 0,
        companions: Sequence[Companion] = (),
        background: Callable[[Callable[[], None]], None] = run_now,
        memory: Memory | None = None,
    ) -> "SegmentedLog":
        """Open a log or begin one. After a clean shutdown nothing is checked; otherwise all from `recovery_point`."""
        config = config or LogConfig()
        segments = load(
            files,
            directory,
            config,
            recovery_point=recovery_point,
            is_clean=is_clean,
            log_start_offset=log_start_offset,
        )
        log = cls(
            files,
            directory,
            config,
            segments,
            log_start_offset=max(log_start_offset, segments[0].base_offset),
            companions=companions,
            background=background,
            memory=memory,
        )
        log._restore_companions(log.log_end_offset if is_clean else min(recovery_point, log.log_end_offset))
        if log._recovery_point > recovery_point and not is_clean:
            log._tell(lambda companion: companion.on_flush(log._recovery_point))
        return log

    def _use(self, active: Segment) -> None:
        """Make a segment the active one, and remember what the next append must know of it."""
        assert active.tail is not None
        self._active = active
        self._tail: LogFile = active.tail
        self._tail.failure = self._failure
        self._indexes = active.indexes
        self._offset_max = active.base_offset + RELATIVE_OFFSET_MAX
        self._set_roll_timestamp(active.first_timestamp)

    def _set_roll_timestamp(self, first_timestamp: int) -> None:
        # A segment whose first batch has no time is not rolled by time.
        self._roll_timestamp = first_timestamp + self.config.segment_ms if first_timestamp >= 0 else _NEVER_MS

    def configure(self, config: LogConfig) -> None:
        """Go by other settings from now on; those of the indexes from the next segment on."""
        self.config = config
        if not self._is_named and self.config.flushes_by_itself and self._tail.size > 0:
            self._name_durably()
        self._tail.follow(flush_policy(config))
        self._set_roll_timestamp(self._active.first_timestamp)

    # Offsets --------------------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._tail.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """Records before it survive a power cut: the recovery point."""
        self._settle()
        return self._rolled[0].tail.flushed_offset if self._rolled else self._tail.flushed_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last batch."""
        return self._tail.leader_epoch

    @property
    def failure(self) -> str | None:
        """Why the log is offline, if it is."""
        return self._failure or self._tail.failure

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, the oldest first; the last one is active."""
        return self._segments

    @property
    def size(self) -> int:
        """The bytes of all log files."""
        return sum(segment.size for segment in self._segments)

    # Appending ------------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        leader_epoch: int = 0,
        log_append_time_ms: int | None = None,
        is_checked: bool = False,
    ) -> int:
        """Check one batch, stamp it in place, write it; return the base offset it was given.

        Who has called `check_whole` already says so with `is_checked`: no checksum need be computed twice.
        """
        if not is_checked:
            check_whole(batch)
        self._tail.check_writable(leader_epoch)
        base_offset = self._tail.log_end_offset
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        if log_append_time_ms is not None:
            stamp_log_append_time(batch, timestamp=log_append_time_ms)
        self._write(batch, read_header(batch))
        return base_offset

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches that a leader has given their place; a batch cut off at the end is left out."""
        position = 0
        while len(batches) - position >= HEADER_SIZE:
            header = read_header(batches, position)
            if position + header.size > len(batches):
                return
            batch = batches[position : position + header.size]
            check_crc(batch, header)
            # The leader's log may have been compacted: offsets may leave gaps, but not fall.
            check_continuity(position, header, expected_offset=self.log_end_offset, dense=False)
            self._tail.check_writable(header.leader_epoch)
            self._write(batch, header)
            position += header.size

    def _write(self, batch: bytearray | memoryview, header: BatchHeader) -> None:
        # Roll first if this batch does not belong into the active segment any more.
        if self._rolled:
            self._settle()
            self._check_online()
        position = self._tail.size
        last_offset = header.base_offset + header.last_offset_delta
        if position == 0:
            if not self._is_named and self.config.flushes_by_itself:
                self._name_durably()
            if last_offset > self._offset_max:
                self._begin_empty_one_anew(header.base_offset)
            self._set_roll_timestamp(header.max_timestamp)
        elif (
            position + len(batch) > self.config.segment_bytes
            or header.max_timestamp > self._roll_timestamp
            or last_offset > self._offset_max
            or self._indexes.is_full
        ):
            # The new segment begins where the old one ends, unless a gap is too wide for its indexes.
            is_far = last_offset - self.log_end_offset > RELATIVE_OFFSET_MAX
            self.roll(header.base_offset if is_far else None)
            self._write(batch, header)
            return
        # Write it, then tell everybody who goes along with the log.
        self._tail.write(batch, header)
        self._indexes.on_append(header, position)
        try:
            for companion in self._companions:
                companion.on_append(header, position)
        except Exception as error:
            self._fail_with_companion(error)

    def _name_durably(self) -> None:
        """Make certain that a log will be found, before its first batch is flushed: until then a name costs nothing."""
        try:
            self._flush_names()
        except OSError as error:
            raise StorageError(
                f"the name of a new log could not be flushed ({error.strerror}): the log is as it was; send it again"
            ) from error

    def _flush_names(self) -> None:
        if not self._is_named:
            self._files.fsync_directory(directory_of(self._directory))
        self._files.fsync_directory(self._directory)
        self._is_named = True

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment; the old one is flushed in the background, and moves the recovery point."""
        if self._tail.size == 0:
            return
        self._check_online()
        base_offset = self.log_end_offset if base_offset is None else base_offset
        self._active.seal()
        if self._recovery_point >= self.log_end_offset:
            # After a crash nobody would look into this segment again, so its last index entry must not get lost.
            with self._offline_if_it_fails("the indexes of a segment could not be flushed"):
                self._active.flush_indexes()
        new = self._new_active(base_offset)
        rolled = _Rolled(self._active, base_offset)
        self._rolled.append(rolled)
        self._segments.append(new)
        self._bases.append(base_offset)
        self._use(new)
        self._tell(lambda companion: companion.on_roll(base_offset))
        self._background(lambda: self._flush_rolled(rolled))
        self._settle()

    def _new_active(self, base_offset: int) -> Segment:
        """A new empty segment with a durable name; if the disk refuses, nothing of it is left."""
        new = Segment(self._files, self._directory, base_offset, self.config)
        start = Recovered(size=0, log_end_offset=base_offset, leader_epoch=self._tail.leader_epoch)
        try:
            new.open_tail(start, flush_policy(self.config))
            # What is promised to be in the file is promised to be found: its name must be durable before.
            self._flush_names()
        except OSError as error:
            with self._offline_if_it_fails("a segment that was not begun could not be removed"):
                new.delete()
            raise StorageError(
                f"no new segment at offset {base_offset} ({error.strerror}): the log is as it was; "
                "free some disk and send it again"
            ) from error
        return new

    def _begin_empty_one_anew(self, base_offset: int) -> None:
        """Put another empty segment in the place of the empty active one, which is too far from the next offset."""
        new, old = self._new_active(base_offset), self._segments.pop()
        self._bases.pop()
        self._segments.append(new)
        self._bases.append(base_offset)
        self._use(new)
        with self._offline_if_it_fails("an empty segment could not be removed"):
            old.delete()

    # Companions -----------------------------------------------------------------------------------------------------

    def _restore_companions(self, recovery_point: int) -> None:
        """Let the companions take up what they kept, and read them the headers of what they did not keep."""
        start, end = self.log_start_offset, self.log_end_offset
        try:
            wanted = [
                (it.restore(log_start_offset=start, log_end_offset=end, recovery_point=recovery_point), it)
                for it in self._companions
            ]
            first = max(min((offset for offset, _companion in wanted), default=end), start)
            for position, header in self._headers_from(first):
                for offset, companion in wanted:
                    if header.last_offset >= offset:
                        companion.replay(header, position)
        except Exception as error:
            self._fail_with_companion(error)

    def _headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """All batch headers from the one that holds `offset` on, each with its position in its segment."""
        if offset >= self.log_end_offset:
            return
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            found = segment.find(offset)
            if found is not None:
                yield from segment.walk(found[0])

    def _tell(self, tell: Callable[[Companion], None]) -> None:
        try:
            for companion in self._companions:
                tell(companion)
        except Exception as error:
            self._fail_with_companion(error)

    def _fail_with_companion(self, error: Exception) -> NoReturn:
        # It has missed something, and will be wrong from now on. The log itself is as it says.
        self._fail(f"a companion of the log failed ({error!r})")
        raise LogOffline(f"{self._failure}: the log is offline until a restart has read it again") from error

    # Flushing -------------------------------------------------------------------------------------------------------

    def _flush_rolled(self, rolled: _Rolled) -> None:
        # On a thread perhaps, and perhaps late. It touches nothing but the files of that roll.
        try:
            rolled.tail.flush()
            rolled.segment.flush_indexes()
            self._files.fsync_directory(self._directory)
            rolled.is_done = True
        except (OSError, LogError) as error:
            rolled.failure = rolled.tail.failure or str(error)

    def _settle(self) -> None:
        """Draw the conclusions of what was flushed: the recovery point passes only what is on the disk, in order."""
        recovery_point = self._recovery_point
        while self._rolled and self._rolled[0].is_done:
            recovery_point = self._rolled.popleft().end_offset
        self._move_recovery_point(recovery_point)
        for rolled in self._rolled:
            if rolled.failure is not None and self._failure is None:
                self._fail(rolled.failure)

    def _move_recovery_point(self, offset: int) -> None:
        """What is before it is believed at the next start, so what the companions know of it is on the disk first."""
        if offset <= self._recovery_point:
            return
        try:
            for companion in self._companions:
                companion.on_flush(offset)
        except OSError:
            return  # more is checked at the next start, and nothing is lost
        self._recovery_point = offset
        self._memory.recovery_point(offset, is_urgent=False)

    def _fail(self, failure: str) -> None:
        """Take the log offline: what is on the disk is not known any more, or not what this log serves."""
        self._failure = failure
        self._tail.failure = failure

    def _check_online(self) -> None:
        failure = self.failure
        if failure is not None:
            self._failure = failure
            raise LogOffline(f"{failure}: the log is offline until a restart has checked it")

    @contextmanager
    def _offline_if_it_fails(self, what: str) -> Iterator[None]:
        """For changes of several steps: a disk that refuses one of them leaves something in between."""
        self._check_online()
        try:
            yield
        except (OSError, LogError) as error:
            self._fail(f"{what} ({error})")
            raise LogOffline(f"{self._failure}: the log is offline until a restart has checked it") from error

    def flush(self) -> None:
        """Make everything appended so far survive a power cut."""
        self._check_online()
        if self._recovery_point == self.log_end_offset and not self._rolled:
            return
        for rolled in list(self._rolled):
            self._flush_rolled(rolled)
        self._settle()
        self._check_online()
        with self._offline_if_it_fails("the active segment could not be flushed"):
            if not self._is_named:
                self._name_durably()
            self._active.flush()
        self._move_recovery_point(self._tail.flushed_offset)

    def tick(self, now_ms: int) -> None:
        """Flush if `flush.ms` is over."""
        self._settle()
        self._tail.tick(now_ms)

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        """Find batches from the one that holds `offset`: the first one whole, the last one perhaps cut off."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]")
        bound = self.log_end_offset if upto_offset is None else min(upto_offset, self.log_end_offset)
        try:
            if offset >= bound:
                # Whoever reads a log as it grows asks for this again and again: nothing need be looked up.
                return FileSlice(self._active.file, self._active.size, 0)
            return self._find(offset, bytes_max, bound)
        except OSError as error:
            raise StorageError(f"offset {offset} could not be looked up: {error}") from error

    def _find(self, offset: int, bytes_max: int, bound: int) -> FileSlice:
        # The segment whose base offset is not above the offset; if all its batches end before, the next one.
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            found = segment.find(offset)
            if found is not None:
                position, header = found
                stop = self._position_of(segment, bound)
                if header.next_offset > bound:
                    return FileSlice(segment.file, position, 0)
                return FileSlice(segment.file, position, max(header.size, min(bytes_max, stop - position)))
        return FileSlice(self._active.file, self._active.size, 0)

    def _position_of(self, segment: Segment, bound: int) -> int:
        """Where in a segment the first batch begins that does not end before `bound`."""
        if bound >= self.log_end_offset or (segment is not self._active and bound >= self._base_after(segment)):
            return segment.size
        found = segment.find(bound)
        return segment.size if found is None else found[0]

    def _base_after(self, segment: Segment) -> int:
        return self._bases[bisect_right(self._bases, segment.base_offset)]

    def find_time(self, timestamp: int) -> Record | None:
        """The first record, by offset, that is not older than `timestamp`."""
        try:
            for segment in self._segments:
                if segment.max_timestamp >= timestamp:
                    record = segment.find_time(timestamp, offset=self.log_start_offset)
                    if record is not None:
                        return record
        except OSError as error:
            raise StorageError(f"time {timestamp} could not be looked up: {error}") from error
        return None

    def find_max_timestamp(self) -> Record | None:
        """The first record with the largest timestamp of all."""
        youngest = max(segment.max_timestamp for segment in self._segments)
        if youngest < 0:
            return None
        # Compaction leaves empty batches, which keep a timestamp that no record has: then look at what is there.
        return self.find_time(youngest) or self._youngest_of_all()

    def _youngest_of_all(self) -> Record | None:
        youngest: Record | None = None
        for segment in self._segments:
            for position, header in segment.walk():
                if header.record_count and (youngest is None or header.max_timestamp > youngest.timestamp):
                    records = Batch(segment.file.pread(header.size, position)).records()
                    youngest = max(records, key=lambda record: (record.timestamp, -record.offset))
        return youngest

    # Going away -----------------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the log's start {self.log_start_offset}")
        if offset >= self.log_end_offset:
            return
        with self._offline_if_it_fails("the log could not be truncated"):
            self._truncate(offset)
        if self.log_end_offset < self.log_start_offset:
            # Records were deleted up to the middle of the batch that went: nothing is left at all.
            self.truncate_fully_and_start_at(self.log_start_offset)
            return
        self._tell(lambda companion: companion.on_truncate(self.log_end_offset))
        self._restore_companions(self.log_end_offset)

    def _truncate(self, offset: int) -> None:
        # The recovery point goes back first: after a crash in between nobody must miss what was cut off. The batch
        # that holds the offset goes as a whole, and offsets may be missing before it, so the log may end anywhere
        # from the start of its segment on.
        self._settle()
        flushed_offset = self._recovery_point
        if offset < flushed_offset:
            self._recovery_point = self._bases[max(bisect_left(self._bases, offset) - 1, 0)]
            self._memory.recovery_point(self._recovery_point, is_urgent=True)
        for rolled in self._rolled:
            rolled.tail.flush()
        self._rolled.clear()
        # Later segments go, the last one first, so that a crash leaves no hole. The cut is made durable, or a power
        # failure could bring back what the leader told us to forget.
        while len(self._segments) > 1 and self._bases[-1] >= offset:
            self._segments[-1].delete()
            del self._segments[-1], self._bases[-1]
        self._files.fsync_directory(self._directory)
        active = self._segments[-1]
        left = active.truncate(offset)
        if left.leader_epoch == NO_LEADER_EPOCH and len(self._segments) > 1:
            left = left._replace(leader_epoch=self._segments[-2].end().leader_epoch)
        active.open_tail(left, flush_policy(self.config))
        active.flush()
        self._use(active)
        self._recovery_point = min(flushed_offset, self.log_end_offset)
        self._memory.recovery_point(self._recovery_point, is_urgent=False)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything, and let the log start and end with `offset`: a follower whose leader has nothing older."""
        with self._offline_if_it_fails("the log could not be begun anew"):
            # What is remembered goes back first: a crash may leave any part of what is to be removed.
            self._recovery_point = min(self._bases[0], offset)
            self._memory.recovery_point(self._recovery_point, is_urgent=True)
            self._memory.log_start(min(self.log_start_offset, offset), is_urgent=True)
            self._rolled.clear()
            for segment in reversed(self._segments):
                segment.delete()
            new = self._new_active(offset)
            self._segments[:], self._bases[:] = [new], [offset]
            self.log_start_offset = offset
            self._use(new)
            self._memory.log_start(offset, is_urgent=True)
        self._tell(lambda companion: companion.on_truncate(0))
        self._restore_companions(self.log_end_offset)

    def delete_before(self, offset: int) -> None:
        """Let the log start with `offset`, and delete the segments that are wholly before it."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]")
        self._move_start(offset, bisect_right(self._bases, offset) - 1)

    def retain(self, now_ms: int, *, upto_offset: int | None = None) -> int:
        """Delete the oldest segments as `retention.ms` and `retention.bytes` say; return how many.

        The active segment stays, and so does every segment that reaches `upto_offset`, the high watermark.
        """
        if not self.config.deletes:
            return 0
        bound = self.log_end_offset if upto_offset is None else upto_offset
        closed = self._segments[: max(bisect_right(self._bases, bound) - 1, 0)]
        count = max(expired(closed, self.config, now_ms), excess(closed, self.size - _size(closed), self.config))
        count = self._deletable(count)
        if count:
            self._move_start(max(self.log_start_offset, self._bases[count]), count)
        return count

    def _deletable(self, count: int) -> int:
        """How many of so many oldest segments may go now: one that is still being flushed waits for the next time."""
        self._settle()
        return min(count, self._segments.index(self._rolled[0].segment)) if self._rolled else count

    def _move_start(self, offset: int, count: int) -> None:
        """Let the log start with `offset`, and delete so many of the oldest segments."""
        self._check_online()
        self.log_start_offset = offset
        self._memory.log_start(offset, is_urgent=False)
        count = self._deletable(count)
        with self._offline_if_it_fails("a segment could not be deleted"):
            for _ in range(count):
                self._segments[0].delete()
                del self._segments[0], self._bases[0]
        self._tell(lambda companion: companion.on_delete(self.log_start_offset))

    def begin_cleaned(self, base_offset: int) -> Segment:
        """An empty segment for compaction to fill; it is no part of the log until `replace`."""
        cleaned = Segment(self._files, self._directory, base_offset, self.config, suffix=CLEANED)
        cleaned.delete()  # what a cleaning that failed may have left
        cleaned.open_tail(Recovered(size=0, log_end_offset=base_offset), FlushPolicy())
        return cleaned

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a cleaned segment in the place of the closed ones it was made from; a crash at any point does no harm.

        The new one is flushed and ends with the same offset as the last of the old ones, if only by an empty batch.
        """
        assert self._active not in old
        with self._offline_if_it_fails("a compacted segment could not be put in place"):
            new.rename(SWAP)
            self._files.fsync_directory(self._directory)
            for segment in reversed(old):
                segment.delete()
            new.rename("")
            self._files.fsync_directory(self._directory)
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def let_go(self) -> None:
        """The log is being deleted: take it offline, and keep no file open but for those who hold a slice."""
        self._fail("the log was deleted")
        for segment in self._segments:
            segment.let_go()
        self._tail.let_go()
        del self._indexes

    def close(self) -> None:
        """Flush and give the files back: after this a clean start needs to check nothing."""
        try:
            if self.failure is None:
                self._active.seal()
                self.flush()
                self._active.flush_indexes()  # also if nothing else was left to flush
                self._tell(lambda companion: companion.on_close(self.log_end_offset))
        finally:
            for segment in self._segments:
                segment.close()


def flush_policy(config: LogConfig) -> FlushPolicy:
    """The flush policy of chapter 01 that a configuration asks for."""
    return FlushPolicy(interval_messages=config.flush_messages, interval_ms=config.flush_ms)


def _size(segments: Sequence[Segment]) -> int:
    return sum(segment.size for segment in segments)
