"""Administration by stock clients: topics, partitions, configurations, records and the cluster, with Kafka's codes."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin import RecordsToDelete as AioRecordsToDelete
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.structs import TopicPartition as AioTopicPartition
from brokers import IS_OURS, Broker, StartBroker, eventually, unique
from cases import case
from clients_stock import (
    READ_S_MAX,
    Message,
    admin,
    bounds,
    confluent_consumer,
    confluent_read,
    confluent_write,
    create_topic,
    kcat,
    python_consumer,
)
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.errors import for_code

pytest_plugins = ["clients_fixtures"]

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
OFFSET_OUT_OF_RANGE = 1

# librdkafka asks for metadata first and has codes of its own for unknown topics and partitions.
NOWHERE = (UNKNOWN_TOPIC_OR_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT)
INVALID_NAMES = ["", ".", "..", "a/b", "../x", "with space", "ü", "a" * 250, "nul\x00l", "a:b", "a\\b"]


@pytest.fixture
def client(broker: Broker) -> AdminClient:
    return admin(broker.address)


@contextlib.contextmanager
def python_admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        yield client
    finally:
        client.close()


def code_of(future: "Future[Any]") -> int:
    """The error code of an answer; 0 if there is no error."""
    try:
        future.result(READ_S_MAX)
    except KafkaException as failure:
        return int(failure.args[0].code())
    return 0


def create(client: AdminClient, topic: str, partitions: int = 1, replicas: int = 1, **more: Any) -> int:
    only = {"validate_only": True} if more.pop("validate_only", False) else {}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, **more)
    code = code_of(client.create_topics([new], **only)[topic])
    if code == 0 and not only:
        # A broker may answer before it has heard of its own topic.
        eventually(lambda: is_listed(client, topic), "the topic is listed")
    return code


def topic_config(client: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = client.describe_configs([resource])[resource].result(READ_S_MAX)
    return found


def source(entry: ConfigEntry) -> ConfigSource:
    """The source of a value; the client returns a number where it promises an enum."""
    return ConfigSource(entry.source)


def alter(client: AdminClient, topic: str, *changes: tuple[str, AlterConfigOpType, str | None], **options: Any) -> int:
    entries = [ConfigEntry(name, value, incremental_operation=operation) for name, operation, value in changes]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return code_of(client.incremental_alter_configs([resource], **options)[resource])


def is_listed(client: AdminClient, topic: str) -> bool:
    return topic in client.list_topics(timeout=READ_S_MAX).topics


# Create


def test_a_topic_is_created_and_described(client: AdminClient) -> None:
    topic = unique("created")
    assert create(client, topic, partitions=4) == 0
    described = client.describe_topics(TopicCollection([topic]))[topic].result(READ_S_MAX)
    assert described.name == topic
    assert not described.is_internal
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    for partition in described.partitions:
        assert [node.id for node in partition.replicas] == [node.id for node in partition.isr] == [partition.leader.id]
    assert str(described.topic_id) != str(uuid.UUID(int=0))


def test_a_topic_is_created_with_configs(client: AdminClient) -> None:
    topic = unique("configs")
    given = {
        "retention.ms": "123456",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "1048576",
        "min.compaction.lag.ms": "5",
    }
    assert create(client, topic, config=given) == 0
    found = topic_config(client, topic)
    assert {name: found[name].value for name in given} == given
    assert {source(found[name]) for name in given} == {ConfigSource.DYNAMIC_TOPIC_CONFIG}
    assert found["retention.bytes"].value == "-1"
    assert found["retention.bytes"].is_default


def test_the_default_partition_count_is_the_brokers(client: AdminClient) -> None:
    topic = unique("default")
    assert create(client, topic, partitions=-1, replicas=-1) == 0
    assert len(client.list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions) == 1


def test_a_topic_that_is_only_validated_is_not_created(client: AdminClient) -> None:
    topic = unique("validated")
    assert create(client, topic, validate_only=True) == 0
    assert create(client, topic, partitions=0, validate_only=True) == INVALID_PARTITIONS
    assert not is_listed(client, topic)
    assert create(client, topic) == 0
    assert create(client, topic, validate_only=True) == TOPIC_ALREADY_EXISTS


def test_a_topic_exists_only_once(client: AdminClient) -> None:
    topic = unique("once")
    assert create(client, topic) == 0
    assert create(client, topic, partitions=9) == TOPIC_ALREADY_EXISTS


def test_names_that_differ_only_in_dots_and_underscores_collide(client: AdminClient) -> None:
    """Kafka's metrics cannot tell them apart."""
    topic = unique("a.b")
    assert create(client, topic) == 0
    assert create(client, topic.replace(".", "_")) == INVALID_TOPIC


