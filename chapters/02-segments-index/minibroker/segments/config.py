"""The settings of one log, with Kafka's names and defaults. A pure module."""

from dataclasses import dataclass

UNLIMITED = -1
_MINUTE_MS = 60 * 1000
_DAY_MS = 24 * 60 * _MINUTE_MS

DELETE = "delete"
COMPACT = "compact"


@dataclass(frozen=True)
class LogConfig:
    """The settings of a topic that concern its logs. `segment_ms` is `segment.ms`, and so on."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * _DAY_MS
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024**2
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = UNLIMITED
    cleanup_policy: frozenset[str] = frozenset({DELETE})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = _DAY_MS
    flush_messages: int | None = None
    flush_ms: int | None = None

    def __post_init__(self) -> None:
        for name, bytes_max in (("segment_bytes", 2**31 - 1), ("segment_index_bytes", 2**31 - 1)):
            if not 0 < getattr(self, name) <= bytes_max:
                raise ValueError(f"{name.replace('_', '.')}={getattr(self, name)} is not in [1, {bytes_max}]")

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted."""
        return DELETE in self.cleanup_policy

    @property
    def flushes_by_itself(self) -> bool:
        """Whether `flush.messages` or `flush.ms` is set, so that the log flushes without a call of `flush`."""
        return self.flush_messages is not None or self.flush_ms is not None

    @property
    def compacts(self) -> bool:
        """Whether older records of a key are removed, so that offsets have gaps."""
        return COMPACT in self.cleanup_policy
