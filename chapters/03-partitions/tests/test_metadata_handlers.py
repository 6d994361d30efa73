"""The administrative handlers, with requests and responses as bytes, in every version."""

from collections.abc import Sequence
from typing import TypeVar

import pytest
from metadata_model import case, create, registered_voter, topic_id

from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import Listener, Proposal, Voter
from minibroker.metadata.broker_commands import RegisterBroker
from minibroker.metadata.config_keys import (
    BROKER_CONFIGS,
    INT,
    TOPIC_CONFIGS,
    ConfigKey,
    ConfigResource,
    ConfigSource,
    KeyTable,
    at_least,
)
from minibroker.metadata.config_resources import RESOURCES, ResourceKind
from minibroker.metadata.configs import NodeConfig, Texts
from minibroker.metadata.decision import RECORDS_PER_COMMAND_MAX, Command
from minibroker.metadata.described import Described
from minibroker.metadata.image import Endpoint, Image
from minibroker.partitions.administration import Administration
from minibroker.partitions.configs import Configurations
from minibroker.partitions.registry import Deferred, Registry, Reply, Session
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Part, Request, Response, decode_whole
from minibroker.wire.tables import alter_configs, incremental_alter_configs
from minibroker.wire.tables.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from minibroker.wire.tables.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from minibroker.wire.tables.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker.wire.tables.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from minibroker.wire.tables.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from minibroker.wire.tables.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from minibroker.wire.tables.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from minibroker.wire.uuids import NO_UUID

NOW_MS = 1_700_000_000_000
R = TypeVar("R")
S = TypeVar("S", bound=Response)


