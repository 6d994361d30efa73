"""Subscriptions by regular expression. A pure module.

The coordinator finds the topics, not the client (KIP-848), and all members with one expression share the result. It is
a record (type 16), so that a new coordinator knows the same topics before it has looked for them.

The matcher is handed in. It must need linear time for any expression, as RE2 does: a backtracking engine can be brought
to a stand-still by a client.
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
"""Topics that come and go are not looked for more often than this."""


class InvalidRegex(ExpectedError):
    """A text that is not a regular expression."""


Matcher = Callable[[str], Callable[[str], bool]]
"""Compiles a regular expression to a function that says whether a whole name matches, or raises InvalidRegex."""


def resolve(regex: str, matcher: Matcher, image: Image, now_ms: int) -> ConsumerGroupRegularExpressionValue:
    """The topics whose names match. Raises InvalidRegex."""
    matches = matcher(regex)
    found = sorted(name for name in image.topics if not is_internal(name) and matches(name))
    return ConsumerGroupRegularExpressionValue(topics=found, version=image.offset, timestamp=now_ms)


def is_internal(topic: str) -> bool:
    """Whether a topic belongs to the broker. An expression never matches such a topic."""
    return topic in ("__consumer_offsets", "__transaction_state")


def is_due(value: ConsumerGroupRegularExpressionValue, image: Image, now_ms: int, *, refresh_interval_ms: int) -> bool:
    """Whether the topics should be looked for again: the metadata have changed, or it is long ago."""
    age_ms = now_ms - value.timestamp
    return age_ms >= refresh_interval_ms or (image.offset != value.version and age_ms >= REFRESH_INTERVAL_MS_MIN)


def regex_record(group_id: str, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> GroupRecord:
    """The record of an expression; None means that no member uses it any more."""
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)
