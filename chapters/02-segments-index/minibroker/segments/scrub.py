"""Damage found where nobody reads: a slow walk over the closed segments of a log. A pure module.

A closed segment is never written again, and perhaps never read until a consumer starts from the beginning, a year
later. By then the replica that still had the right bytes may be gone. So somebody reads it now and then.

The scrub is a generator that stops after every piece it has read, and only reads. Who runs it decides when it goes on:
between two requests, on a thread, at so many bytes a second (`Pace`). It opens files of its own. The log may meanwhile
delete, replace or cut segments: one that is no longer a closed segment of the log is left, without a finding.
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
    """Build the indexes of a segment anew if one of them is what was found damaged; call it where the log is used."""
    for segment in _closed(log):
        if finding.path in (segment.path(OFFSET_SUFFIX), segment.path(TIME_SUFFIX)):
            segment.rebuild_indexes()
            return True
    return False


class Pace:
    """How long to wait after each piece, so that no more than so many bytes are read in a second."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_ms = 0.0

    def wait_ms(self, bytes_read: int, now_ms: float) -> float:
        """The pause that these bytes cost. Time that was spent elsewhere is not saved up for a burst."""
        self._due_ms = max(self._due_ms, now_ms) + bytes_read * 1000 / self._bytes_per_s
        return self._due_ms - now_ms


# One segment --------------------------------------------------------------------------------------------------------


def _scrub_segment(files: Files, log: SegmentedLog, segment: Segment) -> Iterator[Progress | Finding]:
    try:
        for step in _checks(files, log, segment):
            # A file that went away with its segment, or is another one by now, says nothing about this log.
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
    # The active segment may be empty still: then the log itself remembers the epoch of the last batch.
    if end.is_sound and end.leader_epoch > log.leader_epoch:
        what = f"leader epoch {end.leader_epoch}, but the log is in {log.leader_epoch}"
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
