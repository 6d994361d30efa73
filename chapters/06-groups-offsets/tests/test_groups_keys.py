"""The configuration keys of groups and offsets: Kafka's defaults, limits, and a group's own values."""

import dataclasses

import pytest
from cases import case

from minibroker.groups import keys
from minibroker.groups.keys import (
    GROUP_CONFIGS,
    GroupSettings,
    MigrationPolicy,
    check_group_configs,
)
from minibroker.metadata.config_keys import BROKER_CONFIGS, INT_MAX, ConfigKey, ConfigResource, ConfigSource
from minibroker.metadata.config_resources import RESOURCES
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig, Refused
from minibroker.metadata.image import Image
from minibroker.wire.codes import ErrorCode

# Name, type and default, as a broker of Apache Kafka 4.3 prints them when it starts.
KAFKA_CONFIGS = """
group.consumer.assignment.interval.ms int 1000
group.consumer.assignors list uniform,range
group.consumer.heartbeat.interval.ms int 5000
group.consumer.max.assignment.interval.ms int 15000
group.consumer.max.heartbeat.interval.ms int 15000
group.consumer.max.session.timeout.ms int 60000
group.consumer.max.size int 2147483647
group.consumer.migration.policy string bidirectional
group.consumer.min.assignment.interval.ms int 0
group.consumer.min.heartbeat.interval.ms int 5000
group.consumer.min.session.timeout.ms int 45000
group.consumer.regex.refresh.interval.ms int 600000
group.consumer.session.timeout.ms int 45000
group.initial.rebalance.delay.ms int 3000
group.max.session.timeout.ms int 1800000
group.max.size int 2147483647
group.min.session.timeout.ms int 6000
offset.metadata.max.bytes int 4096
offsets.commit.timeout.ms int 5000
offsets.load.buffer.size int 5242880
offsets.retention.check.interval.ms long 600000
offsets.retention.minutes int 10080
offsets.topic.compression.codec int 0
offsets.topic.num.partitions int 50
offsets.topic.replication.factor short 3
offsets.topic.segment.bytes int 104857600
"""

# The values that each configuration accepts and refuses at the end of its range, other things being equal.
EDGES: dict[str, tuple[list[str], list[str]]] = {
    "group.consumer.assignors": (
        ["range", "range,uniform", "org.apache.kafka.coordinator.group.assignor.RangeAssignor"],
        ["", "sticky", "range,com.example.Mine"],
    ),
    "group.consumer.max.size": (["1"], ["0"]),
    "group.consumer.migration.policy": (["upgrade", "DISABLED", "Downgrade"], ["", "both"]),
    "group.consumer.regex.refresh.interval.ms": (["10000"], ["9999"]),
    "group.initial.rebalance.delay.ms": (["0"], ["x"]),
    "group.max.size": (["1"], ["0"]),
    "offsets.commit.timeout.ms": (["1"], ["0"]),
    "offsets.load.buffer.size": (["1"], ["0"]),
    "offsets.retention.check.interval.ms": (["1"], ["0"]),
    "offsets.retention.minutes": (["1", str(INT_MAX)], ["0", str(INT_MAX + 1)]),
    "offsets.topic.compression.codec": (["0", "4"], ["-1", "5", "gzip"]),
    "offsets.topic.num.partitions": (["1"], ["0"]),
    "offsets.topic.replication.factor": (["1", "32767"], ["0", "-1", "32768"]),
    "offsets.topic.segment.bytes": (["1"], ["0"]),
}


def declared() -> dict[str, ConfigKey[object]]:
    """The keys of brokers that the module declares."""
    return {it.name: it for it in vars(keys).values() if isinstance(it, ConfigKey) and it.name in BROKER_CONFIGS}