def test_an_invalid_name_is_refused(broker: Broker) -> None:
    """Asked by kafka-python, since librdkafka refuses some of them itself."""
    for name in INVALID_NAMES:
        with case(name):
            with python_admin(broker) as client:
                answer = client.create_topics(
                    {name: {"num_partitions": 1, "replication_factor": 1}}, raise_errors=False
                )
            (topic,) = answer["topics"]
            assert topic["error_code"] == INVALID_TOPIC
            assert topic["error_message"]


def test_the_longest_name_is_249_characters(client: AdminClient) -> None:
    topic = unique("long") + "-"
    topic += "x" * (249 - len(topic))
    assert create(client, topic) == 0
    assert create(client, topic + "x") == INVALID_TOPIC


def test_a_topic_needs_partitions(broker: Broker) -> None:
    for partitions in (0, -2):
        with case(partitions):
            topic = unique("partitions")
            with python_admin(broker) as client:
                answer = client.create_topics({topic: {"num_partitions": partitions}}, raise_errors=False)
            assert answer["topics"][0]["error_code"] == INVALID_PARTITIONS


def test_a_topic_cannot_have_more_replicas_than_brokers(broker: Broker) -> None:
    for replicas in (0, 2, 100):
        with case(replicas):
            topic = unique("replicas")
            with python_admin(broker) as client:
                wanted = {topic: {"num_partitions": 1, "replication_factor": replicas}}
                answer = client.create_topics(wanted, raise_errors=False)
            assert answer["topics"][0]["error_code"] == INVALID_REPLICATION_FACTOR


def test_an_invalid_config_is_refused(client: AdminClient) -> None:
    for config in (
        {"retention.ms": "soon"},
        {"retention.ms": "-5"},
        {"cleanup.policy": "shred"},
        {"compression.type": "rar"},
        {"message.timestamp.type": "MyTime"},
        {"segment.bytes": "1"},
        {"max.message.bytes": "-1"},
        {"min.cleanable.dirty.ratio": "1.5"},
        {"no.such.config": "1"},
    ):
        with case(config):
            topic = unique("config")
            assert create(client, topic, config=config) == INVALID_CONFIG
            assert not is_listed(client, topic)


def test_a_topic_is_created_with_a_replica_assignment(client: AdminClient) -> None:
    (node,) = client.list_topics(timeout=READ_S_MAX).brokers
    topic = unique("assigned")
    new = NewTopic(topic, num_partitions=2, replica_assignment=[[node], [node]])
    assert code_of(client.create_topics([new])[topic]) == 0
    assert len(client.list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions) == 2
    unknown = NewTopic(topic + "x", num_partitions=1, replica_assignment=[[node + 50]])
    assert code_of(client.create_topics([unknown])[topic + "x"]) == INVALID_REPLICA_ASSIGNMENT


def test_one_invalid_topic_does_not_affect_the_others_of_its_request(client: AdminClient) -> None:
    good, bad, other = unique("good"), unique("bad"), unique("other")
    wanted = [NewTopic(good, 1, 1), NewTopic(bad, 1, 1, config={"retention.ms": "x"}), NewTopic(other, 2, 1)]
    answers = client.create_topics(wanted)
    assert [code_of(answers[name]) for name in (good, bad, other)] == [0, INVALID_CONFIG, 0]


def test_a_topic_named_twice_in_a_request_is_refused(broker: Broker) -> None:
    from kafka.protocol.admin import CreateTopicsRequest

    topic = unique("twice")
    with python_admin(broker) as client:
        new = CreateTopicsRequest.CreatableTopic
        wanted = [new(name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for _ in range(2)]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=10_000, validate_only=False)
        answer = client._manager.run(client._send_request_to_controller, request, lambda _: (), False)
    assert {one.error_code for one in answer.topics} == {INVALID_REQUEST}


