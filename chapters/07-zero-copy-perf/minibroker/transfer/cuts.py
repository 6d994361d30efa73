"""How often the files of an answer were truncated. A pure module.

A slice is found when a request is served, and its bytes are read when the answer is sent. Meanwhile the answer may
stand in line, and a slow client may take minutes to read it. If the file is truncated in that time, other records may
be at the same position. Then the slice must not be sent.
"""

from collections.abc import Sequence

from minibroker.log.interfaces import File, FileSlice
from minibroker.partitions.errors import Disconnect
from minibroker.wire.schema import Part


def cuts_of(file: File) -> int:
    """How often a file was truncated. If the number has changed, a slice may have other bytes."""
    return getattr(file, "cuts", 0)


def cuts_in(parts: Sequence[Part]) -> int:
    """How often the files of all slices were truncated."""
    # The answer to most requests is one part in memory.
    return sum(cuts_of(it.file) for it in parts if isinstance(it, FileSlice)) if len(parts) > 1 else 0


def check_cuts(now: int, before: int) -> None:
    """Raise if a file was truncated since its slice was found."""
    if now != before:
        raise Disconnect("a segment was truncated before all of its records were sent")
