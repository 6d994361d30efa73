"""Compaction: keep the newest record of each key, without changing offsets. A pure module.

A compacted log has a clean part, in which each key occurs once. The dirty part after it was appended since the last
cleaning. The first dirty offset divides the two parts. The log's owner stores it between two cleanings.

    log start          first dirty offset          cleanable end              log end
        |--- clean ---------|--- dirty ----------------|--- not to be touched --|
                                                       the active segment, records that are not flushed, records from
                                                       `upto_offset` on, and records younger than
                                                       `min.compaction.lag.ms`

A cleaning reads twice. Pass 1 reads the dirty part and notes the newest offset of each key in a map of fixed size. If
the map gets full, this cleaning ends at that offset. Pass 2 copies every segment from the log's start to the end of the
mapped part. It omits each record for which the map has a newer one. Small neighbouring segments are copied into one.
Segments are replaced group by group, and each copy is flushed before it replaces its originals. So a crash leaves every
group either unchanged or cleaned, and both are valid.

Threads: `clean` reads closed segments, which never change, and writes files that no other code uses. So it can run on a
background thread during appends and reads. It uses the log object only to list the segments at the start, and to put
each cleaned segment in place. Both go through `on_owner`, which runs a function on the thread of the log's owner and
waits for it. If segments were deleted in the meantime, the cleaning ends early. Records below `upto_offset` are
committed, so they are normally not truncated. An owner that must truncate them makes `pace` raise beforehand, which
ends the cleaning.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from minibroker.log.batch import NO_LEADER_EPOCH, RECORDS_AT, Batch, BatchHeader, batches
from minibroker.log.compression import decompress
from minibroker.log.errors import CorruptBatch, LogError
from minibroker.log.record import scan_records
from minibroker.log.recovery import check_batch, check_continuity, header_at
from minibroker.segments.config import LogConfig
from minibroker.segments.durability import run_now
from minibroker.segments.keymap import KeyMap, bytes_wanted
from minibroker.segments.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, Segment
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.survivors import AbortedTransactions, Survivors

DEDUPE_BUFFER_BYTES = 128 * 1024**2  # default of Kafka's log.cleaner.dedupe.buffer.size
CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Cleaned:
    """The result of a cleaning. The next cleaning begins at `first_dirty_offset`."""

    first_dirty_offset: int
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0


# The cleanable part ---------------------------------------------------------------------------------------------------


def cleanable(
    log: SegmentedLog, *, first_dirty_offset: int, now_ms: int, upto_offset: int | None = None
) -> list[tuple[Segment, int]]:
    """The segments that may be cleaned, each with the offset at which it ends. The clean part is included."""
    bound = min(log.flushed_offset, log.log_end_offset if upto_offset is None else upto_offset)
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    found = []
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        end_offset = following.base_offset
        is_young = log.config.min_compaction_lag_ms > 0 and segment.max_timestamp > youngest_ms
        if end_offset > bound or (end_offset > first_dirty_offset and is_young):
            break
        found.append((segment, end_offset))
    return found


def is_worth_it(log: SegmentedLog, *, first_dirty_offset: int, now_ms: int, upto_offset: int | None = None) -> bool:
    """Whether to clean now: the dirty part is large (`min.cleanable.dirty.ratio`) or old (`max.compaction.lag.ms`)."""
    if not log.config.compacts:
        return False
    first_dirty_offset = _within_log(first_dirty_offset, log)
    segments = cleanable(log, first_dirty_offset=first_dirty_offset, now_ms=now_ms, upto_offset=upto_offset)
    dirty = [segment for segment, end_offset in segments if end_offset > first_dirty_offset]
    dirty_bytes = sum(segment.size for segment in dirty)
    if dirty_bytes == 0:
        return False
    ratio = dirty_bytes / sum(segment.size for segment, _end_offset in segments)
    oldest_ms = now_ms - log.config.max_compaction_lag_ms
    is_overdue = any(0 <= segment.first_timestamp < oldest_ms for segment in dirty)
    return is_overdue or ratio >= log.config.min_cleanable_dirty_ratio


def _within_log(first_dirty_offset: int, log: SegmentedLog) -> int:
    # A checkpointed offset outside the log is outdated. The whole log then counts as dirty.
    is_inside = log.log_start_offset <= first_dirty_offset <= log.log_end_offset
    return first_dirty_offset if is_inside else log.log_start_offset


# Cleaning -------------------------------------------------------------------------------------------------------------


def clean(
    log: SegmentedLog,
    *,
    first_dirty_offset: int,
    now_ms: int,
    upto_offset: int | None = None,
    aborted: Iterable[tuple[int, int, int]] = (),
    keep_producers: AbstractSet[tuple[int, int]] = frozenset(),
    keep_markers: AbstractSet[tuple[int, int]] = frozenset(),
    map_bytes_max: int = DEDUPE_BUFFER_BYTES,
    on_owner: Callable[[Callable[[], None]], None] = run_now,
    pace: Callable[[int], None] = lambda _bytes_read: None,
) -> Cleaned:
    """Clean the cleanable part of a log, as far as one map can hold its keys.

    `upto_offset` is the last stable offset: every transaction below it has ended. `aborted` lists the aborted
    transactions as (producer id, first offset, offset of the marker). `keep_producers` holds (producer id, last offset
    of its last batch) for each active producer. That batch stays, even if it is empty, because it holds the producer's
    last sequence number. `keep_markers` holds (producer id, epoch) for each active producer that has no batch of its
    epoch yet. Its markers of that epoch stay, because only they hold the epoch. `pace` is called with the number of
    bytes read; it may sleep to spare the disk, or raise to end the cleaning.
    """
    assert log.config.compacts, "cleanup.policy does not include compact, so the offsets must stay dense"
    first_dirty_offset = _within_log(first_dirty_offset, log)
    sources: list[_Source] = []
    on_owner(lambda: sources.extend(_sources(log, first_dirty_offset, now_ms, upto_offset)))
    # Pass 1: the newest offset of each key.
    transactions = AbortedTransactions(aborted)
    newest = KeyMap(_map_bytes(sources, first_dirty_offset, map_bytes_max))
    end_offset = _map_keys(sources, first_dirty_offset, newest, transactions, pace)
    # Pass 2: copy the surviving records, one group of segments at a time.
    survivors = Survivors(
        newest,
        end_offset=end_offset,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        aborted=transactions,
        keep_producers=keep_producers,
        keep_markers=keep_markers,
    )
    copies: list[_Copy] = []
    for group in grouped([source for source in sources if source.base_offset < end_offset], log.config):
        copy = _Copy(log, group)
        copy.fill(survivors, pace)
        on_owner(copy.put_in_place)
        if not copy.is_in_place:
            # This group was not cleaned, so the whole dirty part stays dirty.
            return _sum(copies, first_dirty_offset)
        copies.append(copy)
    return _sum(copies, end_offset)


def _sources(log: SegmentedLog, first_dirty_offset: int, now_ms: int, upto_offset: int | None) -> list["_Source"]:
    found = cleanable(log, first_dirty_offset=first_dirty_offset, now_ms=now_ms, upto_offset=upto_offset)
    return [_Source(segment, end_offset) for segment, end_offset in found]


def _sum(copies: Sequence["_Copy"], first_dirty_offset: int) -> Cleaned:
    return Cleaned(
        first_dirty_offset,
        segments_before=sum(len(copy.group) for copy in copies),
        segments_after=len(copies),
        bytes_before=sum(source.size for copy in copies for source in copy.group),
        bytes_after=sum(copy.segment.size for copy in copies),
        records_before=sum(copy.records_before for copy in copies),
        records_after=sum(copy.records_after for copy in copies),
    )


class _Source:
    """A closed segment to be cleaned, as it was when the cleaning began."""

    def __init__(self, segment: Segment, end_offset: int) -> None:
        self.segment = segment
        self.base_offset = segment.base_offset
        self.end_offset = end_offset
        self.size = segment.size
        self.offset_index_bytes = segment.indexes.offsets.size
        self.time_index_bytes = segment.indexes.times.size
        self.position = 0
        # Keep a reference to the file. A deleted segment drops its own reference, but this cleaning still reads the
        # file.
        self._file = segment.file
        self._path = segment.path(LOG_SUFFIX)

    def batches(self) -> Iterator[Batch]:
        """All batches, each checked first. `position` is the position of the current batch."""
        try:
            yield from self._checked()
        except CorruptBatch as error:
            raise self.located(error) from None

    def _checked(self) -> Iterator[Batch]:
        self.position, expected_offset, leader_epoch = 0, self.base_offset, NO_LEADER_EPOCH
        while self.position < self.size:
            for batch in batches(self._chunk()):
                header = batch.header
                batch.check_crc()
                self._check_place(header, expected_offset, leader_epoch)
                yield batch
                self.position += header.size
                expected_offset, leader_epoch = header.next_offset, header.leader_epoch

    def _chunk(self) -> bytes:
        """The batch at `position`, and the following batches that fit into one read."""
        header = header_at(self._file, self.position)
        bytes_left = self.size - self.position
        if header.size > bytes_left:
            raise CorruptBatch(f"only {bytes_left} of {header.size} bytes")
        if header.size > CHUNK_BYTES:
            # The batch's length may be damaged. So check the batch in pieces before all of it is read into memory.
            check_batch(self._file, self.position, header)
        return self._file.pread(min(max(CHUNK_BYTES, header.size), bytes_left), self.position)

    def _check_place(self, header: BatchHeader, expected_offset: int, leader_epoch: int) -> None:
        # Compaction leaves gaps. So this checks only that the batch is after the last one and within this segment.
        check_continuity(self.position, header, expected_offset=expected_offset, dense=False)
        if header.next_offset > self.end_offset:
            raise CorruptBatch(f"last offset {header.last_offset}, but the next segment begins at {self.end_offset}")
        if header.leader_epoch < leader_epoch:
            raise CorruptBatch(f"leader epoch {header.leader_epoch} is older than the one before it, {leader_epoch}")

    def located(self, error: LogError) -> LogError:
        """The same error, with the file and the batch's position added."""
        what = str(error).removeprefix("batch at position ").lstrip("0123456789").removeprefix(": ")
        return type(error)(f"{self._path}: batch at position {self.position}: {what}")