def test_topics_of_the_other_clients(broker: Broker) -> None:
    first, second = unique("python"), unique("aio")
    with python_admin(broker) as client:
        answer = client.create_topics({first: {"num_partitions": 3, "configs": {"retention.ms": "777000"}}})
        (created,) = answer["topics"]
        assert (created["num_partitions"], created["replication_factor"]) == (3, 1)
        assert created["configs"]["retention.ms"]["value"] == "777000"
        client.wait_for_topics([first])
        assert first in client.list_topics()
        (described,) = client.describe_topics([first])
        assert [one["partition_index"] for one in described["partitions"]] == [0, 1, 2]
        # By its id, which Metadata v12 and later can look up.
        (by_id,) = client.describe_topics([uuid.UUID(described["topic_id"])])
        assert by_id["name"] == first
        paged = client.describe_topic_partitions([first], response_partition_limit=2)
        assert len(paged["topics"][0]["partitions"]) == 2
        assert paged["next_cursor"] == {"topic_name": first, "partition_index": 2}
        rest = client.describe_topic_partitions([first], cursor=paged["next_cursor"])
        assert [one["partition_index"] for one in rest["topics"][0]["partitions"]] == [2]
        assert rest["next_cursor"] is None

    async def with_aiokafka() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        try:
            await client.create_topics([AioNewTopic(second, 2, 1, topic_configs={"retention.ms": "777000"})])
            await client.create_partitions({second: AioNewPartitions(5)})
            (described,) = await client.describe_topics([second])
            assert len(described["partitions"]) == 5
            assert second in await client.list_topics()
            assert (await client.describe_cluster())["brokers"]
            resource = AioConfigResource(AioConfigResourceType.TOPIC, second, {"retention.ms": "888000"})
            await client.alter_configs([resource])
            (answer,) = await client.describe_configs([resource])
            ((_, _, _, _, entries),) = answer.resources
            assert entries[0][:2] == ("retention.ms", "888000")
            await client.delete_topics([second])
        finally:
            await client.close()

    asyncio.run(with_aiokafka())


# Describe


def test_an_unknown_topic_is_unknown(broker: Broker, client: AdminClient) -> None:
    topic = unique("unknown")
    assert code_of(client.describe_topics(TopicCollection([topic]))[topic]) == UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(client.delete_topics([topic])[topic]) == UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(client.create_partitions([NewPartitions(topic, 2)])[topic]) == UNKNOWN_TOPIC_OR_PARTITION
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert code_of(client.describe_configs([resource])[resource]) == UNKNOWN_TOPIC_OR_PARTITION
    assert alter(client, topic, ("retention.ms", AlterConfigOpType.SET, "1000")) == UNKNOWN_TOPIC_OR_PARTITION
    where = TopicPartition(topic, 0, 1)
    assert code_of(client.delete_records([where])[where]) in NOWHERE
    assert not is_listed(client, topic)


def test_a_partition_beyond_the_last_is_unknown(broker: Broker, client: AdminClient) -> None:
    topic = create_topic(broker.address, unique("beyond"), partitions=2)
    where = TopicPartition(topic, 2)
    assert code_of(client.list_offsets({where: OffsetSpec.latest()})[where]) in NOWHERE
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(b"v")], partition=2, **{"message.timeout.ms": 3000})
    assert refused.value.args[0].code() in NOWHERE


def test_the_cluster_is_described(broker: Broker, client: AdminClient) -> None:
    cluster = client.describe_cluster().result(READ_S_MAX)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.address]
    assert cluster.controller.id == cluster.nodes[0].id
    assert client.list_topics(timeout=READ_S_MAX).cluster_id == cluster.cluster_id
    with python_admin(broker) as python:
        described = python.describe_cluster()
        assert described["cluster_id"] == cluster.cluster_id
        assert [node["broker_id"] for node in described["brokers"]] == [cluster.controller.id]


