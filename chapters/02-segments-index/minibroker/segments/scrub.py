"""The scrub: a slow check of a log's closed segments, to find damage before a consumer does. A pure module.

A closed segment may stay unread for a year, until a consumer starts from the beginning. By then, the replica with the
undamaged bytes may be gone. So the scrub reads every segment from time to time.

The scrub only reads. It is a generator that yields after every piece. The caller chooses when it continues: between two
requests, on a thread, or at a limited rate (`Pace`). The scrub opens the files itself. If the log deletes, replaces or
truncates a segment in the meantime, the scrub skips that segment without a finding.
"""

from collections.abc import Iterator

from minibroker.log.interfaces import Files
from minibroker.segments.checking import (
    End,
    Finding,
    Progress,
    Source,
    against_next,
    check_segment,
    open_source,
)
from minibroker.segments.indexes import OFFSET_SUFFIX, TIME_SUFFIX
from minibroker.segments.segment import LOG_SUFFIX, Segment
from minibroker.segments.segmented import SegmentedLog

__all__ = ["Finding", "Pace", "Progress", "rebuild_index", "scrub"]


def scrub(files: Files, log: SegmentedLog) -> Iterator[Progress | Finding]:
    """Check every batch and every index entry of the closed segments, the oldest first."""
    segment = _closed_after(log, -1)
    while segment is not None:
        yield from _scrub_segment(files, log, segment)
        segment = _closed_after(log, segment.base_offset)


def rebuild_index(log: SegmentedLog, finding: Finding) -> bool:
    """If the finding is about an index, rebuild the indexes of its segment. Call this on the log's thread."""
    for segment in _closed(log):
        if finding.path in (segment.path(OFFSET_SUFFIX), segment.path(TIME_SUFFIX)):
            segment.rebuild_indexes()
            return True
    return False


class Pace:
    """Computes how long to wait after each piece, so that at most `bytes_per_s` are read."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_ms = 0.0

    def wait_ms(self, bytes_read: int, now_ms: float) -> float:
        """How long to wait after these bytes. Idle time does not allow a burst later."""
        self._due_ms = max(self._due_ms, now_ms) + bytes_read * 1000 / self._bytes_per_s
        return self._due_ms - now_ms


# One segment --------------------------------------------------------------------------------------------------------


def _scrub_segment(files: Files, log: SegmentedLog, segment: Segment) -> Iterator[Progress | Finding]:
    try:
        for step in _checks(files, log, segment):
            # Stop if the segment was deleted or replaced in the meantime.
            if not _is_closed(log, segment):
                return
            yield step
    except OSError as error:
        if _is_closed(log, segment):
            yield Finding(segment.path(LOG_SUFFIX), 0, f"cannot be read: {error.strerror}")


def _checks(files: Files, log: SegmentedLog, segment: Segment) -> Iterator[Progress | Finding]:
    dense = not log.config.compacts
    source = open_source(files, segment.path, segment.base_offset)
    try:
        for step in check_segment(source, dense=dense, is_closed=True):
            if isinstance(step, End):
                yield from _check_end(log, source, step, dense=dense)
            else:
                yield step
    finally:
        source.close()


def _check_end(log: SegmentedLog, source: Source, end: End, *, dense: bool) -> Iterator[Finding]:
    # The active segment may be empty, so compare with the log's epoch, which is the epoch of its last batch.
    if end.is_sound and end.leader_epoch > log.leader_epoch:
        what = f"leader epoch {end.leader_epoch}, but the log's last epoch is {log.leader_epoch}"
        yield Finding(source.log_path, end.position, what)
        return
    for following in log.segments:
        if following.base_offset > source.base_offset:
            base_offset = following.base_offset
            yield from against_next(source, end, base_offset=base_offset, log=following.file, dense=dense)
            return


def _closed(log: SegmentedLog) -> tuple[Segment, ...]:
    return tuple(log.segments)[:-1]


def _closed_after(log: SegmentedLog, base_offset: int) -> Segment | None:
    return next((segment for segment in _closed(log) if segment.base_offset > base_offset), None)


def _is_closed(log: SegmentedLog, segment: Segment) -> bool:
    return any(closed is segment for closed in _closed(log))
