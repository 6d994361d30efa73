"""Kafka's own console tools and Kafka's Admin client against a cluster of ours: `make test-java`.

Each test runs what an operator of Kafka would run, and expects what Kafka 4.3 answers. The name of this file keeps it
out of `make test`, which needs neither Maven nor Java.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from brokers import eventually, start_broker, unique
from clients_stock import Message, confluent_write, create_topic
from clusters import QuorumCluster

from minibroker.clients.admin import ConfigSource, ResourceType, describe_configs, describe_topics
from minibroker.clients.blocking import Client

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools"
TOOL_SECONDS_MAX = 90
PLENTY = 50_000_000  # bytes per second: a throttle that no test waits for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumCluster]:
    """Three nodes, each a broker and a voter, for all tests of this module."""
    with QuorumCluster(tmp_path_factory.mktemp("tools"), "default.replication.factor=3") as started:
        yield started


@pytest.fixture
def topic(cluster: QuorumCluster) -> str:
    return cluster.create(unique("tools"), [[1, 2]])


def run_java(main: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a class, or a source file, with Kafka's jars."""
    # By the environment, so that an error that shows the command does not show a page of jars.
    env = os.environ | {"CLASSPATH": os.environ["KAFKA_CLASSPATH"]}
    command = ["java", "-XX:TieredStopAtLevel=1", main, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=False)


def tool(name: str, cluster: QuorumCluster, *arguments: object) -> str:
    """Run a console tool of Kafka; return what it prints. It must succeed and complain of nothing."""
    ended = run_java(f"{TOOLS}.{name}", "--bootstrap-server", cluster.bootstrap, *arguments)
    said = f"{name} {' '.join(map(str, arguments))}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
    assert ended.returncode == 0, said
    assert not re.search("exception|error|skip getting", ended.stdout + ended.stderr, re.IGNORECASE), said
    return ended.stdout


def calls(cluster: QuorumCluster, command: str, *arguments: object, at: int | None = None) -> list[list[str]]:
    """Run AdminCalls.java; return the words of each line that it prints."""
    bootstrap = cluster.bootstrap if at is None else cluster.address_of(at)
    ended = run_java(str(HERE / "AdminCalls.java"), bootstrap, command, *arguments)
    assert ended.returncode == 0, ended.stderr
    return [line.split(" ") for line in ended.stdout.splitlines()]


# Topics and offsets -------------------------------------------------------------------------------------------------


def test_every_special_offset_is_answered(cluster: QuorumCluster, topic: str) -> None:
    """KIP-405, KIP-1005, KIP-1023: without tiered storage no offset is tiered, and all of the log is local."""
    confluent_write(cluster.bootstrap, topic, [Message(b"%d" % n, timestamp=1_700_000_000_000 + n) for n in range(5)])
    expected = {
        "earliest": "0",
        "latest": "5",
        "max-timestamp": "4",
        "earliest-local": "0",
        "latest-tiered": "-1",
        "earliest-pending-upload": "-1",
    }
    assert {name: " ".join(answer) for _, name, *answer in calls(cluster, "offsets", topic)} == expected


def test_kafka_get_offsets_answers_every_special_time(cluster: QuorumCluster, topic: str) -> None:
    confluent_write(cluster.bootstrap, topic, [Message(b"%d" % n, timestamp=1_700_000_000_000 + n) for n in range(5)])
    for time, offset in (("-1", 5), ("-2", 0), ("-3", 4), ("-4", 0)):
        shown = tool("GetOffsetShell", cluster, "--topic-partitions", f"{topic}:0", "--time", time)
        assert shown.split() == [f"{topic}:0:{offset}"], f"--time {time}"
    # No record is tiered, so there is nothing to print; an unsupported version would be an error.
    assert tool("GetOffsetShell", cluster, "--topic-partitions", f"{topic}:0", "--time", "-5") == ""


def test_kafkas_compatibility_test_passes(cluster: QuorumCluster) -> None:
    """Kafka's own test of its clients against a broker; access control lists are not served here."""
    facts = {
        "topic": create_topic(cluster.bootstrap, unique("compatible")),
        "offsets-for-times-supported": True,
        "cluster-id-supported": True,
        "expect-record-too-large-exception": False,
        "num-cluster-nodes": 3,
        "create-topics-supported": True,
        "describe-acls-supported": False,
        "describe-configs-supported": True,
        "idempotent-producer-supported": True,
    }
    options = [word for name, value in facts.items() for word in (f"--{name}", value)]
    ended = run_java(f"{TOOLS}.ClientCompatibilityTest", "--bootstrap-server", cluster.bootstrap, *options)
    assert "SUCCESS." in ended.stdout, ended.stdout + ended.stderr


# Reassignment -------------------------------------------------------------------------------------------------------


def reassign(cluster: QuorumCluster, plan: Path, *arguments: object) -> str:
    return tool("reassign.ReassignPartitionsCommand", cluster, "--reassignment-json-file", plan, *arguments)


