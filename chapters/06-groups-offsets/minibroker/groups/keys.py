"""The configuration keys of groups and of committed offsets, and their values for one group. A pure module.

The keys and their defaults are Kafka's. The keys `consumer.*` are configurations of a group, a resource of type 32
(KIP-848). If a group does not set a key, the broker's key `group.consumer.*` applies.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibroker.metadata.config_keys import (
    INT,
    INT_MAX,
    LIST,
    LONG,
    SHORT,
    STRING,
    Check,
    ConfigKey,
    ConfigResource,
    ConfigSource,
    KeyTable,
    Synonym,
    at_least,
    between,
    broker_key,
)
from minibroker.metadata.config_resources import RESOURCES, ResourceKind
from minibroker.metadata.configs import BROKER_RULES, NodeConfig, Texts
from minibroker.metadata.described import Described, describe_key
from minibroker.metadata.errors import InvalidConfig, Refused
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long the first join of a new member may wait for other members. As in Kafka, no key configures it."""

_MINUTE_MS = 60 * 1000


# Classic groups -------------------------------------------------------------------------------------------------------

GROUP_MIN_SESSION_TIMEOUT_MS = broker_key(
    "group.min.session.timeout.ms",
    INT,
    6000,
    None,
    "The shortest session timeout that a member of a classic group may ask for.",
)
GROUP_MAX_SESSION_TIMEOUT_MS = broker_key(
    "group.max.session.timeout.ms",
    INT,
    30 * _MINUTE_MS,
    None,
    "The longest session timeout that a member of a classic group may ask for.",
)
GROUP_INITIAL_REBALANCE_DELAY_MS = broker_key(
    "group.initial.rebalance.delay.ms",
    INT,
    3000,
    None,
    "How long the first rebalance of a classic group waits for more members.",
)
GROUP_MAX_SIZE = broker_key(
    "group.max.size", INT, INT_MAX, at_least(1), "The most members that a classic group can have."
)


# Groups of the new protocol -------------------------------------------------------------------------------------------

ASSIGNORS = ("uniform", "range")
_CLASSES = {f"org.apache.kafka.coordinator.group.assignor.{name.title()}Assignor": name for name in ASSIGNORS}