def test_without_an_authorizer_a_client_may_do_everything(broker: Broker, client: AdminClient) -> None:
    """KIP-430: the operations that make sense for a topic, and for the cluster."""
    topic = create_topic(broker.address, unique("authorized"))
    asked = client.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    on_topic = {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
    assert {it.name for it in asked[topic].result(READ_S_MAX).authorized_operations} == on_topic
    cluster = client.describe_cluster(include_authorized_operations=True).result(READ_S_MAX)
    on_cluster = on_topic - {"READ", "WRITE", "DELETE"} | {"CLUSTER_ACTION", "IDEMPOTENT_WRITE"}
    assert {it.name for it in cluster.authorized_operations} == on_cluster


def test_log_dirs_are_described_with_sizes(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("dirs"), partitions=2)
    confluent_write(broker.address, topic, [Message(b"x" * 1000)] * 10, partition=1)
    with python_admin(broker) as client:
        ((_, log_dirs),) = (tuple(one.values()) for one in client.describe_log_dirs({topic: [0, 1]}))
    (directory,) = log_dirs
    assert directory["error_code"] == 0
    (found,) = [one for one in directory["topics"] if one["name"] == topic]
    sizes = {one["partition_index"]: one["partition_size"] for one in found["partitions"]}
    assert sizes[0] == 0
    assert 10_000 <= sizes[1] < 20_000
    assert {one["offset_lag"] for one in found["partitions"]} == {0}


def test_kcat_lists_the_cluster(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("listed"), partitions=3)
    printed = kcat("-L", "-b", broker.address).decode()
    assert f'topic "{topic}" with 3 partitions:' in printed
    assert f"at {broker.address} (controller)" in printed


# Configurations


def test_defaults_are_kafkas(client: AdminClient) -> None:
    topic = unique("defaults")
    assert create(client, topic) == 0
    found = {name: entry.value for name, entry in topic_config(client, topic).items()}
    kafkas = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }
    assert {name: found.get(name) for name in kafkas} == kafkas


def test_configs_change_one_by_one(client: AdminClient) -> None:
    topic = unique("incremental")
    assert create(client, topic, config={"retention.ms": "1000000", "segment.ms": "2000000"}) == 0
    assert alter(client, topic, ("retention.ms", AlterConfigOpType.SET, "3000000")) == 0
    eventually(lambda: topic_config(client, topic)["retention.ms"].value == "3000000", "the new value")
    assert topic_config(client, topic)["segment.ms"].value == "2000000"
    assert alter(client, topic, ("segment.ms", AlterConfigOpType.DELETE, None)) == 0
    eventually(lambda: topic_config(client, topic)["segment.ms"].value == "604800000", "the default")
    assert alter(client, topic, ("cleanup.policy", AlterConfigOpType.APPEND, "compact")) == 0
    eventually(lambda: topic_config(client, topic)["cleanup.policy"].value == "delete,compact", "both policies")
    assert alter(client, topic, ("cleanup.policy", AlterConfigOpType.SUBTRACT, "delete")) == 0
    eventually(lambda: topic_config(client, topic)["cleanup.policy"].value == "compact", "one policy")


def test_an_invalid_change_of_a_config_is_refused_and_changes_nothing(client: AdminClient) -> None:
    topic = unique("invalid")
    assert create(client, topic, config={"retention.ms": "1000000"}) == 0
    for name, operation, value in [
        ("retention.ms", AlterConfigOpType.SET, "never"),
        ("no.such.config", AlterConfigOpType.SET, "1"),
        ("retention.ms", AlterConfigOpType.APPEND, "1"),
        ("cleanup.policy", AlterConfigOpType.APPEND, "shred"),
    ]:
        assert alter(client, topic, (name, operation, value)) == INVALID_CONFIG
    good, bad = ("segment.ms", AlterConfigOpType.SET, "99000"), ("retention.ms", AlterConfigOpType.SET, "-7")
    assert alter(client, topic, good, bad) == INVALID_CONFIG
    found = topic_config(client, topic)
    assert (found["retention.ms"].value, found["segment.ms"].value) == ("1000000", "604800000")


def test_a_change_that_is_only_validated_changes_nothing(client: AdminClient) -> None:
    topic = unique("validated")
    assert create(client, topic) == 0
    assert alter(client, topic, ("retention.ms", AlterConfigOpType.SET, "5000"), validate_only=True) == 0
    assert alter(client, topic, ("retention.ms", AlterConfigOpType.SET, "x"), validate_only=True) == INVALID_CONFIG
    assert topic_config(client, topic)["retention.ms"].is_default


def test_legacy_alter_replaces_all_configs(broker: Broker, client: AdminClient) -> None:
    topic = unique("legacy")
    assert create(client, topic, config={"retention.ms": "1000000", "segment.ms": "2000000"}) == 0
    with python_admin(broker) as python:
        resource = PythonConfigResource("TOPIC", topic, {"retention.ms": "5000000"})
        python.alter_configs([resource], incremental=False)
        eventually(lambda: topic_config(client, topic)["retention.ms"].value == "5000000", "the new value")

    async def with_aiokafka() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        try:
            await client.alter_configs([AioConfigResource(AioConfigResourceType.TOPIC, topic, {"segment.ms": "77000"})])
        finally:
            await client.close()

    asyncio.run(with_aiokafka())
    eventually(lambda: topic_config(client, topic)["segment.ms"].value == "77000", "the new value")
    assert topic_config(client, topic)["retention.ms"].is_default


