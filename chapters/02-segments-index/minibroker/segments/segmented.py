"""A partition's log, stored in many files. A pure module.

`SegmentedLog` is a `Log`, as defined in chapter 01, made of segments. Appends go to the last segment. When it is full,
the log rolls. Old segments are deleted from the front, replaced by compaction in the middle, and truncated at the end
where they diverge from the leader's log. Every read returns a slice of one file. The slice stays readable even if the
segment is deleted afterwards. `durability` tracks how much of the log is on the disk.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from minibroker.log.batch import (
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    Batch,
    BatchHeader,
    check_crc,
    read_header,
    stamp,
    stamp_log_append_time,
)
from minibroker.log.checks import check_whole
from minibroker.log.errors import OffsetOutOfRange, StorageError
from minibroker.log.interfaces import Files, FileSlice
from minibroker.log.logfile import FlushPolicy, LogFile
from minibroker.log.record import Record
from minibroker.log.recovery import Recovered, check_continuity
from minibroker.segments.companions import Companion, Companions
from minibroker.segments.config import LogConfig
from minibroker.segments.durability import Durability, Forgetful, Memory, run_now
from minibroker.segments.loading import CLEANED, SWAP, load
from minibroker.segments.retention import excess, expired
from minibroker.segments.segment import RELATIVE_OFFSET_MAX, Segment

_NEVER_MS = 2**63
_BOUNDARIES_MAX = 64  # a follower or consumer that keeps up is fewer batches behind than this
_base_offset = attrgetter("base_offset")


class SegmentedLog:
    """One partition's log. One thread at a time may use it; `background` may flush segments on another thread."""

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
        self.segments = segments
        """All segments, the oldest first; the last one is active."""
        self._memory: Memory = memory or Forgetful()
        self.config = config
        self.log_start_offset = log_start_offset
        self._durability = Durability(
            files,
            directory,
            segments[-1],
            is_named=len(segments) > 1,
            companions=companions,
            background=background,
            memory=self._memory,
        )
        self._companions = Companions(companions, on_failure=self._durability.fail_with_companion)
        self._use(segments[-1])

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
        """Open or create a log. Unless the shutdown was clean, check everything from `recovery_point` on."""
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
        flushed_offset = log._durability.recovery_point
        if flushed_offset > recovery_point and not is_clean:
            log._companions.tell(lambda companion: companion.on_flush(flushed_offset))
        return log

    def _use(self, active: Segment) -> None:
        """Make a segment the active one, and cache its state for the next append."""
        self._durability.use(active)
        assert active.tail is not None
        self._active = active
        self._tail: LogFile = active.tail
        self._indexes = active.indexes
        self._offset_max = active.base_offset + RELATIVE_OFFSET_MAX
        self._set_roll_timestamp(active.first_timestamp)
        self.log_end_offset = self._tail.log_end_offset
        """The offset that the next record will get."""
        self._boundaries = {self.log_end_offset: self._tail.size}
        """The offsets and positions of the last few batch boundaries, the log's end included."""

    def _set_roll_timestamp(self, first_timestamp: int) -> None:
        # A segment whose first batch has no timestamp is not rolled by time.
        self._roll_timestamp = first_timestamp + self.config.segment_ms if first_timestamp >= 0 else _NEVER_MS

    def configure(self, config: LogConfig) -> None:
        """Use other settings from now on. Index settings apply from the next segment on."""
        self.config = config
        if config.flushes_by_itself and self._tail.size > 0:
            self._durability.name_durably()
        self._tail.follow(flush_policy(config))
        self._set_roll_timestamp(self._active.first_timestamp)

    # Offsets --------------------------------------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """Records before this offset, the recovery point, survive a power failure."""
        return self._durability.flushed_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch of the last batch."""
        return self._tail.leader_epoch

    @property
    def failure(self) -> str | None:
        """Why the log is offline, or None."""
        return self._tail.failure

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return _size(self.segments)

    # Appending ------------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        leader_epoch: int = 0,
        log_append_time_ms: int | None = None,
        header: BatchHeader | None = None,
    ) -> int:
        """Check one batch, stamp it in place, write it; return its new base offset.

        A caller that has already read the header and called `check_whole` passes the header, so that the checksum is
        computed only once.
        """
        if header is None:
            check_whole(batch)
        tail = self._tail
        if tail.failure is not None or leader_epoch < tail.leader_epoch:
            tail.check_writable(leader_epoch)
        base_offset = self.log_end_offset
        stamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
        if log_append_time_ms is not None:
            stamp_log_append_time(batch, timestamp=log_append_time_ms)
            header = None
        if header is None:
            header = read_header(batch)
        else:
            # Only the stamped fields have changed, so the other fields need not be read again.
            header = tuple.__new__(BatchHeader, (base_offset, header.length, leader_epoch, *header[3:]))
        self._make_room(header, len(batch))
        tail = self._tail
        tail.write(batch, header)
        self._on_written(header, batch, tail.size - len(batch))
        tail.flush_if_due()
        return base_offset

    def append_as_follower(self, batches: memoryview) -> None:
        """Append batches that a leader has stamped, with one write. A batch that is cut off at the end is skipped.

        If a batch is damaged, the batches before it are appended.
        """
        run: list[BatchHeader] = []
        start = position = 0
        try:
            while len(batches) - position >= HEADER_SIZE:
                header = read_header(batches, position)
                if header.size > len(batches) - position:
                    break
                check_crc(batches, header, position)
                # The leader's log may have been compacted: offsets may have gaps, but never decrease.
                expected_offset = run[-1].next_offset if run else self.log_end_offset
                check_continuity(position, header, expected_offset=expected_offset, dense=False)
                if run and not self._may_follow(run, header, position - start):
                    # If this write fails, it must not be repeated below.
                    written, run = run, []
                    self._append_run(written, batches[start:position])
                    start = position
                self._tail.check_writable(header.leader_epoch)
                run.append(header)
                position += header.size
        finally:
            if run:
                self._append_run(run, batches[start:position])

    def _may_follow(self, run: Sequence[BatchHeader], header: BatchHeader, run_bytes: int) -> bool:
        """Whether a batch can be written together with those before it: no check and no new segment is between them."""
        tail = self._tail
        return (
            tail.size > 0
            and header.leader_epoch >= run[-1].leader_epoch
            and len(run) < self._indexes.room
            and not self._is_too_much(header, tail.size + run_bytes, header.size)
        )

    def _append_run(self, run: Sequence[BatchHeader], batches: memoryview) -> None:
        self._make_room(run[0], run[0].size)
        position, start = self._tail.size, 0
        self._tail.write(batches, run[-1])
        for header in run:
            batch = batches[start : start + header.size]
            self._on_written(header, batch, position + start)
            start += header.size
        self._tail.flush_if_due()

    def _make_room(self, header: BatchHeader, size: int) -> None:
        """Roll if the active segment has no room for a batch, or is older than `segment.ms`."""
        if self._durability.rolled:
            self._durability.settle()
            self._durability.check_online()
        position = self._tail.size
        last_offset = header.base_offset + header.last_offset_delta
        if position == 0:
            if self.config.flushes_by_itself:
                self._durability.name_durably()
            if last_offset > self._offset_max:
                self._replace_empty_active(header.base_offset)
            self._set_roll_timestamp(header.max_timestamp)
        elif self._is_too_much(header, position, size) or self._indexes.is_full:
            # The new segment begins where the old one ends, unless a gap is too wide for its indexes.
            is_far = last_offset - self.log_end_offset > RELATIVE_OFFSET_MAX
            self.roll(header.base_offset if is_far else None)
            self._make_room(header, size)

    def _is_too_much(self, header: BatchHeader, position: int, size: int) -> bool:
        """Whether a batch at a position would make the active segment too large, too old, or too wide for its index."""
        return (
            position + size > self.config.segment_bytes
            or header.max_timestamp > self._roll_timestamp
            or header.base_offset + header.last_offset_delta > self._offset_max
        )

    def _on_written(self, header: BatchHeader, batch: bytearray | memoryview, position: int) -> None:
        """Update indexes and companions after a batch was written."""
        boundaries = self._boundaries
        self.log_end_offset = header.base_offset + header.last_offset_delta + 1
        boundaries[self.log_end_offset] = position + len(batch)
        if len(boundaries) > _BOUNDARIES_MAX:
            # Forget the older half at once. To find the first key of a dictionary is slow after many deletions.
            self._boundaries = dict(list(boundaries.items())[_BOUNDARIES_MAX // 2 :])
        self._indexes.on_append(header, batch, position)
        try:
            for companion in self._companions.members:
                companion.on_append(header, batch, position)
        except Exception as error:
            self._durability.fail_with_companion(error)

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment. The old one is flushed in the background; then the recovery point moves."""
        if self._tail.size == 0:
            return
        self._durability.check_online()
        base_offset = self.log_end_offset if base_offset is None else base_offset
        self._active.seal()
        if self._durability.recovery_point >= self.log_end_offset:
            # The next start does not check this segment, so its last index entry must be on the disk.
            with self._durability.offline_if_it_fails("the indexes of a segment could not be flushed"):
                self._active.flush_indexes()
        new = self._new_active(base_offset)
        self._durability.add_rolled(base_offset)
        self.segments.append(new)
        self._use(new)
        self._companions.tell(lambda companion: companion.on_roll(base_offset))
        self._durability.flush_in_background()

    def _new_active(self, base_offset: int) -> Segment:
        """Create an empty segment and flush its name. If that fails, remove it again."""
        new = Segment(self._files, self._directory, base_offset, self.config)
        start = Recovered(size=0, log_end_offset=base_offset, leader_epoch=self._tail.leader_epoch)
        try:
            new.open_tail(start, flush_policy(self.config))
            # The file's name must be durable before a record in it can count as flushed.
            self._durability.flush_names()
        except OSError as error:
            with self._durability.offline_if_it_fails("a new segment was incomplete and could not be removed"):
                new.delete()
            raise StorageError(
                f"no new segment could be created at offset {base_offset} ({error.strerror}): the log is unchanged; "
                "free some disk space and send the batch again"
            ) from error
        return new

    def _replace_empty_active(self, base_offset: int) -> None:
        """Replace the empty active segment, because its base offset is too far from the next offset."""
        new, old = self._new_active(base_offset), self._active
        self.segments[-1] = new
        self._use(new)
        with self._durability.offline_if_it_fails("an empty segment could not be removed"):
            old.delete()
        self._companions.tell(lambda companion: companion.on_roll(base_offset))

    # Companions -----------------------------------------------------------------------------------------------------

    def _restore_companions(self, recovery_point: int) -> None:
        self._companions.restore(
            self._batches_from,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            recovery_point=recovery_point,
        )

    def _batches_from(self, offset: int) -> Iterator[tuple[BatchHeader, FileSlice]]:
        """All batches, beginning with the one that holds `offset`. Only their headers are read."""
        for segment in self._segments_from(offset) if offset < self.log_end_offset else ():
            found = segment.find(offset)
            if found is not None:
                for position, header in segment.walk(found[0]):
                    yield header, FileSlice(segment.file, position, header.size)

    # Flushing -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything appended so far survive a power failure."""
        self._durability.flush()

    def tick(self, now_ms: int) -> None:
        """Flush if `flush.ms` has passed."""
        self._durability.settle()
        self._tail.tick(now_ms)

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int, upto_offset: int | None = None) -> FileSlice:
        """Find batches, beginning with the one that holds `offset`. The first is whole; the last may be cut off."""
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.log_start_offset}, {log_end_offset}]")
        bound = log_end_offset if upto_offset is None or upto_offset > log_end_offset else upto_offset
        # A reader near the log's end reads one of the last few batches, whose positions are cached.
        start, stop = self._boundaries.get(offset), self._boundaries.get(bound)
        try:
            if start is not None and stop is not None and start < stop <= start + bytes_max:
                return FileSlice(self._active.file, start, stop - start)
            if offset >= bound:
                return FileSlice(self._active.file, self._active.size, 0)
            return self._find(offset, bytes_max, bound)
        except OSError as error:
            raise StorageError(f"offset {offset} could not be looked up: {error}") from error

    def _find(self, offset: int, bytes_max: int, bound: int) -> FileSlice:
        # Search the last segment that begins at or before the offset. If all of its batches end before the offset,
        # search the next segment.
        segments = self._segments_from(offset)
        ends = [*map(_base_offset, segments[1:]), self.log_end_offset]
        for segment, end_offset in zip(segments, ends, strict=True):
            found = segment.find(offset)
            if found is not None:
                position, header = found
                if header.next_offset > bound:
                    return FileSlice(segment.file, position, 0)
                # The slice ends before the first batch that holds the bound or a later offset.
                last = None if bound >= end_offset else segment.find(bound)
                stop = segment.size if last is None else last[0]
                return FileSlice(segment.file, position, max(header.size, min(bytes_max, stop - position)))
        return FileSlice(self._active.file, self._active.size, 0)

    def _segments_from(self, offset: int) -> Sequence[Segment]:
        """The last segment that begins at or before `offset`, and all later segments."""
        return self.segments[max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0) :]

    def find_time(self, timestamp: int) -> Record | None:
        """The first record, by offset, that is not older than `timestamp`."""
        try:
            for segment in self.segments:
                if segment.max_timestamp >= timestamp:
                    record = segment.find_time(timestamp, offset=self.log_start_offset)
                    if record is not None:
                        return record
        except OSError as error:
            raise StorageError(f"time {timestamp} could not be looked up: {error}") from error
        return None

    def find_max_timestamp(self) -> Record | None:
        """The first record that has the log's largest timestamp."""
        youngest = max(segment.max_timestamp for segment in self.segments)
        if youngest < 0:
            return None
        # Compaction leaves empty batches. If only an empty batch has the largest timestamp, read all records.
        return self.find_time(youngest) or _youngest_of_all(self._batches_from(self.segments[0].base_offset))

    # Truncating and deleting ----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the log's start {self.log_start_offset}")
        if offset >= self.log_end_offset:
            return
        with self._durability.offline_if_it_fails("the log could not be truncated"):
            self._truncate(offset)
        if self.log_end_offset < self.log_start_offset:
            # The log start offset was inside the removed batch, so no record is left.
            self.truncate_fully_and_start_at(self.log_start_offset)
            return
        self._companions.tell(lambda companion: companion.on_truncate(self.log_end_offset))
        self._restore_companions(self.log_end_offset)

    def _truncate(self, offset: int) -> None:
        # Move the recovery point back first. Otherwise the next start after a crash would report the removed batches as
        # lost. Move it to the start of a segment, because the new log end offset is not known yet: the batch that holds
        # the offset is removed entirely, and offsets may be missing before it.
        durability = self._durability
        durability.settle()
        flushed_offset = durability.recovery_point
        if offset < flushed_offset:
            before = max(bisect_left(self.segments, offset, key=_base_offset) - 1, 0)
            durability.move_back(self.segments[before].base_offset)
        durability.finish_rolled()
        self._boundaries.clear()
        # Delete the later segments, the last one first, so that a crash leaves no hole. Then flush, because otherwise a
        # power failure could bring back batches that the leader does not have.
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            self.segments[-1].delete()
            del self.segments[-1]
        self._files.fsync_directory(self._directory)
        active = self.segments[-1]
        left = active.truncate(offset)
        if left.leader_epoch == NO_LEADER_EPOCH and len(self.segments) > 1:
            left = left._replace(leader_epoch=self.segments[-2].end().leader_epoch)
        active.open_tail(left, flush_policy(self.config))
        active.flush()
        self._use(active)
        durability.move_back(min(flushed_offset, self.log_end_offset), is_urgent=False)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything. The log then starts and ends at `offset`, the leader's log start offset."""
        with self._durability.offline_if_it_fails("the log could not be emptied"):
            # Move the checkpoints back first, because a crash may leave any subset of the files.
            self._durability.move_back(min(self.segments[0].base_offset, offset))
            self._memory.log_start(min(self.log_start_offset, offset), is_urgent=True)
            self._durability.rolled.clear()
            self._boundaries.clear()
            for segment in reversed(self.segments):
                segment.delete()
            new = self._new_active(offset)
            self.segments[:] = [new]
            self.log_start_offset = offset
            self._use(new)
            self._memory.log_start(offset, is_urgent=True)
        self._companions.tell(lambda companion: companion.on_truncate(0))
        self._restore_companions(self.log_end_offset)

    def delete_before(self, offset: int) -> None:
        """Move the log start offset to `offset`, and delete the segments that are entirely before it."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in [{self.log_start_offset}, {self.log_end_offset}]")
        self._move_start(offset, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def retain(self, now_ms: int, *, upto_offset: int | None = None) -> int:
        """Delete the oldest segments according to `retention.ms` and `retention.bytes`; return how many.

        The active segment stays, and so does every segment that reaches `upto_offset`, the high watermark.
        """
        if not self.config.deletes:
            return 0
        bound = self.log_end_offset if upto_offset is None else upto_offset
        closed = self.segments[: max(bisect_right(self.segments, bound, key=_base_offset) - 1, 0)]
        count = max(expired(closed, self.config, now_ms), excess(closed, self.size - _size(closed), self.config))
        count = self._deletable(count)
        if count:
            self._move_start(max(self.log_start_offset, self.segments[count].base_offset), count)
        return count

    def _deletable(self, count: int) -> int:
        """How many of the `count` oldest segments may be deleted now. A segment that is being flushed must stay."""
        self._durability.settle()
        rolled = self._durability.rolled
        return min(count, self.segments.index(rolled[0].segment)) if rolled else count

    def _move_start(self, offset: int, count: int) -> None:
        """Move the log start offset to `offset`, and delete the `count` oldest segments."""
        self._durability.check_online()
        self.log_start_offset = offset
        self._memory.log_start(offset, is_urgent=False)
        count = self._deletable(count)
        with self._durability.offline_if_it_fails("a segment could not be deleted"):
            for _ in range(count):
                self.segments[0].delete()
                del self.segments[0]
        self._companions.tell(lambda companion: companion.on_delete(self.log_start_offset))

    def begin_cleaned(self, base_offset: int) -> Segment:
        """Create an empty segment for compaction to fill. It is not part of the log until `replace` is called."""
        cleaned = Segment(self._files, self._directory, base_offset, self.config, suffix=CLEANED)
        cleaned.delete()  # a cleaning that failed may have left files
        cleaned.open_tail(Recovered(size=0, log_end_offset=base_offset), FlushPolicy())
        return cleaned

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace closed segments by the cleaned segment that was made from them. A crash at any point does no harm.

        The new segment is already flushed. It ends with the same offset as the last old segment, perhaps with an empty
        batch.
        """
        assert self._active not in old
        with self._durability.offline_if_it_fails("a compacted segment could not be put in place"):
            new.rename(SWAP)
            self._files.fsync_directory(self._directory)
            for segment in reversed(old):
                segment.delete()
            new.rename("")
            self._files.fsync_directory(self._directory)
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [new]
        self._companions.tell(lambda companion: companion.on_replace([segment.base_offset for segment in old]))

    def release_files(self) -> None:
        """Take the log offline before it is deleted, and release its files. A reader's slice keeps its file open."""
        self._durability.fail("the log was deleted")
        for segment in self.segments:
            segment.release_files()
        self._tail.release_files()
        del self._indexes

    def close(self) -> None:
        """Flush and close the files. After a clean shutdown, the next start checks nothing."""
        try:
            if self.failure is None:
                self._active.seal()
                self.flush()
                self._active.flush_indexes()  # `seal` may have added an entry, even if all batches were flushed
                self._companions.tell(lambda companion: companion.on_close(self.log_end_offset))
        finally:
            for segment in self.segments:
                segment.close()


def flush_policy(config: LogConfig) -> FlushPolicy:
    """The flush policy, as defined in chapter 01, for these settings."""
    return FlushPolicy(interval_messages=config.flush_messages, interval_ms=config.flush_ms)


def _size(segments: Sequence[Segment]) -> int:
    return sum(segment.size for segment in segments)


def _youngest_of_all(batches: Iterable[tuple[BatchHeader, FileSlice]]) -> Record | None:
    youngest: Record | None = None
    for header, batch in batches:
        if header.record_count and (youngest is None or header.max_timestamp > youngest.timestamp):
            records = Batch(batch.read()).records()
            youngest = max(records, key=lambda record: (record.timestamp, -record.offset))
    return youngest
