"""Descriptions of configurations: the value, its source and its synonyms."""

import pytest
from metadata_model import case

from minibroker.metadata.config_keys import (
    BROKER_CONFIGS,
    PASSWORD,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigResource,
    ConfigSource,
    Value,
)
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.described import (
    Described,
    SetValue,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    text_of,
)

DEFAULT, STATIC = ConfigSource.DEFAULT_CONFIG, ConfigSource.STATIC_BROKER_CONFIG
DYNAMIC, FOR_ALL = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
TOPIC = ConfigSource.TOPIC_CONFIG


def topic_entry(name: str, node: NodeConfig, **overrides: str) -> Described:
    texts = {key.replace("_", "."): text for key, text in overrides.items()}
    return next(entry for entry in describe_topic(texts, node) if entry.key.name == name)


def broker_entry(name: str, node: NodeConfig) -> Described:
    return next(entry for entry in describe_broker(node) if entry.key.name == name)


def test_a_fresh_topic_has_defaults_and_the_brokers_defaults_as_synonyms() -> None:
    entry = topic_entry("segment.bytes", NodeConfig())
    assert (entry.value, entry.source, entry.is_read_only) == ("1073741824", DEFAULT, False)
    assert entry.synonyms == [SetValue("log.segment.bytes", "1073741824", DEFAULT)]


def test_every_place_where_a_value_is_set_is_shown_in_order_of_precedence() -> None:
    node = NodeConfig({"log.segment.bytes": "2000000"}).with_dynamic(
        {
            (ConfigResource.BROKER, "1"): {"log.segment.bytes": "3000000"},
            (ConfigResource.BROKER, ""): {"log.segment.bytes": "4000000"},
        }
    )
    entry = topic_entry("segment.bytes", node, segment_bytes="5000000")
    assert (entry.value, entry.source) == ("5000000", TOPIC)
    assert entry.synonyms == [
        SetValue("segment.bytes", "5000000", TOPIC),
        SetValue("log.segment.bytes", "3000000", DYNAMIC),
        SetValue("log.segment.bytes", "4000000", FOR_ALL),
        SetValue("log.segment.bytes", "2000000", STATIC),
        SetValue("log.segment.bytes", "1073741824", DEFAULT),
    ]
    assert topic_entry("segment.bytes", node).source == DYNAMIC
    assert topic_entry("segment.bytes", node).value == "3000000"


def test_hours_are_a_synonym_of_milliseconds_only_if_they_are_set() -> None:
    assert topic_entry("retention.ms", NodeConfig()).synonyms == []
    entry = topic_entry("retention.ms", NodeConfig({"log.retention.hours": "2"}))
    assert (entry.value, entry.source) == ("7200000", STATIC)
    assert entry.synonyms == [
        SetValue("log.retention.hours", "2", STATIC),
        SetValue("log.retention.hours", "168", DEFAULT),
    ]


def test_values_are_shown_in_their_parsed_form() -> None:
    assert topic_entry("segment.ms", NodeConfig(), segment_ms=" 5 ").value == "5"
    assert topic_entry("cleanup.policy", NodeConfig(), cleanup_policy="compact , delete").value == "compact,delete"


def test_an_internal_configuration_is_shown_only_if_it_is_set() -> None:
    assert {entry.key.name for entry in describe_topic({}, NodeConfig())} == TOPIC_CONFIGS.keys() - {
        "internal.segment.bytes"
    }
    assert topic_entry("internal.segment.bytes", NodeConfig(), internal_segment_bytes="9").value == "9"
    shown = {entry.key.name for entry in describe_broker(NodeConfig())}
    assert shown == {name for name, key in BROKER_CONFIGS.items() if not key.is_internal}


def test_a_broker_shows_the_settings_of_its_start_and_which_keys_are_read_only() -> None:
    node = NodeConfig({"num.partitions": "3"})
    entry = broker_entry("num.partitions", node)
    assert (entry.value, entry.source, entry.is_read_only) == ("3", STATIC, True)
    assert entry.synonyms == [SetValue("num.partitions", "3", STATIC), SetValue("num.partitions", "1", DEFAULT)]
    assert not broker_entry("log.retention.ms", node).is_read_only
    assert broker_entry("log.retention.ms", node).value is None


def test_a_brokers_milliseconds_have_hours_as_a_synonym_but_not_the_reverse() -> None:
    entry = broker_entry("log.retention.hours", NodeConfig({"log.retention.ms": "5"}))
    assert entry.synonyms == [SetValue("log.retention.hours", "168", DEFAULT)]
    entry = broker_entry("log.retention.ms", NodeConfig({"log.retention.ms": "5"}))
    assert entry.synonyms == [
        SetValue("log.retention.ms", "5", STATIC),
        SetValue("log.retention.hours", "168", DEFAULT),
    ]


def test_describing_all_brokers_shows_only_values_set_for_all() -> None:
    node = NodeConfig().with_dynamic({(ConfigResource.BROKER, ""): {"message.max.bytes": "5"}})
    (entry,) = describe_all_brokers(node)
    assert (entry.key.name, entry.value, entry.source) == ("message.max.bytes", "5", FOR_ALL)
    assert describe_all_brokers(NodeConfig()) == []


def test_a_secret_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ConfigKey("ssl.key.password", PASSWORD, None, None, "A password.", is_dynamic=True)
    monkeypatch.setitem(BROKER_CONFIGS, key.name, key)
    entry = broker_entry(key.name, NodeConfig({"ssl.key.password": "hunter2"}))
    assert (entry.value, entry.source) == (None, STATIC)
    assert entry.synonyms == [SetValue("ssl.key.password", None, STATIC)]


def test_a_value_is_shown_as_in_java() -> None:
    texts: list[tuple[Value, str]] = [
        (True, "true"),
        (5, "5"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (1e7, "1.0E7"),
        (12345678.5, "1.23456785E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-2.5e-9, "-2.5E-9"),
    ]
    for value, text in texts:
        with case(value, text):
            assert text_of(value) == text