def throttles(cluster: QuorumCluster, topic: str) -> dict[str, str | None]:
    """The values that throttle replication, of the topic and of every broker, as far as they are set."""
    with Client(cluster.bootstrap) as client:
        found = describe_configs(client, ResourceType.TOPIC, [topic])
        found |= describe_configs(client, ResourceType.BROKER, [str(number) for number in cluster.nodes])
    set_ = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
    return {
        f"{name} {entry.name}": entry.value
        for name, entries in found.items()
        for entry in entries.values()
        if ".throttled." in entry.name and entry.source in set_
    }


def test_a_throttled_reassignment_is_executed_verified_and_leaves_no_throttle(
    cluster: QuorumCluster, topic: str, tmp_path: Path
) -> None:
    """KIP-73: the tool sets the rate on every broker, names the replicas on the topic, and removes both at the end."""
    confluent_write(cluster.bootstrap, topic, [Message(b"x" * 1000)] * 500)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [2, 3]}]}))
    started = reassign(cluster, plan, "--execute", "--throttle", PLENTY)
    assert f"Successfully started partition reassignment for {topic}-0" in started
    assert f"The inter-broker throttle limit was set to {PLENTY} B/s" in started

    eventually(
        lambda: f"Reassignment of partition {topic}-0 is completed." in reassign(cluster, plan, "--verify"),
        "the move has ended",
        seconds=60,
    )
    assert throttles(cluster, topic) == {}
    with Client(cluster.bootstrap) as client:
        assert sorted(describe_topics(client, [topic])[topic].partitions[0].replicas) == [2, 3]


# Quotas -------------------------------------------------------------------------------------------------------------