def test_broker_configs_are_described(broker: Broker, client: AdminClient) -> None:
    (node,) = client.list_topics(timeout=READ_S_MAX).brokers
    resource = ConfigResource(ResourceType.BROKER, str(node))
    found = client.describe_configs([resource])[resource].result(READ_S_MAX)
    assert found["log.retention.check.interval.ms"].value == "200"
    assert source(found["log.retention.check.interval.ms"]) == ConfigSource.STATIC_BROKER_CONFIG
    assert found["message.max.bytes"].value == "1048588"
    assert found["message.max.bytes"].is_default


def test_only_the_configs_asked_for_are_described(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("asked"))
    with python_admin(broker) as client:
        resource = PythonConfigResource("TOPIC", topic, ["retention.ms", "max.message.bytes"])
        found = client.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][topic]
    assert set(found) == {"retention.ms", "max.message.bytes"}
    assert found["retention.ms"]["config_type"] == "LONG"
    synonym = {"name": "message.max.bytes", "value": "1048588", "source": "DEFAULT_CONFIG"}
    assert found["max.message.bytes"]["synonyms"] == [synonym]


def test_configurable_resources_are_listed(broker: Broker) -> None:
    # KIP-1142.
    topic = create_topic(broker.address, unique("listed"))
    with python_admin(broker) as client:
        found = client.list_config_resources()
        assert set(found) == {"broker", "topic"}
        assert topic in found["topic"]
        assert client.list_config_resources(["BROKER"]) == {"broker": found["broker"]}


def test_features_are_described(broker: Broker) -> None:
    # KIP-584, as kafka-features.sh shows them.
    with python_admin(broker) as client:
        found = client.describe_features()
    levels = {"metadata.version", "group.version", "transaction.version", "eligible.leader.replicas.version"}
    assert set(found) == levels
    assert found["group.version"]["finalized"] == (1, 1)
    assert found["transaction.version"]["finalized"] == (2, 2)
    assert found["metadata.version"]["supported"] == found["metadata.version"]["finalized"] == (7, 7)
    assert found["metadata.version"]["finalized_epoch"] >= 0