# Pass 1 ---------------------------------------------------------------------------------------------------------------


def _map_bytes(sources: Sequence[_Source], first_dirty_offset: int, bytes_max: int) -> int:
    """The size of the map: enough for one key per dirty offset, but at most `bytes_max`."""
    keys_max = max(sources[-1].end_offset - first_dirty_offset, 0) if sources else 0
    return min(bytes_max, bytes_wanted(keys_max))


def _map_keys(
    sources: Sequence[_Source],
    first_dirty_offset: int,
    newest: KeyMap,
    aborted: AbortedTransactions,
    pace: Callable[[int], None],
) -> int:
    """Put the newest offset of each dirty key into the map; return the offset up to which it has all keys."""
    for source in sources:
        if source.end_offset <= first_dirty_offset:
            continue
        for batch in source.batches():
            header = batch.header
            pace(header.size)
            if header.next_offset <= first_dirty_offset or header.is_control or aborted.holds(header):
                continue
            try:
                refused_offset = _map_batch(batch, first_dirty_offset, newest)
            except LogError as error:
                raise source.located(error) from None
            if refused_offset is not None:
                # End before this batch. But if it is the first batch, the map is too small even for one batch. Then end
                # inside the batch, because a cleaning without progress would repeat for ever.
                return header.base_offset if header.base_offset > first_dirty_offset else refused_offset
    return max(first_dirty_offset, sources[-1].end_offset) if sources else first_dirty_offset