def configs(cluster: QuorumCluster, *arguments: str, at: int = 1) -> str:
    """Run kafka-configs, at a node that need not be the controller."""
    ended = run_java("kafka.admin.ConfigCommand", "--bootstrap-server", cluster.address_of(at), *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def is_shown(cluster: QuorumCluster, quota: str, *entity: str, at: int) -> bool:
    return quota in configs(cluster, "--describe", *entity, at=at)


def test_kafka_configs_sets_describes_and_removes_quotas(cluster: QuorumCluster) -> None:
    """KIP-546: every node forwards the change to the controller, and every node describes it."""
    both = ("--entity-type", "users", "--entity-name", "ada", "--entity-type", "clients", "--entity-default")
    address = ("--entity-type", "ips", "--entity-name", "127.0.0.7")
    for at, (who, changes) in enumerate(
        ((both, "producer_byte_rate=1024,request_percentage=12.5"), (address, "connection_creation_rate=3")), start=2
    ):
        configs(cluster, "--alter", "--add-config", changes, *who, at=at)
    for at in cluster.nodes:
        eventually(
            partial(is_shown, cluster, "connection_creation_rate=3.0", *address, at=at),
            f"node {at} knows the quota of the address",
            seconds=30,
        )
        shown = configs(cluster, "--describe", *both, at=at)
        assert "producer_byte_rate=1024.0" in shown, shown
        assert "request_percentage=12.5" in shown, shown
    log = cluster[1].data / "__cluster_metadata-0" / "00000000000000000000.log"
    dumped = run_java(f"{TOOLS}.DumpLogSegments", "--cluster-metadata-decoder", "--files", log)
    assert '"CLIENT_QUOTA_RECORD"' in dumped.stdout, dumped.stdout[-2000:] + dumped.stderr
    configs(cluster, "--alter", "--delete-config", "producer_byte_rate,request_percentage", *both)
    configs(cluster, "--alter", "--delete-config", "connection_creation_rate", *address)
    eventually(lambda: "byte_rate" not in configs(cluster, "--describe", *both), "the quotas are gone", seconds=30)


# Producers, operations, features, configurations --------------------------------------------------------------------


def test_any_replica_describes_producers(cluster: QuorumCluster, topic: str) -> None:
    """KIP-664: the leader and the follower tell of the same producer."""
    confluent_write(
        cluster.bootstrap, topic, [Message(b"a"), Message(b"b")], **{"enable.idempotence": True, "acks": "all"}
    )
    expected = [["producer", "0", "1"]]
    for broker in (1, 2):
        assert calls(cluster, "producers", topic, broker) == expected, f"broker {broker}"


def test_features_are_described(cluster: QuorumCluster) -> None:
    """KIP-584: without a finalized metadata.version the Java client takes a cluster for one of ZooKeeper's time."""
    found = calls(cluster, "features")
    supported = {name: (int(low), int(high)) for kind, name, low, high in (it for it in found if it[0] == "supported")}
    finalized = {name: int(level) for kind, name, level in (it for it in found if it[0] == "finalized")}
    # Kafka also supports kraft.version and more: docs/differences.md says why not here.
    expected = {"eligible.leader.replicas.version", "group.version", "metadata.version", "transaction.version"}
    assert supported.keys() == finalized.keys() == expected
    outside = [name for name, level in finalized.items() if not supported[name][0] <= level <= supported[name][1]]
    assert outside == []
    shown = tool("FeatureCommand", cluster, "describe")
    assert re.search(r"Feature: metadata\.version\s", shown), shown


def test_eligible_leader_replicas_are_described_and_dumped(cluster: QuorumCluster) -> None:
    """KIP-966: kafka-topics shows them, and kafka-dump-log reads the records of the metadata log."""
    name = cluster.create(unique("eligible"), [[1, 2, 3]], min_insync_replicas=3)
    cluster[3].stop()
    try:
        cluster.await_isr(name, 1, 2)
        shown = tool("TopicCommand", cluster, "--describe", "--topic", name)
        assert re.search(r"Isr: 1,2\s+Elr: 3\s+LastKnownElr:\s", shown), shown
        log = cluster[1].data / "__cluster_metadata-0" / "00000000000000000000.log"
        ended = run_java(f"{TOOLS}.DumpLogSegments", "--cluster-metadata-decoder", "--files", log)
        assert ended.returncode == 0, ended.stderr
        assert '"eligibleLeaderReplicas":[3]' in ended.stdout
        assert '"eligible.leader.replicas.version"' in ended.stdout
    finally:
        cluster[3].restart()
    cluster.await_isr(name, 1, 2, 3)
    assert re.search(r"Elr:\s+LastKnownElr:", tool("TopicCommand", cluster, "--describe", "--topic", name))


def test_config_resources_are_listed(cluster: QuorumCluster, topic: str) -> None:
    """KIP-1142."""
    found = calls(cluster, "resources")
    assert {words[0] for words in found} == {"resource"}, found
    assert [name for _, kind, name in found if kind == "BROKER"] == ["1", "2", "3"]
    assert topic in [name for _, kind, name in found if kind == "TOPIC"]


def test_the_number_of_cleaner_threads_changes_within_bounds(cluster: QuorumCluster) -> None:
    """Kafka refuses fewer than one, and less than half or more than double of what it runs with (KIP-226)."""
    name = "log.cleaner.threads"
    try:
        for value in ("0", "900"):
            ((kind, *reason),) = calls(cluster, "set", "1", name, value)
            assert kind == "error", f"{name}={value} was accepted"
            assert re.search("Invalid(Config|Request)", reason[0]), reason
        assert calls(cluster, "set", "1", name, "2") == [["set", name, "2"]]
    finally:
        calls(cluster, "set", "1", name, "-")


# The quorum ---------------------------------------------------------------------------------------------------------


def test_the_quorum_is_described_with_addresses(cluster: QuorumCluster) -> None:
    found = calls(cluster, "quorum")
    endpoints = {
        int(number): f"{host}:{port}" for kind, number, host, port in (it for it in found if it[0] == "endpoint")
    }
    assert endpoints == {number: cluster.address_of(number) for number in cluster.nodes}
    shown = tool("MetadataQuorumCommand", cluster, "describe", "--status")
    assert f"LeaderId:               {cluster.controller()}" in shown
    assert ':0"' not in shown


def test_one_node_describes_its_quorum_with_its_address(tmp_path: Path) -> None:
    """A node that is started without any voter in its configuration is the whole quorum."""
    node = start_broker(tmp_path / "data")
    try:
        ended = run_java(str(HERE / "AdminCalls.java"), node.address, "quorum")
        endpoints = [line.split(" ")[1:] for line in ended.stdout.splitlines() if line.startswith("endpoint ")]
        host, _, port = node.address.rpartition(":")
        assert endpoints == [["1", host, port]], ended.stderr
    finally:
        node.kill()


def test_a_voter_that_the_leader_has_not_heard_has_no_end_offset_and_no_time(cluster: QuorumCluster) -> None:
    """The leader has been elected while that voter was down, so it knows nothing of it: Kafka says -1 three times."""
    silent = next(number for number in cluster.nodes if number != cluster.controller())
    cluster[silent].kill()
    try:
        before = cluster.controller()
        cluster[before].kill()
        cluster[before].restart()
        leader = cluster.controller()
        found = {int(words[1]): words[2:] for words in calls(cluster, "quorum", at=leader) if words[0] == "voter"}
        assert found[silent] == ["-1", "-1", "-1"]
        assert int(found[leader][0]) > 0
    finally:
        cluster.repair()


def test_kafkas_dump_reads_our_metadata_log(cluster: QuorumCluster, topic: str) -> None:
    """Control records of the quorum (KIP-595, KIP-853) and metadata records (KIP-631), from the first to the last."""
    for number, node in cluster.nodes.items():
        files = ",".join(sorted(str(path) for path in (node.data / "__cluster_metadata-0").glob("*.log")))
        ended = run_java(f"{TOOLS}.DumpLogSegments", "--cluster-metadata-decoder", "--files", files)
        assert ended.returncode == 0, f"node {number}: {ended.stderr[:2000]}"
        assert "Exception" not in ended.stdout + ended.stderr, f"node {number}: {ended.stderr[:2000]}"
        changes = re.findall(r"LeaderChange(?:Message)?:? (\{.*?\})\s", ended.stdout)
        assert changes, f"node {number}: no change of leader in\n{ended.stdout[:2000]}"
        assert {json.loads(it)["version"] for it in changes} == {0}, f"node {number}"
    assert topic in ended.stdout
