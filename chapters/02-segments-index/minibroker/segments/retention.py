"""Choose the segments to delete, by size and age. A pure module."""

from collections.abc import Sequence
from typing import Protocol

from minibroker.segments.config import UNLIMITED, LogConfig


class Sized(Protocol):
    """The properties of a segment that retention needs."""

    @property
    def size(self) -> int:
        """The segment's size in bytes."""

    @property
    def max_timestamp(self) -> int:
        """The segment's largest timestamp."""


def expired(closed: Sequence[Sized], config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments are older than `retention.ms`. A segment without timestamps stays."""
    # Count from the oldest; stop at the first segment that is young enough, or whose age is unknown.
    if config.retention_ms == UNLIMITED:
        return 0
    for count, segment in enumerate(closed):
        if segment.max_timestamp < 0 or now_ms - segment.max_timestamp <= config.retention_ms:
            return count
    return len(closed)


def excess(closed: Sequence[Sized], active_size: int, config: LogConfig) -> int:
    """How many of the oldest segments can be deleted so that at least `retention.bytes` are left."""
    # Count from the oldest, as long as the rest of the log has at least `retention.bytes`.
    if config.retention_bytes == UNLIMITED:
        return 0
    size = active_size + sum(segment.size for segment in closed)
    for count, segment in enumerate(closed):
        size -= segment.size
        if size < config.retention_bytes:
            return count
    return len(closed)