class MigrationPolicy(enum.Enum):
    """Whether a group with members may change its protocol while it runs."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def is_upgrade_enabled(self) -> bool:
        """Whether a classic group may become one of the new protocol."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def is_downgrade_enabled(self) -> bool:
        """Whether a group of the new protocol may become a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


_POLICIES = [policy.value for policy in MigrationPolicy]
_POLICY = Check(lambda value: value.lower() in _POLICIES, "one of " + ", ".join(_POLICIES))
_ASSIGNOR_LIST = Check(
    lambda value: value and {_CLASSES.get(name, name) for name in value} <= set(ASSIGNORS),
    "a list of " + ", ".join(ASSIGNORS),
)

CONSUMER_SESSION_TIMEOUT_MS = broker_key(
    "group.consumer.session.timeout.ms",
    INT,
    45_000,
    at_least(1),
    "How long a member of the new protocol stays in its group without sending a heartbeat.",
)
CONSUMER_MIN_SESSION_TIMEOUT_MS = broker_key(
    "group.consumer.min.session.timeout.ms",
    INT,
    45_000,
    at_least(1),
    "The smallest consumer.session.timeout.ms that a group may set.",
)
CONSUMER_MAX_SESSION_TIMEOUT_MS = broker_key(
    "group.consumer.max.session.timeout.ms",
    INT,
    60_000,
    at_least(1),
    "The largest consumer.session.timeout.ms that a group may set.",
)
CONSUMER_HEARTBEAT_INTERVAL_MS = broker_key(
    "group.consumer.heartbeat.interval.ms",
    INT,
    5000,
    at_least(1),
    "How often a member of the new protocol sends a heartbeat. The member learns it from the broker.",
)
CONSUMER_MIN_HEARTBEAT_INTERVAL_MS = broker_key(
    "group.consumer.min.heartbeat.interval.ms",
    INT,
    5000,
    at_least(1),
    "The smallest consumer.heartbeat.interval.ms that a group may set.",
)
CONSUMER_MAX_HEARTBEAT_INTERVAL_MS = broker_key(
    "group.consumer.max.heartbeat.interval.ms",
    INT,
    15_000,
    at_least(1),
    "The largest consumer.heartbeat.interval.ms that a group may set.",
)
CONSUMER_ASSIGNMENT_INTERVAL_MS = broker_key(
    "group.consumer.assignment.interval.ms",
    INT,
    1000,
    at_least(0),
    "The least time between two computations of the target assignment of a group.",
)
CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS = broker_key(
    "group.consumer.min.assignment.interval.ms",
    INT,
    0,
    at_least(0),
    "The smallest consumer.assignment.interval.ms that a group may set.",
)
CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS = broker_key(
    "group.consumer.max.assignment.interval.ms",
    INT,
    15_000,
    at_least(0),
    "The largest consumer.assignment.interval.ms that a group may set.",
)
CONSUMER_MAX_SIZE = broker_key(
    "group.consumer.max.size", INT, INT_MAX, at_least(1), "The most members that a group of the new protocol can have."
)
CONSUMER_ASSIGNORS = broker_key(
    "group.consumer.assignors",
    LIST,
    ",".join(ASSIGNORS),
    _ASSIGNOR_LIST,
    "The assignors that a member may ask for. The first is the default. Kafka's class names are accepted, too.",
)
CONSUMER_MIGRATION_POLICY = broker_key(
    "group.consumer.migration.policy",
    STRING,
    MigrationPolicy.BIDIRECTIONAL.value,
    _POLICY,
    "Whether a group with members may change from the classic protocol to the new one, and back.",
)
CONSUMER_REGEX_REFRESH_INTERVAL_MS = broker_key(
    "group.consumer.regex.refresh.interval.ms",
    INT,
    10 * _MINUTE_MS,
    at_least(10_000),
    "How often the coordinator searches again for topics that match a subscribed regular expression.",
    is_internal=True,
)


# Offsets --------------------------------------------------------------------------------------------------------------

OFFSET_METADATA_MAX_BYTES = broker_key(
    "offset.metadata.max.bytes",
    INT,
    4096,
    None,
    "The most characters of metadata that can be committed with an offset.",
)
OFFSETS_COMMIT_TIMEOUT_MS = broker_key(
    "offsets.commit.timeout.ms",
    INT,
    5000,
    at_least(1),
    "How long a commit may wait until it is replicated.",
)
OFFSETS_LOAD_BUFFER_SIZE = broker_key(
    "offsets.load.buffer.size",
    INT,
    5 * 1024**2,
    at_least(1),
    "How many bytes a new coordinator reads at once when it loads the groups of a partition.",
)
OFFSETS_RETENTION_MINUTES = broker_key(
    "offsets.retention.minutes",
    INT,
    7 * 24 * 60,
    at_least(1),
    "How long the offsets of a group without members are kept, and those of a topic that no member reads.",
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = broker_key(
    "offsets.retention.check.interval.ms",
    LONG,
    10 * _MINUTE_MS,
    at_least(1),
    "How often the coordinator looks for offsets that have expired.",
)
OFFSETS_TOPIC_NUM_PARTITIONS = broker_key(
    "offsets.topic.num.partitions",
    INT,
    50,
    at_least(1),
    "How many partitions __consumer_offsets is created with. Do not change it afterwards.",
)
OFFSETS_TOPIC_REPLICATION_FACTOR = broker_key(
    "offsets.topic.replication.factor",
    SHORT,
    3,
    at_least(1),
    "How many replicas __consumer_offsets is created with. If the key is set, the topic is not created while there "
    "are fewer brokers. Otherwise it gets one replica for each broker or voter, 3 at most.",
)
OFFSETS_TOPIC_SEGMENT_BYTES = broker_key(
    "offsets.topic.segment.bytes",
    INT,
    100 * 1024**2,
    at_least(1),
    "The size of the segments that __consumer_offsets is created with.",
)
OFFSETS_TOPIC_COMPRESSION_CODEC = broker_key(
    "offsets.topic.compression.codec",
    INT,
    0,
    between(0, 4),
    "The codec of the coordinator's batches: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
)


# Configurations of a group --------------------------------------------------------------------------------------------

GROUP_CONFIGS = KeyTable("group")


def _group_key(name: str, broker: ConfigKey[int], about: str) -> ConfigKey[int]:
    """Declare a configuration key of groups. Its default is the value of the broker's key."""
    key = ConfigKey(name, broker.reader, broker.default, broker.check, about, (Synonym(broker.name),))
    return GROUP_CONFIGS.declare(key)