def test_a_live_change_of_threads_is_refused_beyond_half_and_double(broker: Broker, client: AdminClient) -> None:
    (node,) = client.list_topics(timeout=READ_S_MAX).brokers
    for count in ("0", "900"):
        entry = ConfigEntry("log.cleaner.threads", count, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
        with pytest.raises(KafkaException, match=r"thread count update validation failed for log\.cleaner\.threads"):
            client.incremental_alter_configs([resource])[resource].result(READ_S_MAX)


# Partitions


def test_a_topic_grows_and_never_shrinks(broker: Broker, client: AdminClient) -> None:
    topic = create_topic(broker.address, unique("grow"), partitions=2)
    confluent_write(broker.address, topic, [Message(b"old")], partition=1)

    def grow(count: int, **options: Any) -> int:
        return code_of(client.create_partitions([NewPartitions(topic, count)], **options)[topic])

    assert grow(5, validate_only=True) == 0
    assert grow(5) == 0
    eventually(lambda: len(client.list_topics(topic).topics[topic].partitions) == 5, "five partitions")
    assert [grow(count) for count in (5, 4, 1)] == [INVALID_PARTITIONS] * 3
    confluent_write(broker.address, topic, [Message(b"new")], partition=4)
    assert [one.value for one in confluent_read(broker.address, topic, 1, partition=4)] == [b"new"]
    assert [one.value for one in confluent_read(broker.address, topic, 1, partition=1)] == [b"old"]


def test_growing_names_every_topic_in_its_answer(broker: Broker) -> None:
    topics = [create_topic(broker.address, unique("grow")) for _ in range(3)]
    with python_admin(broker) as client:
        answer = client.create_partitions(dict.fromkeys(topics, 3), raise_errors=False)
        assert {(one.name, one.error_code) for one in answer.results} == {(topic, 0) for topic in topics}
        refused = client.create_partitions(dict.fromkeys(topics, 2), raise_errors=False)
        assert {one.error_code for one in refused.results} == {INVALID_PARTITIONS}
        assert all(one.error_message for one in refused.results)


# Delete


def test_a_deleted_topic_is_gone_and_its_name_is_free(broker: Broker, client: AdminClient) -> None:
    topic = create_topic(broker.address, unique("deleted"))
    confluent_write(broker.address, topic, [Message(b"old")] * 10)
    first_id = str(client.describe_topics(TopicCollection([topic]))[topic].result(READ_S_MAX).topic_id)
    assert code_of(client.delete_topics([topic])[topic]) == 0
    eventually(lambda: not is_listed(client, topic), "the topic is gone")
    assert code_of(client.describe_topics(TopicCollection([topic]))[topic]) == UNKNOWN_TOPIC_OR_PARTITION
    assert create(client, topic) == 0
    second_id = str(client.describe_topics(TopicCollection([topic]))[topic].result(READ_S_MAX).topic_id)
    assert second_id != first_id
    assert confluent_write(broker.address, topic, [Message(b"new")]) == [0]
    assert [one.value for one in confluent_read(broker.address, topic, 1)] == [b"new"]


def test_a_topic_is_deleted_by_its_id(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("byid"))
    with python_admin(broker) as client:
        (described,) = client.describe_topics([topic])
        topic_id = uuid.UUID(described["topic_id"])
        answer = client.delete_topics([topic_id])
        assert answer["topics"][0]["error_code"] == 0
        eventually(lambda: topic not in client.list_topics(), "the topic is gone")
        again = client.delete_topics([topic_id], raise_errors=False)
        assert for_code(again["topics"][0]["error_code"]).__name__ == "UnknownTopicIdError"


def test_a_producer_goes_on_after_its_topic_was_made_anew(broker: Broker, client: AdminClient) -> None:
    from clients_stock import confluent_producer

    topic = create_topic(broker.address, unique("anew"))
    producer = confluent_producer(broker.address, **{"linger.ms": 0, "topic.metadata.refresh.interval.ms": 200})
    producer.produce(topic, b"first")
    assert producer.flush(READ_S_MAX) == 0
    assert code_of(client.delete_topics([topic])[topic]) == 0
    eventually(lambda: not is_listed(client, topic), "the topic is gone")
    # The producer asks for its topic all the time, and may be the one that creates it.
    assert create(client, topic) in (0, TOPIC_ALREADY_EXISTS)

    def has_arrived() -> bool:
        producer.produce(topic, b"second")
        producer.flush(READ_S_MAX)
        return bounds(broker.address, topic)[1] > 0

    eventually(has_arrived, "a record in the new topic")


# Records


def test_deleted_records_move_the_first_offset(broker: Broker, client: AdminClient) -> None:
    topic = create_topic(broker.address, unique("records"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(20)])

    def delete(offset: int) -> tuple[int, int]:
        where = TopicPartition(topic, 0, offset)
        future = client.delete_records([where])[where]
        code = code_of(future)
        return code, -1 if code else future.result().low_watermark

    assert delete(7) == (0, 7)
    assert bounds(broker.address, topic) == (7, 20)
    assert [one.value for one in confluent_read(broker.address, topic, 13, 7)] == [b"%d" % n for n in range(7, 20)]
    # A lower offset is no error and restores nothing; an offset beyond the end is an error.
    assert delete(3) == (0, 7)
    assert delete(21)[0] == OFFSET_OUT_OF_RANGE
    assert delete(-1) == (0, 20)  # up to the end
    assert bounds(broker.address, topic) == (20, 20)
    assert confluent_write(broker.address, topic, [Message(b"20")]) == [20]


def test_deleted_records_are_out_of_range_for_a_reader(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("records"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(10)])
    with python_admin(broker) as client:
        where = PythonTopicPartition(topic, 0)
        assert client.delete_records({where: 4})[where]["low_watermark"] == 4
    # Each client resets its position, or gets the error where it does not want that.
    assert confluent_read(broker.address, topic, 1, 0, **{"auto.offset.reset": "earliest"})[0].offset == 4
    with pytest.raises(KafkaException):
        confluent_read(broker.address, topic, 1, 0, **{"auto.offset.reset": "error"})
    consumer = python_consumer(broker.address, auto_offset_reset="earliest")
    try:
        consumer.assign([where])
        consumer.seek(where, 0)
        assert next(consumer).offset == 4
        assert consumer.beginning_offsets([where]) == {where: 4}
    finally:
        consumer.close()


def test_records_are_deleted_by_aiokafka(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("records"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(10)])

    async def delete() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await client.start()
        try:
            where = AioTopicPartition(topic, 0)
            assert await client.delete_records({where: AioRecordsToDelete(before_offset=6)}) == {where: 6}
        finally:
            await client.close()

    asyncio.run(delete())
    assert bounds(broker.address, topic) == (6, 10)


# Creation on first use


def test_producing_to_a_topic_creates_it(broker: Broker) -> None:
    topic = unique("auto")
    kcat("-P", "-b", broker.address, "-t", topic, given=b"value\n")
    assert [one.value for one in confluent_read(broker.address, topic, 1)] == [b"value"]


def test_a_consumer_that_does_not_allow_it_creates_no_topic(broker: Broker, client: AdminClient) -> None:
    topic = unique("noauto")
    consumer = confluent_consumer(broker.address, **{"allow.auto.create.topics": False})
    try:
        with pytest.raises(KafkaException) as refused:
            consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
        assert refused.value.args[0].code() in NOWHERE
        found = consumer.list_topics(topic, timeout=READ_S_MAX).topics[topic]
        assert found.error.code() == UNKNOWN_TOPIC_OR_PARTITION
    finally:
        consumer.close()
    assert not is_listed(client, topic)


def test_no_topic_is_created_on_use_with_auto_create_off(start: StartBroker) -> None:
    broker = start("auto.create.topics.enable=false")
    client = admin(broker.address)
    topic = unique("off")
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(b"v")], **{"message.timeout.ms": 1000})
    assert refused.value.args[0].code() in (
        UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._MSG_TIMED_OUT,
    )
    assert not is_listed(client, topic)
    assert create(client, topic) == 0
    assert confluent_write(broker.address, topic, [Message(b"v")]) == [0]


