"""Subscriptions by regular expression. A pure module.

The coordinator, not the client, finds the matching topics (KIP-848). All members with the same expression share the
result. The result is stored as a record (type 16), so that a new coordinator need not search again.

The caller passes the matcher. A match must take linear time for any expression, as with RE2: with a backtracking
engine, one client could keep the broker busy for hours.
"""

from collections.abc import Callable

from minibroker.groups.records import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    GroupRecord,
)
from minibroker.log.errors import ExpectedError
from minibroker.metadata.image import Image

REFRESH_INTERVAL_MS_MIN = 10_000
"""The least time between two searches, however often the metadata change."""


class InvalidRegex(ExpectedError):
    """A text that is not a regular expression."""


Matcher = Callable[[str], Callable[[str], bool]]
"""Compiles a regular expression to a function that says whether a whole name matches. Raises InvalidRegex."""


def resolve(regex: str, matcher: Matcher, image: Image, now_ms: int) -> ConsumerGroupRegularExpressionValue:
    """The topics whose names match, without internal topics. Raises InvalidRegex."""
    matches = matcher(regex)
    found = sorted(name for name in image.topics if not is_internal(name) and matches(name))
    return ConsumerGroupRegularExpressionValue(topics=found, version=image.offset, timestamp=now_ms)


def is_internal(topic: str) -> bool:
    """Whether a topic is internal. A regular expression never matches an internal topic."""
    return topic in ("__consumer_offsets", "__transaction_state")


def is_due(value: ConsumerGroupRegularExpressionValue, image: Image, now_ms: int, *, refresh_interval_ms: int) -> bool:
    """Whether to search again: the last search is too old, or the metadata have changed since then."""
    age_ms = now_ms - value.timestamp
    return age_ms >= refresh_interval_ms or (image.offset != value.version and age_ms >= REFRESH_INTERVAL_MS_MIN)


def regex_record(group_id: str, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> GroupRecord:
    """The record of a regular expression. The value None deletes it."""
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)