GROUP_SESSION_TIMEOUT_MS = _group_key(
    "consumer.session.timeout.ms",
    CONSUMER_SESSION_TIMEOUT_MS,
    "How long a member stays in the group without sending a heartbeat.",
)
GROUP_HEARTBEAT_INTERVAL_MS = _group_key(
    "consumer.heartbeat.interval.ms", CONSUMER_HEARTBEAT_INTERVAL_MS, "How often a member sends a heartbeat."
)
GROUP_ASSIGNMENT_INTERVAL_MS = _group_key(
    "consumer.assignment.interval.ms",
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    "The least time between two computations of the target assignment.",
)

_LIMITS = {
    GROUP_SESSION_TIMEOUT_MS: (CONSUMER_MIN_SESSION_TIMEOUT_MS, CONSUMER_MAX_SESSION_TIMEOUT_MS),
    GROUP_HEARTBEAT_INTERVAL_MS: (CONSUMER_MIN_HEARTBEAT_INTERVAL_MS, CONSUMER_MAX_HEARTBEAT_INTERVAL_MS),
    GROUP_ASSIGNMENT_INTERVAL_MS: (CONSUMER_MIN_ASSIGNMENT_INTERVAL_MS, CONSUMER_MAX_ASSIGNMENT_INTERVAL_MS),
}


@dataclass(frozen=True)
class _GroupConfig:
    """The configuration of one group: its own values, and the broker's values for the other keys."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, configs: Texts, node: NodeConfig) -> "_GroupConfig":
        # Unknown keys are ignored: a newer broker may have set them.
        own = {name: GROUP_CONFIGS.parse(name, text) for name, text in configs.items() if name in GROUP_CONFIGS}
        return cls({**node.inherited_values(GROUP_CONFIGS), **own})


def check_group_configs(configs: Texts, node: NodeConfig) -> None:
    """Refuse group configurations that are invalid, outside the broker's limits, or contradictory."""
    for name, text in configs.items():
        GROUP_CONFIGS.parse(name, text)
    config = _GroupConfig.of(configs, node)
    for key, (least, most) in _LIMITS.items():
        value = key.of(config)
        if value < least.of(node):
            raise InvalidConfig(f"{key.name}={value} is less than {least.name}={least.of(node)}")
        if value > most.of(node):
            raise InvalidConfig(f"{key.name}={value} is larger than {most.name}={most.of(node)}")
    session_ms, interval_ms = GROUP_SESSION_TIMEOUT_MS.of(config), GROUP_HEARTBEAT_INTERVAL_MS.of(config)
    if session_ms <= interval_ms:
        raise InvalidConfig(
            f"consumer.session.timeout.ms={session_ms} is not larger than consumer.heartbeat.interval.ms={interval_ms}:"
            " every member would be removed before its next heartbeat"
        )


def check_group_defaults(config: NodeConfig) -> None:
    """Refuse broker values that would be invalid as the defaults of groups."""
    check_group_configs({}, config)


def check_classic_sessions(config: NodeConfig) -> None:
    """Refuse a minimum session timeout that is larger than the maximum."""
    least, most = GROUP_MIN_SESSION_TIMEOUT_MS.of(config), GROUP_MAX_SESSION_TIMEOUT_MS.of(config)
    if least > most:
        raise InvalidConfig(
            f"group.min.session.timeout.ms={least} is larger than group.max.session.timeout.ms={most}: no member of a "
            "classic group could join"
        )


BROKER_RULES += [check_group_defaults, check_classic_sessions]


def _group_names(image: Image) -> Sequence[str]:
    return sorted(name for kind, name in image.configs if kind is ConfigResource.GROUP)