class Broker:
    """The handlers of one broker, without sockets."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self.voter = registered_voter(MemoryFiles())
        self.number = 1000
        self.node = NodeConfig(settings)
        self.registry = Registry()
        self.administration = Administration(self.voter, self.node, new_topic_id=self.fresh_id)
        configurations = Configurations(self.voter, self.node)
        self.registry.add(ApiKey.CREATE_TOPICS, self.administration.create_topics)
        self.registry.add(ApiKey.DELETE_TOPICS, self.administration.delete_topics)
        self.registry.add(ApiKey.CREATE_PARTITIONS, self.administration.create_partitions)
        self.registry.add(ApiKey.DESCRIBE_CONFIGS, configurations.describe)
        self.registry.add(ApiKey.ALTER_CONFIGS, configurations.alter)
        self.registry.add(ApiKey.INCREMENTAL_ALTER_CONFIGS, configurations.alter)
        self.registry.add(ApiKey.LIST_CONFIG_RESOURCES, configurations.list_resources)

    def fresh_id(self) -> bytes:
        self.number += 1
        return topic_id(self.number)

    @property
    def image(self) -> Image:
        return self.voter.image

    def ask(self, request: Request, kind: type[S], version: int | None = None) -> S:
        """Send a request as bytes, and decode its response."""
        key = request.schema.key
        assert key is not None
        version = APIS[key].max_version if version is None else version
        frame = memoryview(joined(frame_request(request, version=version, correlation_id=7, client_id="test")))[4:]
        reply = self.registry.dispatch(frame, now_ms=NOW_MS, session=Session("test"))
        assert isinstance(reply, Reply)
        answer = memoryview(joined(reply.parts))[4:]
        correlation_id, position = read_response_header(key, version, answer)
        assert correlation_id == 7
        return decode_whole(kind, answer, position, version)


def joined(parts: Sequence[Part]) -> bytes:
    assert all(isinstance(part, bytes | bytearray | memoryview) for part in parts)
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def creatable(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: Sequence[CreatableReplicaAssignment] = (),
    **configs: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=list(assignments),
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()],
    )


# CreateTopics


def test_a_topic_is_created_in_every_version() -> None:
    for version in versions(ApiKey.CREATE_TOPICS):
        with case(version):
            broker = Broker()
            request = CreateTopicsRequest(
                topics=[creatable("orders", 3, segment_ms="5")], timeout_ms=1000, validate_only=False
            )
            (topic,) = broker.ask(request, CreateTopicsResponse, version).topics
            assert (topic.name, topic.error_code, topic.error_message) == ("orders", ErrorCode.NONE, None)
            assert len(broker.image.topics["orders"].partitions) == 3
            assert broker.image.topic_configs("orders") == {"segment.ms": "5"}
            if version >= 7:
                assert topic.topic_id == broker.image.topics["orders"].topic_id
            if version >= 5:
                assert (topic.num_partitions, topic.replication_factor) == (3, 1)
                configs = {config.name: (config.value, config.config_source) for config in topic.configs or ()}
                assert configs.keys() == TOPIC_CONFIGS.keys() - {"internal.segment.bytes"}
                assert configs["segment.ms"] == ("5", 1)
                assert configs["flush.ms"][1] == 5


def test_a_refused_topic_has_kafkas_code_a_message_and_no_null_configs() -> None:
    for version in versions(ApiKey.CREATE_TOPICS):
        with case(version):
            topics = [
                creatable("a/b"),
                creatable("good"),
                creatable("twice"),
                creatable("twice"),
                creatable("x", segment_ms=None),
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True)
            broker = Broker()
            answers = {topic.name: topic for topic in broker.ask(request, CreateTopicsResponse, version).topics}
            assert {name: topic.error_code for name, topic in answers.items()} == {
                "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
                "good": ErrorCode.NONE,
                "twice": ErrorCode.INVALID_REQUEST,
                "x": ErrorCode.INVALID_CONFIG,
            }
            assert answers["a/b"].error_message
            assert all(topic.configs is not None for topic in answers.values())
            assert broker.image.topics == {}


def test_default_counts_and_assignments_are_accepted() -> None:
    broker = Broker({"num.partitions": "4"})
    assigned = creatable("b", -1, -1, [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])])
    request = CreateTopicsRequest(topics=[creatable("a", -1, -1), assigned], timeout_ms=1000)
    assert [topic.num_partitions for topic in broker.ask(request, CreateTopicsResponse).topics] == [4, 1]


def test_a_new_topics_configuration_includes_the_brokers_settings() -> None:
    broker = Broker({"log.retention.hours": "1"})
    (topic,) = broker.ask(CreateTopicsRequest(topics=[creatable("a")]), CreateTopicsResponse).topics
    configs = {config.name: (config.value, config.config_source) for config in topic.configs or ()}
    assert configs["retention.ms"] == ("3600000", 4)


def test_more_topics_in_one_request_than_records_in_a_command_are_refused() -> None:
    broker = Broker()
    request = CreateTopicsRequest(topics=[creatable(f"t{number}") for number in range(RECORDS_PER_COMMAND_MAX + 1)])
    answer = broker.ask(request, CreateTopicsResponse)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}
    assert broker.image.topics == {}


def test_a_topic_is_created_on_demand_or_refused_with_a_reason() -> None:
    broker = Broker({"num.partitions": "2"})
    assert broker.administration.create_on_demand(["orders.eu", "other"]) == {}
    assert len(broker.image.topics["orders.eu"].partitions) == 2
    refused = broker.administration.create_on_demand(["orders_eu", "third"])
    assert refused == {"orders_eu": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert "third" in broker.image.topics


# DeleteTopics


def test_topics_are_deleted_in_every_version() -> None:
    for version in versions(ApiKey.DELETE_TOPICS):
        with case(version):
            broker = Broker()
            create(broker.voter, "a", 1)
            create(broker.voter, "b", 2)
            if version >= 6:
                states = [
                    DeleteTopicState(name="a", topic_id=NO_UUID),
                    DeleteTopicState(name=None, topic_id=topic_id(2)),
                    DeleteTopicState(name=None, topic_id=topic_id(3)),
                    DeleteTopicState(name="nope", topic_id=NO_UUID),
                ]
                request = DeleteTopicsRequest(topics=states, timeout_ms=1000)
                expected = [
                    ("a", 0),
                    ("b", 0),
                    (None, ErrorCode.UNKNOWN_TOPIC_ID),
                    ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ]
            else:
                request = DeleteTopicsRequest(topic_names=["a", "b", "nope"], timeout_ms=1000)
                expected = [("a", 0), ("b", 0), ("nope", 3)]
            answer = broker.ask(request, DeleteTopicsResponse, version)
            assert [(topic.name, topic.error_code) for topic in answer.responses] == expected
            assert broker.image.topics == {}


def test_deletion_can_be_disabled() -> None:
    broker = Broker({"delete.topic.enable": "false"})
    create(broker.voter, "a", 1)
    request = DeleteTopicsRequest(topic_names=["a"], timeout_ms=1000)
    assert broker.ask(request, DeleteTopicsResponse, 2).responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert broker.ask(request, DeleteTopicsResponse, 3).responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert "a" in broker.image.topics


# CreatePartitions


def test_topics_grow_in_every_version_and_each_is_answered() -> None:
    for version in versions(ApiKey.CREATE_PARTITIONS):
        with case(version):
            broker = Broker()
            for number, name in enumerate("abc", start=1):
                create(broker.voter, name, number)
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name="a", count=3, assignments=None),
                    CreatePartitionsTopic(name="b", count=1, assignments=None),
                    CreatePartitionsTopic(name="c", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])]),
                    CreatePartitionsTopic(name="nope", count=2, assignments=None),
                ],
                timeout_ms=1000,
                validate_only=False,
            )
            answer = broker.ask(request, CreatePartitionsResponse, version)
            assert [(topic.name, topic.error_code) for topic in answer.results] == [
                ("a", ErrorCode.NONE),
                ("b", ErrorCode.INVALID_PARTITIONS),
                ("c", ErrorCode.NONE),
                ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ]
            assert [len(broker.image.topics[name].partitions) for name in "abc"] == [3, 1, 2]


# DescribeConfigs


def describe(
    broker: Broker, kind: int, name: str, *, version: int | None = None, keys: list[str] | None = None
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    is_new = version is None or version >= 3
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=is_new)
    return broker.ask(request, DescribeConfigsResponse, version).results[0]


def test_a_topic_is_described_in_every_version() -> None:
    for version in versions(ApiKey.DESCRIBE_CONFIGS):
        with case(version):
            broker = Broker()
            create(broker.voter, "orders", 1, configs={"segment.ms": "5"})
            result = describe(broker, ConfigResource.TOPIC, "orders", version=version)
            assert (result.error_code, result.resource_type, result.resource_name) == (0, 2, "orders")
            configs = {config.name: config for config in result.configs}
            assert configs.keys() == TOPIC_CONFIGS.keys() - {"internal.segment.bytes"}
            entry = configs["segment.ms"]
            assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == ("5", 1, False, False)
            assert [(it.name, it.value, it.source) for it in entry.synonyms] == [("segment.ms", "5", 1)]
            if version >= 3:
                assert entry.config_type == 5
                assert entry.documentation == TOPIC_CONFIGS["segment.ms"].about


def test_only_requested_keys_are_described_and_an_empty_list_means_all() -> None:
    broker = Broker()
    create(broker.voter, "orders", 1)
    asked = describe(broker, ConfigResource.TOPIC, "orders", keys=["segment.ms", "no.such", "flush.ms"])
    assert [config.name for config in asked.configs] == ["flush.ms", "segment.ms"]
    assert len(describe(broker, ConfigResource.TOPIC, "orders", keys=[]).configs) == len(TOPIC_CONFIGS) - 1


def test_synonyms_and_documentation_are_sent_only_if_requested() -> None:
    broker = Broker()
    create(broker.voter, "orders", 1)
    resource = DescribeConfigsResource(resource_type=2, resource_name="orders", configuration_keys=None)
    result = broker.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse).results[0]
    assert not any(config.synonyms for config in result.configs)
    assert {config.documentation for config in result.configs} == {None}


def test_a_broker_is_described_by_its_id_and_all_brokers_by_an_empty_name() -> None:
    broker = Broker({"num.partitions": "3"})
    result = describe(broker, ConfigResource.BROKER, "1")
    configs = {config.name: config for config in result.configs}
    assert configs.keys() == {name for name, key in BROKER_CONFIGS.items() if not key.is_internal}
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("3", 4)
    assert configs["num.partitions"].read_only
    assert not configs["log.retention.ms"].read_only
    assert describe(broker, ConfigResource.BROKER, "").configs == []


def test_an_unknown_resource_is_refused_with_kafkas_code() -> None:
    for kind, name, code in [
        (2, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "../x", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (2, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "2", ErrorCode.INVALID_REQUEST),
        (4, "x", ErrorCode.INVALID_REQUEST),
        (8, "1", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ]:
        with case(kind, name, code):
            result = describe(Broker(), kind, name)
            assert (result.error_code, result.configs) == (code, [])
            assert (result.resource_type, result.resource_name) == (kind, name)
            assert result.error_message


# AlterConfigs and IncrementalAlterConfigs


def replacing(name: str, **configs: str | None) -> AlterConfigsRequest:
    changes = [alter_configs.AlterableConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=2, resource_name=name, configs=changes)
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def changing(kind: int, name: str, *changes: tuple[str, int, str | None]) -> IncrementalAlterConfigsRequest:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=text)
        for key, operation, text in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def test_a_configuration_is_replaced_in_every_version() -> None:
    for version in versions(ApiKey.ALTER_CONFIGS):
        with case(version):
            broker = Broker()
            create(broker.voter, "orders", 1, configs={"segment.ms": "5"})
            (answer,) = broker.ask(replacing("orders", flush_ms="6"), AlterConfigsResponse, version).responses
            assert (answer.error_code, answer.resource_type, answer.resource_name) == (0, 2, "orders")
            assert broker.image.topic_configs("orders") == {"flush.ms": "6"}
            (answer,) = broker.ask(replacing("orders", flush_ms="-6"), AlterConfigsResponse, version).responses
            assert answer.error_code == ErrorCode.INVALID_CONFIG
            assert answer.error_message
            (answer,) = broker.ask(replacing("orders", flush_ms=None), AlterConfigsResponse, version).responses
            assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_configuration_is_changed_in_every_version() -> None:
    for version in versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        with case(version):
            broker = Broker()
            create(broker.voter, "orders", 1, configs={"segment.ms": "5", "flush.ms": "6"})
            changes = [("cleanup.policy", 2, "compact"), ("segment.ms", 1, None), ("retention.ms", 0, "7")]
            (answer,) = broker.ask(changing(2, "orders", *changes), IncrementalAlterConfigsResponse, version).responses
            assert answer.error_code == ErrorCode.NONE
            assert broker.image.topic_configs("orders") == {
                "cleanup.policy": "delete,compact",
                "flush.ms": "6",
                "retention.ms": "7",
            }
            bad = changing(2, "orders", ("flush.ms", 0, "8"), ("flush.ms", 9, "8"))
            (answer,) = broker.ask(bad, IncrementalAlterConfigsResponse, version).responses
            assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_another_kind_of_resource_brings_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    table = KeyTable("group")
    key = table.declare(ConfigKey("consumer.session.timeout.ms", INT, "45000", at_least(1), "How long …."))

    def describe_group(image: Image, name: str, node: NodeConfig) -> list[Described]:
        text = image.configs.get((ConfigResource.GROUP, name), {}).get(key.name, key.default)
        return [Described(key, text, ConfigSource.GROUP_CONFIG, [], is_read_only=False)]

    def check_group(image: Image, name: str, configs: Texts, node: NodeConfig) -> None:
        for key_name, text in configs.items():
            table.parse(key_name, text)

    broker = Broker()
    # The finished broker has this kind of resource.
    monkeypatch.delitem(RESOURCES, ConfigResource.GROUP, raising=False)
    request = changing(ConfigResource.GROUP, "readers", (key.name, 0, "6000"))
    (answer,) = broker.ask(request, IncrementalAlterConfigsResponse).responses
    assert answer.error_message == (
        "configurations of a resource of type 32 cannot be changed: 2 is a topic, 4 a broker"
    )

    def group_names(image: Image) -> list[str]:
        return [name for kind, name in image.configs if kind is ConfigResource.GROUP]

    monkeypatch.setitem(RESOURCES, ConfigResource.GROUP, ResourceKind(table, group_names, describe_group, check_group))
    (answer,) = broker.ask(request, IncrementalAlterConfigsResponse).responses
    assert answer.error_code == ErrorCode.NONE
    (config,) = describe(broker, ConfigResource.GROUP, "readers").configs
    assert (config.name, config.value, config.config_source) == (key.name, "6000", 8)
    assert listed(broker, 32) == [(32, "readers")]


# ListConfigResources


def listed(broker: Broker, *types: int) -> list[tuple[int, str]]:
    answer = broker.ask(ListConfigResourcesRequest(resource_types=list(types)), ListConfigResourcesResponse)
    assert answer.error_code == ErrorCode.NONE
    return [(it.resource_type, it.resource_name) for it in answer.config_resources]


def test_resources_are_listed_by_type_and_no_type_means_all() -> None:
    broker = Broker()
    create(broker.voter, "orders", 1)
    create(broker.voter, "invoices", 2)
    topics, brokers = [(2, "invoices"), (2, "orders")], [(4, "1")]
    assert listed(broker) == brokers + topics
    assert listed(broker, 2) == topics
    assert listed(broker, 4) == brokers
    assert listed(broker, 2, 4, 2) == brokers + topics
    # These have no configurations here.
    assert listed(broker, 8, 16, 32) == []


def test_only_client_metrics_are_listed_in_version_0() -> None:
    broker = Broker()
    create(broker.voter, "orders", 1)
    answer = broker.ask(ListConfigResourcesRequest(), ListConfigResourcesResponse, 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.NONE, [])


def test_a_resource_type_that_kafka_does_not_list_is_an_unsupported_version() -> None:
    broker = Broker()
    create(broker.voter, "orders", 1)
    for kind in (0, 1, 3, 64, -1):
        request = ListConfigResourcesRequest(resource_types=[2, kind])
        answer = broker.ask(request, ListConfigResourcesResponse)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, []), kind


# Live changes


def test_a_running_broker_at_most_halves_or_doubles_a_pool_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ConfigKey("our.threads", INT, "1", at_least(0), "How many threads.", is_dynamic=True, is_thread_count=True)
    monkeypatch.setitem(BROKER_CONFIGS, key.name, key)
    monkeypatch.setitem(BROKER_CONFIGS.defaults, key.name, 1)
    broker = Broker({"our.threads": "8"})

    def change(count: int, name: str = "1") -> str | None:
        (answer,) = broker.ask(changing(4, name, (key.name, 0, str(count))), IncrementalAlterConfigsResponse).responses
        assert answer.error_code == (ErrorCode.INVALID_REQUEST if answer.error_message else ErrorCode.NONE)
        return answer.error_message

    failed = "Dynamic thread count update validation failed for our.threads="
    for name in ("1", ""):
        assert change(0, name) == f"{failed}0, value should be at least 1"
        assert change(3, name) == f"{failed}3, value should be at least half the current value 8"
        assert change(900, name) == f"{failed}900, value should not be greater than double the current value 8"
    assert change(16) is None
    # The current value counts, not the one that the broker was started with.
    assert change(17) is None
    assert change(35) == f"{failed}35, value should not be greater than double the current value 17"
    # The threads of another broker are checked by that broker.
    broker.voter.propose(RegisterBroker(2, [Endpoint("PLAINTEXT", "127.0.0.1", 9093)], topic_id(98)))
    assert change(900, "2") is None


def test_a_brokers_change_is_seen_by_its_topics_at_once() -> None:
    broker = Broker({"log.retention.ms": "1000"})
    create(broker.voter, "orders", 1)
    for name, text, source in (("", "2000", 3), ("1", "3000", 2)):
        (answer,) = broker.ask(
            changing(4, name, ("log.retention.ms", 0, text)), IncrementalAlterConfigsResponse
        ).responses
        assert answer.error_code == ErrorCode.NONE
        (config,) = describe(broker, 2, "orders", keys=["retention.ms"]).configs
        assert (config.value, config.config_source) == (text, source)
        (config,) = describe(broker, 4, "1", keys=["log.retention.ms"]).configs
        assert (config.value, config.config_source) == (text, source)
    (config,) = describe(broker, 4, "").configs
    assert (config.name, config.value, config.config_source) == ("log.retention.ms", "2000", 3)


# A slow authority


class Slow:
    """An authority that decides later, as a quorum does."""

    def __init__(self, voter: Voter) -> None:
        self.voter = voter
        self.pending: list[object] = []

    @property
    def image(self) -> Image:
        return self.voter.image

    def propose(self, command: Command[R]) -> Proposal[R]:
        proposal: Proposal[R] = Proposal()
        self.pending.append(lambda: proposal.complete(self.voter.propose(command).result))
        return proposal

    def subscribe(self, listener: Listener) -> None:
        self.voter.subscribe(listener)


def test_an_answer_waits_for_a_slow_authority() -> None:
    slow = Slow(registered_voter(MemoryFiles()))
    administration = Administration(slow, NodeConfig(), new_topic_id=lambda: topic_id(5))
    registry = Registry()
    registry.add(ApiKey.CREATE_TOPICS, administration.create_topics)
    request = CreateTopicsRequest(topics=[creatable("orders")], timeout_ms=1000)
    frame = memoryview(joined(frame_request(request, version=7, correlation_id=7, client_id="test")))[4:]
    deferred = registry.dispatch(frame, now_ms=NOW_MS, session=Session("test"))
    assert isinstance(deferred, Deferred)
    assert deferred.wait.attempt() is None
    late = deferred.wait.expire()
    assert isinstance(late, CreateTopicsResponse)
    assert late.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    for decide_now in slow.pending:
        assert callable(decide_now)
        decide_now()
    answer = deferred.wait.attempt()
    assert isinstance(answer, CreateTopicsResponse)
    assert answer.topics[0].error_code == ErrorCode.NONE
    administration.create_on_demand("later")
    assert "later" not in slow.image.topics
