"""Open a directory of segments, and repair it after a crash. A pure module.

After a clean shutdown only the names and the last few kilobytes are read. Otherwise every batch from the recovery point
on is checked. Batches before it were flushed and are trusted without rereading. If the check finds no damage, nothing
is changed or flushed, so that thousands of logs open quickly. After another crash the same batches are checked again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress

from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.log.errors import CorruptBatch
from minibroker.log.interfaces import Files
from minibroker.log.logfile import FlushPolicy
from minibroker.log.recovery import Recovered, headers
from minibroker.segments.config import LogConfig
from minibroker.segments.indexes import OFFSET_SUFFIX, TIME_SUFFIX
from minibroker.segments.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, SUFFIXES, TRANSACTION_SUFFIX, Segment

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"  # Kafka adds this suffix to a segment's files before it removes them
DIGITS = 20


def load(
    files: Files,
    directory: str,
    config: LogConfig,
    *,
    recovery_point: int,
    is_clean: bool,
    log_start_offset: int,
) -> list[Segment]:
    """Open the segments of a log, in order. The last one is ready for appends."""
    if not is_clean:
        files.mkdir(directory)
    bases = base_offsets(sweep(files, directory))
    if not is_clean:
        bases = _without_empty_ones(files, directory, bases)
    segments = [Segment(files, directory, base, config) for base in bases or [log_start_offset]]
    is_as_it_was, is_flushed = is_clean and bool(bases), True
    if not bases:
        # The log is new: there is nothing to check, and nothing to flush before the first batch.
        end = Recovered(size=0, log_end_offset=log_start_offset)
    elif is_clean:
        end = segments[-1].end()
    else:
        end, is_flushed = _recover(files, directory, config, segments, recovery_point)
    if end.log_end_offset < recovery_point:
        raise CorruptBatch(_damaged_below(directory, end, recovery_point))
    if end.leader_epoch == NO_LEADER_EPOCH and len(segments) > 1:
        # The last segment is empty, so the epoch comes from the segment before.
        end = end._replace(leader_epoch=segments[-2].end().leader_epoch)
    if end.log_end_offset < log_start_offset:
        # The records after the log start offset had not reached the disk. Begin an empty log at that offset, so that no
        # offset is assigned twice.
        is_as_it_was, is_flushed = False, True
        for segment in reversed(segments):
            segment.delete()
        segments = [Segment(files, directory, log_start_offset, config)]
        end = Recovered(size=0, log_end_offset=log_start_offset, leader_epoch=end.leader_epoch)
    policy = FlushPolicy(interval_messages=config.flush_messages, interval_ms=config.flush_ms)
    tail = segments[-1].open_tail(end, policy)
    if not is_flushed:
        tail.flushed_offset = max(recovery_point, tail.log_start_offset)
    elif bases and not is_as_it_was:
        # Flush the names of files that were created here, before records in them count as flushed.
        files.fsync_directory(directory)
    return segments


def _without_empty_ones(files: Files, directory: str, bases: list[int]) -> list[int]:
    # A failed roll may have left an empty segment, while records were still appended to the segment before it. Remove
    # such empty segments, but not the first one: if that is empty, its records were lost, and the check must see this
    # and remove the segments after it.
    middle = [Segment(files, directory, base, LogConfig()) for base in bases[1:-1]]
    empty = [segment for segment in middle if segment.size == 0]
    for segment in middle:
        segment.close()
    for segment in empty:
        segment.delete()
    return [base for base in bases if base not in {segment.base_offset for segment in empty}]


def base_offsets(names: Iterable[str]) -> list[int]:
    """The base offsets in the names of the log files."""
    return sorted(int(name[:DIGITS]) for name in names if name.endswith(LOG_SUFFIX) and name[:DIGITS].isdigit())


def sweep(files: Files, directory: str) -> list[str]:
    """Finish or undo changes that a crash interrupted: unfinished cleaned segments, swaps, indexes without a log.

    Returns the remaining file names.
    """
    names = files.list(directory)
    if any(name.endswith((CLEANED, DELETED, SWAP)) for name in names):
        for name in names:
            if name.endswith((CLEANED, DELETED)):
                files.unlink(f"{directory}/{name}")
        _finish_swaps(files, directory, [name for name in names if name.endswith(SWAP)])
        names = files.list(directory)
    logs = {name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX)}
    of_a_segment = (*SUFFIXES, TRANSACTION_SUFFIX)
    orphans = {name for name in names if name.endswith(of_a_segment) and name.partition(".")[0] not in logs}
    for name in orphans:
        files.unlink(f"{directory}/{name}")
    return [name for name in names if name not in orphans]


def _finish_swaps(files: Files, directory: str, names: Sequence[str]) -> None:
    # A `.swap` segment was durable before the first segment that it replaces was deleted, so complete the swap. The
    # last batch of the replaced segments is kept, even without records. So the end of the `.swap` segment shows which
    # segments it replaces.
    swapped = {name[:DIGITS] for name in names if name.endswith(LOG_SUFFIX + SWAP)}
    for stem in sorted(swapped):
        end_offset = _end_of_swap(files, f"{directory}/{stem}{LOG_SUFFIX}{SWAP}", int(stem))
        for replaced in base_offsets(files.list(directory)):
            if int(stem) < replaced < end_offset:
                Segment(files, directory, replaced, LogConfig()).delete()
        # Remove the original's indexes: their positions are wrong in the new log file. The renames below replace them
        # only if the new indexes exist.
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX, TRANSACTION_SUFFIX):
            with suppress(FileNotFoundError):
                files.unlink(f"{directory}/{stem}{suffix}")
    # Remove each `.swap` index that has no `.swap` log: its swap never began. Rename the others, the log file last. As
    # long as the log file's name ends with `.swap`, the start after another crash repeats all of these steps.
    for name in sorted(names, key=lambda name: name.endswith(LOG_SUFFIX + SWAP)):
        if name[:DIGITS] in swapped:
            files.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
        else:
            files.unlink(f"{directory}/{name}")


def _end_of_swap(files: Files, path: str, base_offset: int) -> int:
    end_offset = base_offset
    file = files.open(path, create=False)
    for _position, header in headers(file):
        end_offset = header.next_offset
    file.close()
    return end_offset


def _recover(
    files: Files,
    directory: str,
    config: LogConfig,
    segments: list[Segment],
    recovery_point: int,
) -> tuple[Recovered, bool]:
    """Check everything from the recovery point on, and cut the log at the first damage.

    Returns the end of the valid part, and whether that part is flushed.
    """
    first = max(bisect_right([segment.base_offset for segment in segments], recovery_point) - 1, 0)
    # First find how far the log is valid, without changing anything.
    checked: list[tuple[Recovered, Recovered]] = []
    for segment in segments[first:]:
        # After a failed flush the kernel may hold clean pages that never reached the disk. Drop them before the check.
        segment.drop_cache()
    start = segments[first].check_start(recovery_point)
    for segment in segments[first:]:
        end = segment.check(start=start, recovery_point=recovery_point)
        checked.append((start, end))
        following = segments[first + len(checked)] if first + len(checked) < len(segments) else None
        if end.damage is not None or following is None or not _continues(segment, following, end):
            break
        start = Recovered(size=0, log_end_offset=following.base_offset, leader_epoch=end.leader_epoch)
    if len(checked) == len(segments) - first and not config.compacts and end.log_end_offset > recovery_point:
        end = _without_unconfirmed_gap(segment, *checked.pop())
        checked.append((start, end))
    if end.log_end_offset < recovery_point:
        raise CorruptBatch(_damaged_below(directory, end, recovery_point))
    # Then delete the later segments, the last one first, and index the valid part. Flush it if something was repaired,
    # if more than the active segment was checked, or if the log has a flush interval.
    is_flushed = first < len(segments) - 1 or end.damage is not None or config.flushes_by_itself
    while len(segments) > first + len(checked):
        segments.pop().delete()
    for segment, (start, end) in zip(segments[first:], checked, strict=True):
        segment.keep(start=start, recovered=end)
        segment.seal()
        if is_flushed:
            segment.file.fsync()
            segment.flush_indexes()
    if is_flushed:
        files.fsync_directory(directory)
    return end, is_flushed


def _without_unconfirmed_gap(segment: Segment, start: Recovered, end: Recovered) -> Recovered:
    """Drop the log's last batch if offsets are missing before it, because no later batch confirms that gap.

    The gap may come from a flipped bit in the base offset. The log end offset would then be wrong.
    """
    if end.gap == 0:
        return end
    before = start
    for position, header in headers(segment.file, position=start.size, size=end.size):
        if position + header.size < end.size:
            before = Recovered(position + header.size, header.next_offset, header.leader_epoch)
    return before._replace(damage=CorruptBatch(f"{end.gap} offsets are missing before the last batch"))


def _continues(segment: Segment, following: Segment, end: Recovered) -> bool:
    """Whether `following` begins where `segment` ends. A gap is allowed if one segment could not span it."""
    is_far = following.base_offset - segment.base_offset > RELATIVE_OFFSET_MAX
    return following.base_offset == end.log_end_offset or is_far


def _damaged_below(directory: str, end: Recovered, recovery_point: int) -> str:
    return (
        f"{directory}: readable up to offset {end.log_end_offset}, but records up to {recovery_point} were flushed. "
        f"{end.damage or 'A file ends early or is missing'}. This is not a torn tail: restore the directory from a "
        "replica or a copy, or lower its recovery point to cut it there"
    )