def test_brokers_have_kafkas_configurations_with_kafkas_types_and_defaults() -> None:
    ours = [f"{key.name} {key.type.name.lower()} {key.default}" for _name, key in sorted(declared().items())]
    assert ours == KAFKA_CONFIGS.strip().splitlines()
    # As in Kafka, a restart is needed to change them.
    assert not any(key.is_dynamic for key in declared().values())


def test_a_configuration_accepts_and_refuses_what_kafka_does() -> None:
    for name, (accepted, refused) in EDGES.items():
        for text in accepted:
            with case(name, text):
                NodeConfig({name: text})
        for text in refused:
            with case(name, text), pytest.raises(InvalidConfig, match=f"^{name}="):
                NodeConfig({name: text})


def test_the_settings_of_a_broker_are_in_milliseconds_and_plain_names() -> None:
    settings = GroupSettings.of(
        NodeConfig(
            {
                "group.consumer.assignors": "org.apache.kafka.coordinator.group.assignor.RangeAssignor,uniform",
                "group.consumer.migration.policy": "UpGrade",
                "offsets.retention.minutes": str(INT_MAX),
            }
        )
    )
    assert settings.consumer_assignors == ("range", "uniform")
    assert settings.migration_policy is MigrationPolicy.UPGRADE
    assert settings.offsets_retention_ms == INT_MAX * 60_000


def test_every_key_is_in_the_settings() -> None:
    """Each key is changed alone, and changes the settings."""
    others = {
        "group.consumer.assignors": "range",
        "group.consumer.migration.policy": "disabled",
        "group.consumer.session.timeout.ms": "45001",
        "group.consumer.heartbeat.interval.ms": "5001",
    }
    limits = {name for name in declared() if name.startswith(("group.consumer.min.", "group.consumer.max."))}
    for name in declared().keys() - limits | {"group.consumer.max.size"}:
        with case(name):
            default = declared()[name].default
            assert default is not None
            changed = others.get(name) or str(abs(int(default) - 1))
            before, after = (dataclasses.asdict(GroupSettings.of(NodeConfig(it))) for it in ({}, {name: changed}))
            assert [field for field in before if before[field] != after[field]] != []


def test_the_policy_says_which_way_a_group_may_change() -> None:
    assert [(it.is_upgrade_enabled, it.is_downgrade_enabled) for it in MigrationPolicy] == [
        (True, True),
        (True, False),
        (False, True),
        (False, False),
    ]


def test_limits_that_contradict_each_other_are_refused() -> None:
    for settings, told in (
        ({"group.min.session.timeout.ms": "7", "group.max.session.timeout.ms": "6"}, "no member of a classic group"),
        ({"group.consumer.session.timeout.ms": "44999"}, "less than group.consumer.min.session.timeout.ms=45000"),
        ({"group.consumer.session.timeout.ms": "60001"}, "larger than group.consumer.max.session.timeout.ms=60000"),
        ({"group.consumer.heartbeat.interval.ms": "4999"}, "less than group.consumer.min.heartbeat.interval.ms=5000"),
        ({"group.consumer.assignment.interval.ms": "15001"}, "larger than group.consumer.max.assignment.interval.ms"),
        ({"group.consumer.min.session.timeout.ms": "45001"}, "less than group.consumer.min.session.timeout.ms=45001"),
        ({"group.consumer.min.session.timeout.ms": "1", "group.consumer.session.timeout.ms": "5000"}, "not larger"),
    ):
        with case(settings), pytest.raises(InvalidConfig, match=told):
            NodeConfig(settings)


# The configurations of a group


def image_with(**configs: str) -> Image:
    texts = {name.replace("_", "."): text for name, text in configs.items()}
    return Image(configs={(ConfigResource.GROUP, "readers"): texts})


def test_groups_have_kafkas_configurations() -> None:
    assert [(key.name, key.default, key.synonym) for key in GROUP_CONFIGS.in_order()] == [
        ("consumer.assignment.interval.ms", "1000", "group.consumer.assignment.interval.ms"),
        ("consumer.heartbeat.interval.ms", "5000", "group.consumer.heartbeat.interval.ms"),
        ("consumer.session.timeout.ms", "45000", "group.consumer.session.timeout.ms"),
    ]


