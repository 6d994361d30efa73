"""Configurations: how a value is parsed, and which of several values takes precedence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_model import case

from minibroker.metadata.broker_keys import OPEN_FILES_MAX
from minibroker.metadata.config_keys import (
    BROKER_CONFIGS,
    LONG_MAX,
    PASSWORD,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigResource,
)
from minibroker.metadata.configs import Configs, NodeConfig, TopicConfig, check_topic_configs
from minibroker.metadata.errors import InvalidConfig
from minibroker.metadata.listeners import Listener, SecurityProtocol, parse_listeners
from minibroker.segments.config import LogConfig

# Declaring


def test_a_declared_key_gives_its_typed_value_and_is_an_attribute_of_no_other_chapter() -> None:
    assert OPEN_FILES_MAX.of(NodeConfig({"minibroker.open.files.max": " 20 "})) == 20
    assert OPEN_FILES_MAX.of(NodeConfig()) == NodeConfig().open_files_max == 10_000


def test_a_key_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        BROKER_CONFIGS.declare(OPEN_FILES_MAX)


# Parsing


def test_a_number_is_parsed_as_in_java() -> None:
    for text in ["5", " 5 ", "+5", "\t5\n"]:
        with case(text):
            assert TOPIC_CONFIGS.parse("segment.ms", text) == 5


def test_a_text_that_is_not_a_number_in_java_is_refused() -> None:
    for text in ["", "5.0", "0x5", "1_000", "٥", "5 5", "9" * 10_000]:
        with case(text), pytest.raises(InvalidConfig, match="a whole number of 64 bits"):
            TOPIC_CONFIGS.parse("segment.ms", text)


@given(st.sampled_from([*TOPIC_CONFIGS]), st.text(max_size=200))
def test_any_text_is_a_value_or_a_short_refusal(name: str, text: str) -> None:
    try:
        TOPIC_CONFIGS.parse(name, text)
    except InvalidConfig as error:
        assert len(str(error)) < 1000
        assert str(error).isprintable()


def test_an_unknown_name_is_refused_with_the_nearest_known_name() -> None:
    with pytest.raises(InvalidConfig, match=r"name: retention: did you mean retention\.ms\?"):
        TOPIC_CONFIGS.parse("retention", "1")
    with pytest.raises(InvalidConfig, match=r"name: num\.partition: did you mean num\.partitions\?"):
        NodeConfig({"num.partition": "3"})
    with pytest.raises(InvalidConfig, match=r"^Unknown topic config name: zzzzzzzz$"):
        TOPIC_CONFIGS.parse("zzzzzzzz", "true")


def test_a_secret_is_never_in_a_message() -> None:
    key = ConfigKey("ssl.key.password", PASSWORD, None, None, "A password.")
    assert key.shown("hunter2") == "[hidden]"
    assert key.is_sensitive


# Precedence


def test_a_topic_without_settings_has_the_defaults() -> None:
    config = TopicConfig()
    assert config.retention_ms == 7 * 24 * 60 * 60 * 1000
    assert config.max_message_bytes == 1_048_588
    assert config.message_timestamp_type == "CreateTime"
    assert not config.is_log_append_time
    assert config.log_config == LogConfig()


def test_the_topics_value_precedes_the_brokers_and_that_the_default() -> None:
    node = NodeConfig({"log.retention.ms": "2000", "message.max.bytes": "77"})
    assert TopicConfig({}, node).retention_ms == 2000
    assert TopicConfig({}, node).max_message_bytes == 77
    assert TopicConfig({"retention.ms": "3000"}, node).retention_ms == 3000
    assert TopicConfig({"retention.ms": "3000"}, node).max_message_bytes == 77


def test_milliseconds_precede_minutes_and_minutes_precede_hours() -> None:
    for settings, retention_ms in [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
    ]:
        with case(settings, retention_ms):
            assert TopicConfig({}, NodeConfig(settings)).retention_ms == retention_ms


def test_dynamic_values_precede_the_settings_of_the_start() -> None:
    started = NodeConfig({"node.id": "3", "log.retention.ms": "1000"})
    for_all = {(ConfigResource.BROKER, ""): {"log.retention.ms": "2000"}}
    for_it = {(ConfigResource.BROKER, "3"): {"log.retention.ms": "3000"}}
    for_another = {(ConfigResource.BROKER, "4"): {"log.retention.ms": "4000"}}
    assert TopicConfig({}, started.with_dynamic(for_all)).retention_ms == 2000
    assert TopicConfig({}, started.with_dynamic(for_all | for_it)).retention_ms == 3000
    assert started.with_dynamic(for_another) is started


def test_dynamic_values_that_conflict_with_the_settings_of_the_start_are_ignored() -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    started = NodeConfig({"node.id": "3", most: "5"})
    for_all, for_it = (ConfigResource.BROKER, ""), (ConfigResource.BROKER, "3")

    def lag_and_size(configs: Configs) -> tuple[int, int]:
        node = started.with_dynamic(configs)
        return TopicConfig({}, node).min_compaction_lag_ms, node.values["message.max.bytes"]

    bad, good = {least: "10", "message.max.bytes": "7"}, {"message.max.bytes": "8"}
    assert lag_and_size({for_it: bad, for_all: good}) == (0, 8)
    assert lag_and_size({for_it: good, for_all: bad}) == (0, 8)
    assert lag_and_size({for_it: bad, for_all: bad}) == (0, started.values["message.max.bytes"])
    assert lag_and_size({for_it: {most: "20"}, for_all: bad}) == (10, 7)
    with pytest.raises(InvalidConfig, match="larger"):
        started.checked_dynamic({for_it: bad})


def test_keys_that_only_a_newer_program_knows_are_ignored() -> None:
    node = NodeConfig().with_dynamic({(ConfigResource.BROKER, "1"): {"from.the.future": "1", "message.max.bytes": "7"}})
    assert node.values["message.max.bytes"] == 7
    assert TopicConfig({"from.the.future": "1", "retention.ms": "5"}).retention_ms == 5


def test_a_topic_finds_its_configuration_in_an_image() -> None:
    configs = {(ConfigResource.TOPIC, "orders"): {"segment.ms": "5"}}
    assert TopicConfig.of(configs, "orders", NodeConfig()).segment_ms == 5
    assert TopicConfig.of(configs, "others", NodeConfig()).segment_ms == 604_800_000


# The configuration of a log


def test_a_log_gets_every_setting_that_concerns_it() -> None:
    numbers: dict[str, Any] = {
        "segment_bytes": 2_000_000,
        "segment_ms": 1,
        "index_interval_bytes": 2,
        "segment_index_bytes": 3000,
        "retention_ms": 4,
        "retention_bytes": 5,
        "min_cleanable_dirty_ratio": 0.6,
        "min_compaction_lag_ms": 7,
        "max_compaction_lag_ms": 8,
        "delete_retention_ms": 9,
        "flush_messages": 10,
        "flush_ms": 11,
    }
    texts = {name.replace("_", "."): str(number) for name, number in numbers.items()}
    config = TopicConfig(texts | {"cleanup.policy": "compact,delete"})
    assert config.log_config == LogConfig(**numbers, cleanup_policy=frozenset({"compact", "delete"}))


def test_the_largest_flush_values_mean_never() -> None:
    assert TopicConfig({"flush.messages": str(LONG_MAX)}).log_config.flush_messages is None
    assert TopicConfig({"flush.ms": str(LONG_MAX)}).log_config.flush_ms is None
    assert TopicConfig({"flush.ms": "0"}).log_config.flush_ms == 0


def test_a_negative_size_is_no_limit() -> None:
    assert TopicConfig({"retention.bytes": "-5"}).log_config.retention_bytes == -1


def test_a_compacted_topic_rolls_early_enough_to_be_compacted_in_time() -> None:
    overrides = {"max.compaction.lag.ms": "50", "segment.ms": "1000"}
    assert TopicConfig(overrides).log_config.segment_ms == 1000
    assert TopicConfig({**overrides, "cleanup.policy": "compact"}).log_config.segment_ms == 50


def test_the_internal_segment_size_may_be_below_the_public_minimum() -> None:
    assert TopicConfig({"internal.segment.bytes": "500"}).log_config.segment_bytes == 500
    assert TopicConfig({}, NodeConfig({"internal.segment.bytes": "500"})).log_config.segment_bytes == 500


def test_a_cleanup_policy_may_be_empty() -> None:
    config = TopicConfig({"cleanup.policy": ""}).log_config
    assert not config.deletes
    assert not config.compacts


# Several keys together


def test_the_minimum_compaction_lag_cannot_exceed_the_maximum() -> None:
    check_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}, NodeConfig())
    with pytest.raises(InvalidConfig, match=r"min.compaction.lag.ms=6 is larger than max.compaction.lag.ms=5"):
        check_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, NodeConfig())
    with pytest.raises(InvalidConfig, match="larger"):
        check_topic_configs({"max.compaction.lag.ms": "5"}, NodeConfig({"log.cleaner.min.compaction.lag.ms": "6"}))
    with pytest.raises(InvalidConfig, match="larger"):
        NodeConfig({"log.cleaner.min.compaction.lag.ms": "6", "log.cleaner.max.compaction.lag.ms": "5"})


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


def test_broker_id_is_accepted_unless_it_contradicts_node_id() -> None:
    assert NodeConfig({"broker.id": "7"}).node_id == 7
    assert NodeConfig({"node.id": "7", "broker.id": "7"}).node_id == 7
    assert NodeConfig({"node.id": "7", "broker.id": "-1"}).node_id == 7
    with pytest.raises(InvalidConfig, match=r"node\.id=7 and broker\.id=8"):
        NodeConfig({"node.id": "7", "broker.id": "8"})
    with pytest.raises(InvalidConfig, match="at least 0"):
        NodeConfig({"broker.id": "-2"})


def test_log_dirs_precede_log_dir() -> None:
    assert NodeConfig({"log.dir": "a"}).log_dirs == ("a",)
    assert NodeConfig({"log.dir": "a", "log.dirs": "b, c"}).log_dirs == ("b", "c")


def test_listeners_are_parsed_and_shown() -> None:
    text = "PLAINTEXT://127.0.0.1:0,INSIDE://[::1]:9093,OUTSIDE://example.org:9094"
    listeners = parse_listeners(text)
    assert [listener.host for listener in listeners] == ["127.0.0.1", "::1", "example.org"]
    assert ",".join(str(listener) for listener in listeners) == text
    named = "PLAINTEXT:PLAINTEXT,inside:sasl_plaintext,OUTSIDE:PLAINTEXT"
    settings = {
        "listeners": text,
        "listener.security.protocol.map": named,
        "advertised.listeners": "PLAINTEXT://here:1",
    }
    config = NodeConfig(settings)
    assert config.advertised_listeners == (Listener("PLAINTEXT", "here", 1),)
    protocols = [config.security_protocol(it.name) for it in listeners]
    plain, sasl = SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT
    assert protocols == [plain, sasl, plain]
    # The names of the protocols need no map, and neither does the usual name of a controller's listener.
    config = NodeConfig({"listeners": "PLAINTEXT://:1,SASL_PLAINTEXT://:2,CONTROLLER://:3"})
    assert [config.security_protocol(it.name) for it in config.listeners] == [plain, sasl, plain]


def test_a_listener_with_tls_or_without_a_protocol_is_refused() -> None:
    told = "is not possible: there is no TLS"
    cases = [
        ({"listeners": "SSL://a:1"}, "listeners=SSL://a:1 " + told),
        ({"listeners": "sasl_ssl://a:1"}, "listeners=SASL_SSL://a:1 " + told),
        ({"listeners": "A://a:1", "listener.security.protocol.map": "A:SSL"}, told),
        ({"listeners": "LAN://a:1"}, r"set listener\.security\.protocol\.map=LAN:PLAINTEXT"),
        ({"advertised.listeners": "SASL_PLAINTEXT://a:1"}, r"a listener has the same name in both"),
        ({"listener.security.protocol.map": "A:TLS"}, "a list of NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A"}, "a list of NAME:PROTOCOL"),
    ]
    for settings, words in cases:
        with case(settings), pytest.raises(InvalidConfig, match=words):
            NodeConfig(settings)


def test_an_invalid_listener_is_refused() -> None:
    for text in [
        "",
        "127.0.0.1:9092",
        "A://b",
        "A://b:65536",
        "A://b:1,A://c:2",
        "A://b:1,C://d:1",
        "A://b:1,",
        "A://a/b:1",
    ]:
        with case(text), pytest.raises(InvalidConfig, match="a list of NAME://HOST:PORT"):
            NodeConfig({"listeners": text})
