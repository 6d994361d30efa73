"""All keys of the finished broker: Kafka's names, types and defaults, limits at their edges, and the refused keys."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker import configuration_page
from minibroker.broker.catalogue import NEEDS_A_RESTART, NOT_HERE
from minibroker.broker.keys import declare_every_key
from minibroker.metadata.config_keys import (
    BROKER_CONFIGS,
    INT_MAX,
    LONG_MAX,
    TOPIC_CONFIGS,
    ConfigSource,
)
from minibroker.metadata.configs import NodeConfig, TopicConfig, check_topic_configs
from minibroker.metadata.described import describe_topic
from minibroker.metadata.errors import InvalidConfig

declare_every_key()

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

# The values that each configuration accepts and refuses, at both ends of its range. Kafka 4.3 does the same.
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
        for key in TOPIC_CONFIGS.in_order()
        if not key.is_internal
    ]
    assert ours == KAFKA_TOPIC_CONFIGS.strip().splitlines()


def test_every_topic_configuration_has_its_edges_tested() -> None:
    assert sorted(EDGES) == sorted(TOPIC_CONFIGS)


def test_a_topic_configuration_accepts_the_values_that_kafka_accepts() -> None:
    for name, (accepted, _refused) in EDGES.items():
        for text in accepted:
            with case(name, text):
                TOPIC_CONFIGS.parse(name, text)


def test_a_topic_configuration_refuses_the_values_that_kafka_refuses() -> None:
    for name, (_accepted, refused) in EDGES.items():
        for text in refused:
            with case(name, text), pytest.raises(InvalidConfig, match=f"^{name}="):
                TOPIC_CONFIGS.parse(name, text)


def test_every_default_passes_its_own_check_and_every_key_is_explained() -> None:
    for key in [*TOPIC_CONFIGS.in_order(), *BROKER_CONFIGS.in_order()]:
        with case(key.name):
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


def test_each_default_that_differs_from_kafkas_has_a_reason() -> None:
    departing = [key for key in BROKER_CONFIGS.values() if key.departure is not None]
    assert len(departing) == 10
    for key in departing:
        assert key.departure is not None
        assert key.default != key.departure.kafka_default
        assert len(key.departure.why) > 20


def test_keys_that_need_a_restart_cannot_be_changed_while_the_broker_runs() -> None:
    assert not any(BROKER_CONFIGS[name].is_dynamic for name in NEEDS_A_RESTART)


def test_the_page_of_all_configurations_matches_the_keys(transcript: Callable[[Path, str], None]) -> None:
    transcript(Path(__file__).parents[2] / "docs/reference/configuration.md", configuration_page.page())


@given(st.sampled_from([(name, text) for name, (good, _bad) in EDGES.items() for text in good]))
def test_every_accepted_value_makes_a_log_configuration(setting: tuple[str, str]) -> None:
    assert TopicConfig(dict([setting])).log_config is not None


# Keys that are not supported


def test_there_is_no_tiered_storage() -> None:
    with pytest.raises(InvalidConfig, match="no tiered storage"):
        check_topic_configs({"remote.storage.enable": "true"}, NodeConfig())


def test_a_kafka_key_that_is_not_supported_is_refused_with_an_alternative() -> None:
    for name, instead in [
        ("controller.quorum.bootstrap.servers", "controller.quorum.voters=ID@HOST:PORT"),
        ("control.plane.listener.name", "controller.listener.names"),
        ("ssl.keystore.location", "there is no TLS yet"),
        ("zookeeper.connect", "there is no ZooKeeper"),
        ("group.share.max.size", "no share groups"),
        ("transaction.two.phase.commit.enable", "no two-phase commit"),
    ]:
        told = rf"^this broker does not support Kafka's key {re.escape(name)}: .*{re.escape(instead)}"
        with case(name), pytest.raises(InvalidConfig, match=told):
            NodeConfig({name: "x"})


def test_no_supported_key_is_listed_as_missing() -> None:
    assert not NOT_HERE.keys() & BROKER_CONFIGS.keys()


# Descriptions


def test_a_configuration_without_a_synonym_is_the_topics_or_the_default() -> None:
    entry = next(it for it in describe_topic({}, NodeConfig()) if it.key.name == "remote.storage.enable")
    assert (entry.synonyms, entry.source) == ([], ConfigSource.DEFAULT_CONFIG)


def test_keys_are_shown_by_name_whichever_chapter_declared_them() -> None:
    shown = {it.key.name: it.value for it in describe_topic({"preallocate": "TRUE"}, NodeConfig())}
    assert list(shown) == sorted(shown)
    assert shown["preallocate"] == "true"