def test_a_group_has_its_own_value_else_the_brokers_else_the_default() -> None:
    node = NodeConfig({"group.consumer.session.timeout.ms": "46000", "group.consumer.heartbeat.interval.ms": "6000"})
    own = GroupSettings.of(node, {"consumer.session.timeout.ms": "47000", "from.a.newer.program": "1"})
    assert own.consumer_session_timeout_ms == 47_000
    assert own.consumer_heartbeat_interval_ms == 6000
    assert own.consumer_assignment_interval_ms == 1000


def test_a_value_that_was_set_under_other_limits_is_cut_to_the_brokers() -> None:
    for text, value in (("1", 45_000), ("45001", 45_001), ("70000", 60_000)):
        with case(text):
            assert (
                GroupSettings.of(NodeConfig(), {"consumer.session.timeout.ms": text}).consumer_session_timeout_ms
                == value
            )


def test_a_group_is_described_with_all_places_where_its_values_are_set() -> None:
    node = NodeConfig({"group.consumer.session.timeout.ms": "46000"})
    image = image_with(consumer_session_timeout_ms="47000")
    kind = RESOURCES[ConfigResource.GROUP]
    entries = {it.key.name: it for it in kind.describe(image, "readers", node)}
    session = entries["consumer.session.timeout.ms"]
    assert (session.value, session.source, session.is_read_only) == ("47000", ConfigSource.GROUP_CONFIG, False)
    assert [(it.name, it.value, it.source) for it in session.synonyms] == [
        ("consumer.session.timeout.ms", "47000", ConfigSource.GROUP_CONFIG),
        ("group.consumer.session.timeout.ms", "46000", ConfigSource.STATIC_BROKER_CONFIG),
        ("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT_CONFIG),
    ]
    heartbeat = entries["consumer.heartbeat.interval.ms"]
    assert (heartbeat.value, heartbeat.source) == ("5000", ConfigSource.DEFAULT_CONFIG)
    # A group without members can be described: its configuration may come first.
    (_assignment, _heartbeat, other) = kind.describe(image, "writers", node)
    assert (other.value, other.source) == ("46000", ConfigSource.STATIC_BROKER_CONFIG)


def test_groups_with_configurations_are_listed() -> None:
    assert RESOURCES[ConfigResource.GROUP].names(image_with(consumer_session_timeout_ms="47000")) == ["readers"]
    assert RESOURCES[ConfigResource.GROUP].names(Image()) == []


def test_a_groups_configuration_is_checked_against_the_brokers_limits() -> None:
    for configs, told in (
        ({"consumer.session.timeout.ms": "44999"}, "less than group.consumer.min.session.timeout.ms=45000"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "larger than group.consumer.max.heartbeat.interval.ms=15000"),
        ({"consumer.session.timeout.ms": "0"}, "^consumer.session.timeout.ms=0 is not allowed"),
        ({"consumer.sesion.timeout.ms": "1"}, "Unknown group config name: .* did you mean consumer.session"),
    ):
        with case(configs), pytest.raises(InvalidConfig, match=told):
            check_group_configs(configs, NodeConfig())
    check_group_configs(
        {"consumer.session.timeout.ms": "60000", "consumer.heartbeat.interval.ms": "15000"}, NodeConfig()
    )


def test_a_group_without_a_name_is_refused() -> None:
    kind = RESOURCES[ConfigResource.GROUP]
    for ask in (
        lambda: kind.describe(Image(), "", NodeConfig()),
        lambda: kind.check(Image(), "", {}, NodeConfig()),
    ):
        with pytest.raises(Refused) as refused:
            ask()
        assert refused.value.code is ErrorCode.INVALID_REQUEST
