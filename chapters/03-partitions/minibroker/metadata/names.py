"""Which names a topic may have. A pure module.

A topic's name becomes a directory's name and a metric's name. So it is made of few characters, is never `.` or `..`,
and two names that differ only in `.` and `_` are refused, because in a metric both are written `_`.
"""

import re

from minibroker.metadata.errors import InvalidTopicName

NAME_CHARACTERS_MAX = 249  # with `-`, the partition and a suffix such as `.deleted` it fits in a file name of 255

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID = (1).to_bytes(16, "big")  # Kafka's; no topic that is created gets it
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"

_INTERNAL = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_SHOWN_MAX = 64


def check_topic_name(name: str) -> None:
    """Demand that a topic may have this name."""
    # Empty, then the two names that are directories already, then too long, then wrong characters, as Kafka does.
    if not name:
        raise InvalidTopicName("a topic's name is empty: give it one")
    if name in (".", ".."):
        raise InvalidTopicName(f"'{name}' is no name for a topic: it would be a directory that is there already")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidTopicName(f"a topic's name has {len(name)} characters, {NAME_CHARACTERS_MAX} are allowed")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicName(f"{_shown(name)} is no name for a topic: use only a-z, A-Z, 0-9, '.', '_' and '-'")


def _shown(name: str) -> str:
    """A name as it can be printed, whatever somebody put into it."""
    return ascii(name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "…")


def quoted(name: str) -> str:
    """The name of anything as a message may hold it: short and printable."""
    return ascii(name[:_SHOWN_MAX])


def is_internal(name: str) -> bool:
    """Whether brokers keep state of their own in the topic."""
    return name in _INTERNAL


def can_collide(name: str) -> bool:
    """Whether another name could be written like this one in a metric."""
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """What two colliding names have in common."""
    return name.replace(".", "_")