def _map_batch(batch: Batch, first_dirty_offset: int, newest: KeyMap) -> int | None:
    """Put the offset of each key of a batch into the map; return the offset of the first one that does not fit."""
    header, put = batch.header, newest.put
    data = decompress(header.compression, batch.view[RECORDS_AT:])
    for _start, _end, _timestamp_delta, offset_delta, key, _has_value in scan_records(data, count=header.record_count):
        offset = header.base_offset + offset_delta
        if key is not None and offset >= first_dirty_offset and not put(key, offset):
            return offset
    return None


# Pass 2 ---------------------------------------------------------------------------------------------------------------


def grouped(sources: Sequence[_Source], config: LogConfig) -> list[list[_Source]]:
    """Group neighbouring segments whose bytes, index entries and relative offsets fit into one segment."""
    groups: list[list[_Source]] = []
    for source in sources:
        if groups and _fit([*groups[-1], source], config):
            groups[-1].append(source)
        else:
            groups.append([source])
    return groups


def _fit(group: Sequence[_Source], config: LogConfig) -> bool:
    return (
        sum(source.size for source in group) <= config.segment_bytes
        and sum(source.offset_index_bytes for source in group) <= config.segment_index_bytes
        and sum(source.time_index_bytes for source in group) <= config.segment_index_bytes
        and group[-1].end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )


class _Copy:
    """The cleaned segment that replaces a group of segments."""

    def __init__(self, log: SegmentedLog, group: Sequence[_Source]) -> None:
        self._log = log
        self.group = group
        self.segment = log.begin_cleaned(group[0].base_offset)
        self.records_before = 0
        self.records_after = 0
        self.is_in_place = False

    def fill(self, survivors: Survivors, pace: Callable[[int], None]) -> None:
        """Copy the surviving records, and flush the copy. After a failure, delete the copy."""
        try:
            for source in self.group:
                for batch in source.batches():
                    pace(batch.header.size)
                    self._take(source, batch, survivors)
            self.segment.seal()
            self.segment.flush()
        except BaseException:
            self.segment.delete()
            raise

    def _take(self, source: _Source, batch: Batch, survivors: Survivors) -> None:
        # The group's last batch stays, even if it is empty, because the copy's end shows which segments the copy
        # replaces.
        is_last = source is self.group[-1] and source.position + batch.header.size == source.size
        try:
            kept = survivors.of(batch, must_stay=is_last)
        except LogError as error:
            raise source.located(error) from None
        self.records_before += batch.header.record_count
        if kept is not None:
            self.segment.write(kept.view, kept.header)
            self.records_after += kept.header.record_count

    def put_in_place(self) -> None:
        """Replace the group, unless one of its segments was deleted in the meantime or became active again."""
        old = [source.segment for source in self.group]
        closed = self._log.segments[:-1]
        if all(segment in closed for segment in old):
            self._log.replace(old, self.segment)
            self.is_in_place = True
        else:
            self.segment.delete()