def _described_group(image: Image, name: str, node: NodeConfig) -> Sequence[Described]:
    """Describe a group. It need not exist, because its configuration may be set before its first member joins."""
    _check_group_name(name)
    own = image.configs.get((ConfigResource.GROUP, name), {})
    config = _GroupConfig.of(own, node)
    return [
        describe_key(key, key.of(config), ConfigSource.GROUP_CONFIG if key.name in own else None, node)
        for key in GROUP_CONFIGS.in_order()
    ]


def _check_group(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:  # noqa: ARG001
    _check_group_name(name)
    check_group_configs(configs, node)


def _check_group_name(name: str) -> None:
    if not name:
        raise Refused(ErrorCode.INVALID_REQUEST, "the group's name is empty, and there are no defaults for all groups")


RESOURCES[ConfigResource.GROUP] = ResourceKind(GROUP_CONFIGS, _group_names, _described_group, _check_group)


# The values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """All values that a coordinator needs for one group."""

    session_timeout_ms_min: int
    session_timeout_ms_max: int
    initial_rebalance_delay_ms: int
    max_size: int
    new_member_join_timeout_ms: int
    consumer_session_timeout_ms: int
    consumer_heartbeat_interval_ms: int
    consumer_assignment_interval_ms: int
    consumer_max_size: int
    consumer_assignors: tuple[str, ...]
    migration_policy: MigrationPolicy
    regex_refresh_interval_ms: int
    offset_metadata_bytes_max: int
    offsets_retention_ms: int
    offsets_retention_check_interval_ms: int
    append_timeout_ms: int
    load_buffer_size: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    compression_codec: int

    @classmethod
    def of(cls, config: NodeConfig, configs: Mapping[str, str] | None = None) -> "GroupSettings":
        """The values for a group with `configs`, on a broker with `config`."""
        group = _GroupConfig.of(configs or {}, config)
        return cls(
            session_timeout_ms_min=GROUP_MIN_SESSION_TIMEOUT_MS.of(config),
            session_timeout_ms_max=GROUP_MAX_SESSION_TIMEOUT_MS.of(config),
            initial_rebalance_delay_ms=GROUP_INITIAL_REBALANCE_DELAY_MS.of(config),
            max_size=GROUP_MAX_SIZE.of(config),
            new_member_join_timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS,
            consumer_session_timeout_ms=_within_limits(GROUP_SESSION_TIMEOUT_MS, group, config),
            consumer_heartbeat_interval_ms=_within_limits(GROUP_HEARTBEAT_INTERVAL_MS, group, config),
            consumer_assignment_interval_ms=_within_limits(GROUP_ASSIGNMENT_INTERVAL_MS, group, config),
            consumer_max_size=CONSUMER_MAX_SIZE.of(config),
            consumer_assignors=tuple(_CLASSES.get(name, name) for name in CONSUMER_ASSIGNORS.of(config)),
            migration_policy=MigrationPolicy(CONSUMER_MIGRATION_POLICY.of(config).lower()),
            regex_refresh_interval_ms=CONSUMER_REGEX_REFRESH_INTERVAL_MS.of(config),
            offset_metadata_bytes_max=OFFSET_METADATA_MAX_BYTES.of(config),
            offsets_retention_ms=OFFSETS_RETENTION_MINUTES.of(config) * _MINUTE_MS,
            offsets_retention_check_interval_ms=OFFSETS_RETENTION_CHECK_INTERVAL_MS.of(config),
            append_timeout_ms=OFFSETS_COMMIT_TIMEOUT_MS.of(config),
            load_buffer_size=OFFSETS_LOAD_BUFFER_SIZE.of(config),
            offsets_topic_num_partitions=OFFSETS_TOPIC_NUM_PARTITIONS.of(config),
            offsets_topic_replication_factor=OFFSETS_TOPIC_REPLICATION_FACTOR.of(config),
            offsets_topic_segment_bytes=OFFSETS_TOPIC_SEGMENT_BYTES.of(config),
            compression_codec=OFFSETS_TOPIC_COMPRESSION_CODEC.of(config),
        )


def _within_limits(key: ConfigKey[int], group: _GroupConfig, node: NodeConfig) -> int:
    # The controller checked the group's value against its own limits. This broker may have other limits.
    least, most = _LIMITS[key]
    return min(max(key.of(group), least.of(node)), most.of(node))