def test_settings_of_the_broker_are_the_defaults_of_topics(start: StartBroker) -> None:
    broker = start("num.partitions=3", "log.retention.ms=7000000", "message.max.bytes=5000", "compression.type=zstd")
    client = admin(broker.address)
    topic = unique("settings")
    confluent_write(broker.address, topic, [Message(b"v")], partition=2)
    assert len(client.list_topics(topic).topics[topic].partitions) == 3
    found = topic_config(client, topic)
    assert {name: found[name].value for name in ("retention.ms", "max.message.bytes", "compression.type")} == {
        "retention.ms": "7000000",
        "max.message.bytes": "5000",
        "compression.type": "zstd",
    }
    assert source(found["retention.ms"]) == ConfigSource.STATIC_BROKER_CONFIG
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(bytes(range(256)) * 40)])
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.skipif(not IS_OURS, reason="about our files")
def test_topics_configs_and_ids_survive_a_restart(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("kept"), partitions=3, retention_ms=123_000)
    gone = create_topic(broker.address, unique("gone"))
    client = admin(broker.address)
    assert code_of(client.delete_topics([gone])[gone]) == 0
    before = client.describe_topics(TopicCollection([topic]))[topic].result(READ_S_MAX)
    cluster_id = client.list_topics().cluster_id
    broker.stop()
    broker.restart()
    client = admin(broker.address)
    after = client.describe_topics(TopicCollection([topic]))[topic].result(READ_S_MAX)
    assert str(after.topic_id) == str(before.topic_id)
    assert len(after.partitions) == 3
    assert topic_config(client, topic)["retention.ms"].value == "123000"
    assert client.list_topics().cluster_id == cluster_id
    assert not is_listed(client, gone)


# The quorum


def test_the_quorum_of_one_node_has_a_voter_with_an_address(broker: Broker) -> None:
    """KIP-836, KIP-853: the voter has everything, now, and its listener can be reached."""
    with python_admin(broker) as client:
        found = client.describe_metadata_quorum()
    (partition,) = found["topics"][0]["partitions"]
    (voter,) = partition["current_voters"]
    assert voter["log_end_offset"] >= partition["high_watermark"] > 0
    assert voter["last_caught_up_timestamp"] == voter["last_fetch_timestamp"] > 0
    (node,) = found["nodes"]
    if IS_OURS:
        assert [f"{it['host']}:{it['port']}" for it in node["listeners"]] == [broker.address]
    assert all(it["port"] > 0 for it in node["listeners"])
