"""The rules for the names of topics. A pure module.

A topic's name is also the name of a directory and of a metric. So only a few characters are allowed, and the names `.`
and `..` are refused. Two names that differ only in `.` and `_` collide, because both characters become `_` in a metric.
"""

import re

from minibroker.metadata.errors import InvalidTopicName

NAME_CHARACTERS_MAX = 249  # leaves room for `-` and a five-digit partition in a file name of 255

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID = (1).to_bytes(16, "big")  # Kafka's fixed id; a created topic never gets it
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"

_INTERNAL = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_SHOWN_MAX = 64


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicName if a topic cannot have this name."""
    # Kafka's order: empty, then the two names of existing directories, then too long, then invalid characters.
    if not name:
        raise InvalidTopicName("a topic's name is empty: give the topic a name")
    if name in (".", ".."):
        raise InvalidTopicName(f"'{name}' is not a valid topic name: it is the name of an existing directory")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidTopicName(f"a topic's name has {len(name)} characters, but only {NAME_CHARACTERS_MAX} are allowed")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicName(f"{_shown(name)} is not a valid topic name: use only a-z, A-Z, 0-9, '.', '_' and '-'")


def _shown(name: str) -> str:
    """A name that is safe to print."""
    return ascii(name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "…")


def quoted(name: str) -> str:
    """A name for use in a message: short and printable."""
    return ascii(name[:_SHOWN_MAX])


def is_internal(name: str) -> bool:
    """Whether brokers keep their own state in the topic."""
    return name in _INTERNAL


def can_collide(name: str) -> bool:
    """Whether another name could become the same metric name."""
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """The topic's name in metrics. Two topics with the same name in metrics collide."""
    return name.replace(".", "_")
