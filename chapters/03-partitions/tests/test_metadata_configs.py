"""The tables of configurations: every limit at its edges, and which of several values holds."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.metadata import document
from minibroker.metadata.broker_configs import KAFKA_DEFAULTS, NEEDS_A_RESTART, NOT_HERE
from minibroker.metadata.config_keys import INT_MAX, LONG_MAX, ConfigKey, ConfigType
from minibroker.metadata.configs import (
    BROKER_CONFIGS,
    DEPARTURES,
    TOPIC_CONFIGS,
    ConfigResource,
    Configs,
    InvalidConfig,
    NodeConfig,
    TopicConfig,
    check_topic_configs,
    parse,
    validate,
)
from minibroker.metadata.listeners import Listener, parse_listeners
from minibroker.segments.config import LogConfig

# Name, type and default of every topic configuration of Apache Kafka 4.3, as its broker describes a fresh topic.
KAFKA_TOPIC_CONFIGS = """
cleanup.policy list delete
compression.gzip.level int -1
compression.lz4.level int 9
compression.type string producer
compression.zstd.level int 3
delete.retention.ms long 86400000
file.delete.delay.ms long 60000
flush.messages long 9223372036854775807
flush.ms long 9223372036854775807
follower.replication.throttled.replicas list
index.interval.bytes int 4096
leader.replication.throttled.replicas list
local.retention.bytes long -2
local.retention.ms long -2
max.compaction.lag.ms long 9223372036854775807
max.message.bytes int 1048588
message.timestamp.after.max.ms long 3600000
message.timestamp.before.max.ms long 9223372036854775807
message.timestamp.type string CreateTime
min.cleanable.dirty.ratio double 0.5
min.compaction.lag.ms long 0
min.insync.replicas int 1
preallocate boolean false
remote.log.copy.disable boolean false
remote.log.delete.on.disable boolean false
remote.storage.enable boolean false
retention.bytes long -1
retention.ms long 604800000
segment.bytes int 1073741824
segment.index.bytes int 10485760
segment.jitter.ms long 0
segment.ms long 604800000
unclean.leader.election.enable boolean false
"""

# What each configuration takes and what it refuses, at both ends. Kafka 4.3 was asked the same, with the same answers.
EDGES: dict[str, tuple[list[str], list[str]]] = {
    "cleanup.policy": (
        ["", "delete", "compact", "compact,delete", "compact , delete", "delete,delete"],
        ["x", "Delete", "delete,"],
    ),
    "compression.gzip.level": (["-1", "1", "9"], ["-2", "0", "10"]),
    "compression.lz4.level": (["1", "17"], ["0", "18"]),
    "compression.type": (["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"], ["none", "GZIP", ""]),
    "compression.zstd.level": (["-131072", "22"], ["-131073", "23"]),
    "delete.retention.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "file.delete.delay.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "flush.messages": (["1", str(LONG_MAX)], ["0", str(LONG_MAX + 1)]),
    "flush.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "follower.replication.throttled.replicas": (["", "*", "0:1", "0:1,12:3", "0:1,"], ["x", "0:1,*", "0", "a:1"]),
    "index.interval.bytes": (["0", str(INT_MAX)], ["-1", str(INT_MAX + 1)]),
    "internal.segment.bytes": (["1", str(INT_MAX)], ["0", "-1", str(INT_MAX + 1)]),
    "leader.replication.throttled.replicas": (["", "*", "0:1", "0:1,12:3", "0:1,"], ["x", "0:1,*", "0", "a:1"]),
    "local.retention.bytes": (["-2", str(LONG_MAX)], ["-3", str(LONG_MAX + 1)]),
    "local.retention.ms": (["-2", str(LONG_MAX)], ["-3", str(LONG_MAX + 1)]),
    "max.compaction.lag.ms": (["1", str(LONG_MAX)], ["0", str(LONG_MAX + 1)]),
    "max.message.bytes": (["0", str(INT_MAX)], ["-1", str(INT_MAX + 1)]),
    "message.timestamp.after.max.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "message.timestamp.before.max.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "message.timestamp.type": (["CreateTime", "LogAppendTime"], ["createtime", ""]),
    "min.cleanable.dirty.ratio": (["0", "0.5", "1", "1.0", ".5", "1e0"], ["-0.1", "1.1", "x", "NaN", ""]),
    "min.compaction.lag.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "min.insync.replicas": (["1", str(INT_MAX)], ["0", str(INT_MAX + 1)]),
    "preallocate": (["true", "false", "TRUE"], ["yes", "1", ""]),
    "remote.log.copy.disable": (["true", "false"], ["yes", "1", ""]),
    "remote.log.delete.on.disable": (["true", "false"], ["yes", "1", ""]),
    "remote.storage.enable": (["false"], ["yes", "1", ""]),
    "retention.bytes": (["-2", "-1", "0", str(LONG_MAX)], ["x", str(LONG_MAX + 1)]),
    "retention.ms": (["-1", "0", str(LONG_MAX)], ["-2", str(LONG_MAX + 1)]),
    "segment.bytes": (["1048576", str(INT_MAX)], ["1048575", "0", str(INT_MAX + 1)]),
    "segment.index.bytes": (["4", str(INT_MAX)], ["3", str(INT_MAX + 1)]),
    "segment.jitter.ms": (["0", str(LONG_MAX)], ["-1", str(LONG_MAX + 1)]),
    "segment.ms": (["1", str(LONG_MAX)], ["0", str(LONG_MAX + 1)]),
    "unclean.leader.election.enable": (["true", "false"], ["yes", "1", ""]),
}


# The tables


def test_topics_have_kafkas_configurations_with_kafkas_types_and_defaults() -> None:
    ours = [
        f"{key.name} {key.type.name.lower()} {key.default}".strip()
        for key in TOPIC_CONFIGS.values()
        if not key.is_internal
    ]
    assert ours == KAFKA_TOPIC_CONFIGS.strip().splitlines()


def test_every_topic_configuration_has_its_edges_tested() -> None:
    assert sorted(EDGES) == sorted(TOPIC_CONFIGS)


@pytest.mark.parametrize("name", EDGES)
def test_a_topic_configuration_takes_what_kafka_takes(name: str) -> None:
    for text in EDGES[name][0]:
        validate(name, text)


@pytest.mark.parametrize("name", EDGES)
def test_a_topic_configuration_refuses_what_kafka_refuses(name: str) -> None:
    for text in EDGES[name][1]:
        with pytest.raises(InvalidConfig, match=f"^{name}="):
            validate(name, text)


@pytest.mark.parametrize("key", [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()], ids=lambda key: key.name)
def test_every_default_passes_its_own_check_and_every_key_is_explained(key: ConfigKey) -> None:
    if key.default is not None:
        key.parse(key.default)
    assert key.about.endswith(".")


def test_every_synonym_is_a_broker_configuration_and_the_first_has_the_same_meaning() -> None:
    for key in TOPIC_CONFIGS.values():
        for synonym in key.synonyms:
            assert synonym.name in BROKER_CONFIGS
        if key.synonym is not None:
            assert BROKER_CONFIGS[key.synonym].type == key.type
            assert BROKER_CONFIGS[key.synonym].is_dynamic


def test_each_departure_from_kafkas_defaults_is_one_and_has_a_reason() -> None:
    assert DEPARTURES.keys() == KAFKA_DEFAULTS.keys()
    for name, (default, reason) in DEPARTURES.items():
        assert BROKER_CONFIGS[name].default == default != KAFKA_DEFAULTS[name]
        assert len(reason) > 20


def test_what_needs_a_restart_is_not_taken_while_the_broker_runs() -> None:
    assert not any(BROKER_CONFIGS[name].is_dynamic for name in NEEDS_A_RESTART)


def test_the_page_of_all_configurations_is_what_the_tables_say(transcript: Callable[[Path, str], None]) -> None:
    transcript(Path(__file__).parents[3] / "docs/reference/configuration.md", document.page())


# Reading


@pytest.mark.parametrize("text", ["5", " 5 ", "+5", "\t5\n"])
def test_a_number_is_read_as_java_reads_it(text: str) -> None:
    assert parse("segment.ms", text) == 5


@pytest.mark.parametrize("text", ["", "5.0", "0x5", "1_000", "٥", "5 5", "9" * 10_000])
def test_what_is_no_number_in_java_is_none_here(text: str) -> None:
    with pytest.raises(InvalidConfig, match="a whole number of 64 bits"):
        validate("segment.ms", text)


@given(st.sampled_from([*TOPIC_CONFIGS]), st.text(max_size=200))
def test_any_text_is_a_value_or_a_short_refusal(name: str, text: str) -> None:
    try:
        parse(name, text)
    except InvalidConfig as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()


def test_an_unknown_name_is_refused_with_the_nearest_that_there_is() -> None:
    with pytest.raises(InvalidConfig, match=r"name: retention: did you mean retention\.ms\?"):
        validate("retention", "1")
    with pytest.raises(InvalidConfig, match=r"name: num\.partition: did you mean num\.partitions\?"):
        NodeConfig({"num.partition": "3"})
    with pytest.raises(InvalidConfig, match=r"^Unknown topic config name: zzzzzzzz$"):
        validate("zzzzzzzz", "true")


def test_a_secret_is_never_in_a_message() -> None:
    key = ConfigKey("ssl.key.password", ConfigType.PASSWORD, None, None, "A password.")
    assert key.shown("hunter2") == "[hidden]"
    assert key.is_sensitive


# Which value holds


def test_a_topic_without_settings_has_the_defaults() -> None:
    config = TopicConfig()
    assert config.retention_ms == 7 * 24 * 60 * 60 * 1000
    assert config.max_message_bytes == 1_048_588
    assert config.message_timestamp_type == "CreateTime"
    assert not config.is_log_append_time
    assert config.log_config() == LogConfig()


def test_the_topic_goes_before_the_broker_and_the_broker_before_the_default() -> None:
    node = NodeConfig({"log.retention.ms": "2000", "message.max.bytes": "77"})
    assert TopicConfig({}, node).retention_ms == 2000
    assert TopicConfig({}, node).max_message_bytes == 77
    assert TopicConfig({"retention.ms": "3000"}, node).retention_ms == 3000
    assert TopicConfig({"retention.ms": "3000"}, node).max_message_bytes == 77


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
    ],
)
def test_milliseconds_go_before_minutes_and_minutes_before_hours(settings: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig({}, NodeConfig(settings)).retention_ms == retention_ms


def test_what_is_set_while_the_broker_runs_goes_before_what_it_was_started_with() -> None:
    started = NodeConfig({"node.id": "3", "log.retention.ms": "1000"})
    for_all = {(ConfigResource.BROKER, ""): {"log.retention.ms": "2000"}}
    for_it = {(ConfigResource.BROKER, "3"): {"log.retention.ms": "3000"}}
    for_another = {(ConfigResource.BROKER, "4"): {"log.retention.ms": "4000"}}
    assert TopicConfig({}, started.with_dynamic(for_all)).retention_ms == 2000
    assert TopicConfig({}, started.with_dynamic(for_all | for_it)).retention_ms == 3000
    assert started.with_dynamic(for_another) is started


def test_what_does_not_go_together_with_what_the_broker_was_started_with_is_left_out() -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    started = NodeConfig({"node.id": "3", most: "5"})
    for_all, for_it = (ConfigResource.BROKER, ""), (ConfigResource.BROKER, "3")

    def lag_and_size(configs: Configs) -> tuple[int, int]:
        node = started.with_dynamic(configs)
        return TopicConfig({}, node).min_compaction_lag_ms, node.message_max_bytes

    bad, good = {least: "10", "message.max.bytes": "7"}, {"message.max.bytes": "8"}
    assert lag_and_size({for_it: bad, for_all: good}) == (0, 8)
    assert lag_and_size({for_it: good, for_all: bad}) == (0, 8)
    assert lag_and_size({for_it: bad, for_all: bad}) == (0, started.message_max_bytes)
    assert lag_and_size({for_it: {most: "20"}, for_all: bad}) == (10, 7)
    with pytest.raises(InvalidConfig, match="larger"):
        started.checked_dynamic({for_it: bad})


def test_what_a_newer_program_has_set_is_left_alone() -> None:
    node = NodeConfig().with_dynamic({(ConfigResource.BROKER, "1"): {"from.the.future": "1", "message.max.bytes": "7"}})
    assert node.message_max_bytes == 7
    assert TopicConfig({"from.the.future": "1", "retention.ms": "5"}).retention_ms == 5


def test_a_topic_finds_its_configuration_in_an_image() -> None:
    configs = {(ConfigResource.TOPIC, "orders"): {"segment.ms": "5"}}
    assert TopicConfig.of(configs, "orders", NodeConfig()).segment_ms == 5
    assert TopicConfig.of(configs, "others", NodeConfig()).segment_ms == 604_800_000


# What chapter 02 gets


def test_a_log_gets_every_setting_that_concerns_it() -> None:
    config = TopicConfig(
        {
            "segment.bytes": "2000000",
            "segment.ms": "1",
            "index.interval.bytes": "2",
            "segment.index.bytes": "3000",
            "retention.ms": "4",
            "retention.bytes": "5",
            "cleanup.policy": "compact,delete",
            "min.cleanable.dirty.ratio": "0.6",
            "min.compaction.lag.ms": "7",
            "max.compaction.lag.ms": "8",
            "delete.retention.ms": "9",
            "flush.messages": "10",
            "flush.ms": "11",
        }
    )
    assert config.log_config() == LogConfig(
        segment_bytes=2_000_000,
        segment_ms=1,
        index_interval_bytes=2,
        segment_index_bytes=3000,
        retention_ms=4,
        retention_bytes=5,
        cleanup_policy=frozenset({"compact", "delete"}),
        min_cleanable_dirty_ratio=0.6,
        min_compaction_lag_ms=7,
        max_compaction_lag_ms=8,
        delete_retention_ms=9,
        flush_messages=10,
        flush_ms=11,
    )


def test_a_log_is_never_flushed_by_count_or_time_where_both_are_at_their_largest() -> None:
    assert TopicConfig({"flush.messages": str(LONG_MAX)}).log_config().flush_messages is None
    assert TopicConfig({"flush.ms": str(LONG_MAX)}).log_config().flush_ms is None
    assert TopicConfig({"flush.ms": "0"}).log_config().flush_ms == 0


def test_a_negative_size_is_no_limit() -> None:
    assert TopicConfig({"retention.bytes": "-5"}).log_config().retention_bytes == -1


def test_a_compacted_topic_rolls_in_time_to_be_compacted() -> None:
    overrides = {"max.compaction.lag.ms": "50", "segment.ms": "1000"}
    assert TopicConfig(overrides).log_config().segment_ms == 1000
    assert TopicConfig({**overrides, "cleanup.policy": "compact"}).log_config().segment_ms == 50


def test_the_internal_size_of_a_segment_goes_below_what_is_allowed() -> None:
    assert TopicConfig({"internal.segment.bytes": "500"}).log_config().segment_bytes == 500
    assert TopicConfig({}, NodeConfig({"internal.segment.bytes": "500"})).log_config().segment_bytes == 500


def test_neither_deleted_nor_compacted_is_allowed() -> None:
    config = TopicConfig({"cleanup.policy": ""}).log_config()
    assert not config.deletes
    assert not config.compacts


@given(st.sampled_from([(name, text) for name, (good, _bad) in EDGES.items() for text in good]))
def test_whatever_is_accepted_makes_a_log_configuration(setting: tuple[str, str]) -> None:
    TopicConfig(dict([setting])).log_config()


# All together


def test_compaction_can_not_be_forbidden_longer_than_it_is_demanded() -> None:
    check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, NodeConfig())
    with pytest.raises(InvalidConfig, match=r"min.compaction.lag.ms=6 is larger than max.compaction.lag.ms=5"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, NodeConfig())
    with pytest.raises(InvalidConfig, match="larger"):
        check_topic_configs({"max.compaction.lag.ms": "5"}, NodeConfig({"log.cleaner.min.compaction.lag.ms": "6"}))
    with pytest.raises(InvalidConfig, match="larger"):
        NodeConfig({"log.cleaner.min.compaction.lag.ms": "6", "log.cleaner.max.compaction.lag.ms": "5"})


def test_there_is_no_tiered_storage() -> None:
    with pytest.raises(InvalidConfig, match="no tiered storage"):
        check_topic_configs({"remote.storage.enable": "true"}, NodeConfig())


# The node


def test_a_node_without_settings_listens_on_loopback_and_has_limits() -> None:
    node = NodeConfig()
    assert node.node_id == 1
    assert node.listeners == node.advertised_listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    assert node.log_dirs == ("data",)
    assert node.num_partitions == node.default_replication_factor == 1
    assert node.auto_create_topics_enable
    assert node.max_connections == 1000
    assert node.queued_max_request_bytes == 256 * 1024**2
    assert node.open_files_max == 10000


def test_the_older_name_of_the_node_is_understood_but_not_beside_the_newer() -> None:
    assert NodeConfig({"broker.id": "7"}).node_id == 7
    assert NodeConfig({"node.id": "7", "broker.id": "7"}).node_id == 7
    assert NodeConfig({"node.id": "7", "broker.id": "-1"}).node_id == 7
    with pytest.raises(InvalidConfig, match=r"node\.id=7 and broker\.id=8"):
        NodeConfig({"node.id": "7", "broker.id": "8"})
    with pytest.raises(InvalidConfig, match="at least 0"):
        NodeConfig({"broker.id": "-2"})


def test_log_dirs_go_before_log_dir() -> None:
    assert NodeConfig({"log.dir": "a"}).log_dirs == ("a",)
    assert NodeConfig({"log.dir": "a", "log.dirs": "b, c"}).log_dirs == ("b", "c")


def test_listeners_are_read_and_written() -> None:
    text = "PLAINTEXT://127.0.0.1:0,INSIDE://[::1]:9093,OUTSIDE://example.org:9094"
    listeners = parse_listeners(text)
    assert [listener.host for listener in listeners] == ["127.0.0.1", "::1", "example.org"]
    assert ",".join(str(listener) for listener in listeners) == text
    assert NodeConfig({"listeners": text, "advertised.listeners": "PLAINTEXT://here:1"}).advertised_listeners == (
        Listener("PLAINTEXT", "here", 1),
    )


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:9092", "A://b", "A://b:65536", "A://b:1,A://c:2", "A://b:1,C://d:1", "A://b:1,", "A://a/b:1"],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="a list of NAME://HOST:PORT"):
        NodeConfig({"listeners": text})


@pytest.mark.parametrize("setting", ["listeners", "advertised.listeners"])
@pytest.mark.parametrize("name", ["SSL", "ssl", "SASL_PLAINTEXT", "SASL_SSL"])
def test_what_would_be_served_in_plain_text_is_not_called_protected(setting: str, name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{setting}={name.upper()}://a:9092 is not possible: there is no TLS"):
        NodeConfig({setting: f"{name}://a:9092"})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("controller.quorum.bootstrap.servers", "controller.quorum.voters=ID@HOST:PORT"),
        ("controller.listener.names", "one listener"),
        ("listener.security.protocol.map", "every listener is PLAINTEXT"),
        ("ssl.keystore.location", "there is no TLS here yet"),
        ("zookeeper.connect", "there is no ZooKeeper"),
        ("offsets.topic.replication.factor", "no groups"),
    ],
)
def test_what_kafka_has_and_this_broker_has_not_is_answered_with_what_to_do_instead(name: str, instead: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"^Kafka's {re.escape(name)} is not here: .*{re.escape(instead)}"):
        NodeConfig({name: "x"})


def test_nothing_is_said_to_be_missing_that_is_there() -> None:
    assert not NOT_HERE.keys() & BROKER_CONFIGS.keys()


# Who decides ----------------------------------------------------------------------------------------------------------

VOTERS = "1@a:9092,2@b:9092,3@c:9092"
BOTH = {"broker", "controller"}


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ({}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "1"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "broker.id": "1"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "4"}, {"broker"}),
        ({"controller.quorum.voters": VOTERS, "node.id": "1", "process.roles": "controller"}, {"controller"}),
        ({"controller.quorum.voters": VOTERS, "node.id": "1", "process.roles": "controller, broker"}, BOTH),
        ({"controller.quorum.voters": VOTERS, "node.id": "4", "process.roles": "broker"}, {"broker"}),
        ({"process.roles": "broker,controller"}, BOTH),
    ],
)
def test_the_roles_of_a_node_are_said_or_follow_from_the_voters(settings: dict[str, str], roles: set[str]) -> None:
    assert NodeConfig(settings).process_roles == roles


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"process.roles": "broker"}, "process.roles=broker needs controller.quorum.voters"),
        ({"process.roles": "controller"}, "process.roles=controller needs controller.quorum.voters"),
        ({"controller.quorum.voters": "5@a:9092"}, "node.id is not set, and controller.quorum.voters names [5]"),
        ({"process.roles": "observer"}, "must be broker, controller, or both"),
        ({"process.roles": "broker,broker"}, "must be broker, controller, or both"),
        ({"process.roles": "broker", "node.id": "1", "controller.quorum.voters": VOTERS}, "leave 1 out of the voters"),
        (
            {"process.roles": "controller", "node.id": "1", "controller.quorum.voters": "2@b:1"},
            "add 1@HOST:PORT to the voters",
        ),
        ({"controller.quorum.voters": "1@a:9092,1@b:9092"}, "each id and each place once"),
        ({"controller.quorum.voters": "1@a:9092,2@a:9092"}, "each id and each place once"),
        ({"controller.quorum.voters": "1@a:0"}, "ports from 1 to 65535"),
        ({"controller.quorum.voters": "1@a:70000"}, "ports from 1 to 65535"),
        (
            {"node.id": "1", "controller.quorum.voters": "1@a:9093"},
            "at port 9093, but listeners=PLAINTEXT://127.0.0.1:9092",
        ),
        ({"broker.session.timeout.ms": "900"}, "less than twice broker.heartbeat.interval.ms=500"),
    ],
)
def test_roles_voters_and_listeners_that_disagree_are_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(complaint)):
        NodeConfig(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "PLAINTEXT://:0"},
        {"listeners": "PLAINTEXT://:9093"},
        {"advertised.listeners": "PLAINTEXT://a:9093"},
        {"node.id": "7", "listeners": "PLAINTEXT://:1234"},
    ],
)
def test_a_voter_is_where_it_listens_or_where_it_says_so_and_others_listen_where_they_like(
    settings: dict[str, str],
) -> None:
    NodeConfig({"node.id": "1", "controller.quorum.voters": "1@a:9093", **settings})
