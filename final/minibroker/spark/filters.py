"""Filters that the source applies itself: on topic, partition, offset and timestamp, in batch reads.

Unwanted topics and partitions are left out, and ranges of offsets are cut; both are exact, so Spark need not filter
again. A lower bound of the timestamp moves the start to the first record at or after that time. Spark still filters
these records, because a log need not be in the order of timestamps. For the same reason an upper bound is not used.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from minibroker.segments.checkpoint import TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_OFFSET_MAX = 2**63 - 1

_HOLDS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda actual, value: bool(actual == value),
    GreaterThan: lambda actual, value: bool(actual > value),
    GreaterThanOrEqual: lambda actual, value: bool(actual >= value),
    LessThan: lambda actual, value: bool(actual < value),
    LessThanOrEqual: lambda actual, value: bool(actual <= value),
    In: lambda actual, value: actual in value,
    StringStartsWith: lambda actual, value: bool(actual.startswith(value)),
    StringEndsWith: lambda actual, value: bool(actual.endswith(value)),
    StringContains: lambda actual, value: value in actual,
}


@dataclass
class Pushed:
    """The filters of a query that the source applies."""

    names: list[Filter] = field(default_factory=list)
    offset_min: int = 0
    offset_end: int = _OFFSET_MAX
    timestamp_ms_min: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Keep the filters that the source can apply; return the filters that Spark still has to apply."""
        return [it for it in filters if not self._take(it)]

    def _take(self, it: Filter) -> bool:
        column = _column(it)
        if column in ("topic", "partition"):
            return self._take_name(it)
        if column == "offset":
            return self._take_offset(it)
        if column == "timestamp":
            self._take_timestamp(it)
        return False

    def _take_name(self, it: Filter) -> bool:
        inner = it.child if isinstance(it, Not) else it
        if type(inner) not in _HOLDS or _has_null(inner):
            return False
        self.names.append(it)
        return True

    def _take_offset(self, it: Filter) -> bool:
        value = getattr(it, "value", None)
        if not isinstance(value, int):
            return False
        if isinstance(it, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.offset_min = max(self.offset_min, value + isinstance(it, GreaterThan))
        if isinstance(it, EqualTo | LessThan | LessThanOrEqual):
            self.offset_end = min(self.offset_end, value + (not isinstance(it, LessThan)))
        return isinstance(it, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual)

    def _take_timestamp(self, it: Filter) -> None:
        value = getattr(it, "value", None)
        if isinstance(it, EqualTo | GreaterThan | GreaterThanOrEqual) and isinstance(value, datetime) and value.tzinfo:
            # The time is rounded up, because a record's time is in whole milliseconds.
            ms = -((_EPOCH - value) // _MS)
            self.timestamp_ms_min = max(self.timestamp_ms_min or 0, ms)

    def wants(self, partition: TopicPartition) -> bool:
        """Tell whether a partition can have records that pass the filters."""
        return all(_holds(it, getattr(partition, _column(it))) for it in self.names)


def _column(it: Filter) -> str:
    attribute = it.child.attribute if isinstance(it, Not) else it.attribute  # type: ignore[attr-defined]
    return attribute[0] if len(attribute) == 1 else ""


def _has_null(it: Filter) -> bool:
    value = it.value  # type: ignore[attr-defined]
    return value is None or (isinstance(it, In) and None in value)


def _holds(it: Filter, actual: str | int) -> bool:
    if isinstance(it, Not):
        return not _holds(it.child, actual)
    return _HOLDS[type(it)](actual, it.value)  # type: ignore[attr-defined]
