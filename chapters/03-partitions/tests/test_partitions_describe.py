"""Metadata, DescribeCluster, ListOffsets, InitProducerId, FindCoordinator, OffsetFetch, ApiVersions: every version."""

from typing import Any

import pytest
from partitions_broker import NOW_MS, MemoryBroker, batch

from minibroker.broker.apis import declare_every_api
from minibroker.metadata.records import SUPPORTED_FEATURES, LevelRange
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Registry, Reply, Session
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from minibroker.wire.uuids import NO_UUID


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.create("orders", 3)
    broker.create("other")
    return broker


# Metadata -------------------------------------------------------------------------------------------------------------


def test_metadata_names_the_brokers_and_the_leaders(broker: MemoryBroker) -> None:
    for version in versions(ApiKey.METADATA):
        response = broker.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), version)
        assert [(it.node_id, it.host, it.port) for it in response.brokers] == [(1, "127.0.0.1", 9092)], version
        (topic,) = response.topics
        assert (topic.error_code, topic.name) == (ErrorCode.NONE, "orders"), version
        partitions = [
            (it.partition_index, it.leader_id, it.replica_nodes, it.isr_nodes, it.error_code) for it in topic.partitions
        ]
        assert partitions == [(index, 1, [1], [1], ErrorCode.NONE) for index in range(3)], version
        if version >= 10:
            assert topic.topic_id == broker.authority.image.topics["orders"].topic_id, version


def test_all_topics_are_an_empty_list_in_version_0_and_null_in_later_ones(broker: MemoryBroker) -> None:
    for version in versions(ApiKey.METADATA):
        everything = broker.ask(MetadataRequest(topics=[] if version == 0 else None), version)
        assert {topic.name for topic in everything.topics} == {"orders", "other"}, version
        if version > 0:
            assert broker.ask(MetadataRequest(topics=[]), version).topics == [], version


def ask_for(broker: MemoryBroker, name: str, *, version: int = 12, is_allowed: bool = True) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=is_allowed)
    return broker.ask(request, version).topics[0]


def test_a_missing_topic_is_created_if_broker_and_client_agree(broker: MemoryBroker) -> None:
    assert ask_for(broker, "new", is_allowed=False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    created = ask_for(broker, "new")
    assert (created.error_code, len(created.partitions)) == (ErrorCode.NONE, 1)
    assert broker.produce("new", batch()).error_code == ErrorCode.NONE
    closed = MemoryBroker(auto_create_topics_enable="false")
    assert ask_for(closed, "new").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_before_version_4_a_missing_topic_is_always_created(broker: MemoryBroker) -> None:
    assert ask_for(broker, "new", version=3).error_code == ErrorCode.NONE


def test_an_invalid_name_is_refused_and_touches_no_path(broker: MemoryBroker) -> None:
    for name in ("", ".", "..", "a/b", "../x", "a\0b", "x" * 250, "ä"):
        before = broker.files.list("data")
        assert ask_for(broker, name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, repr(name)
        assert broker.files.list("data") == before, repr(name)


def test_a_topic_id_decides_whatever_the_name_beside_it(broker: MemoryBroker) -> None:
    """KIP-516. Java's describeTopics(ofTopicIds) sends an empty name."""
    orders = broker.authority.image.topics["orders"].topic_id
    for name in (None, "", "other", "new"):
        for topic_id, expected in (
            (orders, (ErrorCode.NONE, "orders")),
            (b"x" * 16, (ErrorCode.UNKNOWN_TOPIC_ID, None)),
        ):
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=topic_id)])
            (topic,) = broker.ask(request, 12).topics
            assert (topic.error_code, topic.name) == expected, (name, topic_id)
    # A name beside an id creates no topic.
    assert "new" not in broker.authority.image.topics


def test_topic_ids_are_refused_before_version_12(broker: MemoryBroker) -> None:
    topic_id = broker.authority.image.topics["orders"].topic_id
    for version in (10, 11):
        (topic,) = broker.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)]), version
        ).topics
        assert (topic.error_code, topic.name) == (ErrorCode.INVALID_REQUEST, "")


def test_a_topic_that_is_named_twice_is_answered_once(broker: MemoryBroker) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")] * 3)
    assert len(broker.ask(request).topics) == 1


# The cluster ----------------------------------------------------------------------------------------------------------


def test_describe_cluster_names_the_cluster_and_its_brokers(broker: MemoryBroker) -> None:
    for version in versions(ApiKey.DESCRIBE_CLUSTER):
        response = broker.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
        assert (response.cluster_id, response.controller_id) == ("in-memory", 1), version
        assert [it.broker_id for it in response.brokers] == [1], version


def test_describe_cluster_refuses_to_list_controllers(broker: MemoryBroker) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    assert broker.ask(request, 1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_without_an_authorizer_every_operation_is_authorized(broker: MemoryBroker) -> None:
    """KIP-430: the bits are Kafka's numbers of operations, those that make sense for a topic and for the cluster."""
    topic_bits, cluster_bits, not_asked = 0b1101_1111_1000, 0b1_1111_1010_0000, -(2**31)
    for version in range(8, APIS[ApiKey.METADATA].max_version + 1):
        for is_asked in (True, False):
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name="orders")],
                include_topic_authorized_operations=is_asked,
                include_cluster_authorized_operations=is_asked and version <= 10,
            )
            response = broker.ask(request, version)
            bits = response.topics[0].topic_authorized_operations, response.cluster_authorized_operations
            expected = (
                topic_bits if is_asked else not_asked,
                cluster_bits if is_asked and version <= 10 else not_asked,
            )
            assert bits == expected, f"Metadata version {version}, asked: {is_asked}"
    for version in versions(ApiKey.DESCRIBE_CLUSTER):
        for is_asked, expected_bits in ((True, cluster_bits), (False, not_asked)):
            cluster = broker.ask(DescribeClusterRequest(include_cluster_authorized_operations=is_asked), version)
            assert cluster.cluster_authorized_operations == expected_bits, f"DescribeCluster version {version}"


# Offsets --------------------------------------------------------------------------------------------------------------


def offset_of(broker: MemoryBroker, timestamp: int, version: int = 8, **more: int) -> Any:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    return broker.ask(request, version).topics[0].partitions[0]


def test_list_offsets_finds_both_ends_of_a_log_and_the_offset_of_a_time(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"a", b"b", b"c", timestamp=NOW_MS))
    broker.produce("orders", batch(b"d", timestamp=NOW_MS + 10))
    for version in versions(ApiKey.LIST_OFFSETS):
        assert offset_of(broker, -1, version).offset == 4, version
        assert offset_of(broker, -2, version).offset == 0, version
        found = offset_of(broker, NOW_MS + 1, version)
        assert (found.offset, found.timestamp) == (1, NOW_MS + 1), version
        assert found.leader_epoch == (0 if version >= 4 else -1), version
        assert offset_of(broker, NOW_MS + 3, version).offset == 3, version
        none = offset_of(broker, NOW_MS + 11, version)
        assert (none.error_code, none.offset, none.timestamp) == (ErrorCode.NONE, -1, -1), version


def test_the_largest_timestamp_is_found_from_version_7_on(broker: MemoryBroker) -> None:
    broker.produce("orders", batch(b"young", timestamp=NOW_MS + 9))
    broker.produce("orders", batch(b"old", timestamp=NOW_MS))
    found = offset_of(broker, -3, 7)
    assert (found.offset, found.timestamp) == (0, NOW_MS + 9)
    assert offset_of(broker, -3, 6).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_without_tiered_storage_the_log_starts_locally_and_nothing_was_uploaded(broker: MemoryBroker) -> None:
    # As Kafka answers: KIP-405, KIP-1005, KIP-1023.
    broker.produce("orders", batch(b"a", b"b", timestamp=NOW_MS))
    local = offset_of(broker, -4, 8)
    assert (local.error_code, local.offset) == (ErrorCode.NONE, 0)
    for timestamp, first_version in ((-4, 8), (-5, 9), (-6, 11)):
        assert offset_of(broker, timestamp, first_version - 1).error_code == ErrorCode.UNSUPPORTED_VERSION, timestamp
    for timestamp in (-5, -6):
        found = offset_of(broker, timestamp, 11)
        place = (found.offset, found.timestamp, found.leader_epoch)
        assert (found.error_code, place) == (ErrorCode.NONE, (-1, -1, -1)), timestamp
    assert offset_of(broker, -7, 11).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_log_has_no_largest_timestamp(broker: MemoryBroker) -> None:
    found = offset_of(broker, -3)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, -1, -1)


def test_list_offsets_refuses_a_partition_that_is_named_twice(broker: MemoryBroker) -> None:
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=-1) for _ in range(3)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=wanted)])
    answers = broker.ask(request, 8).topics[0].partitions
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 3


def test_list_offsets_checks_the_leader_epoch(broker: MemoryBroker) -> None:
    assert offset_of(broker, -1, current_leader_epoch=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# Producer ids ---------------------------------------------------------------------------------------------------------


def test_every_producer_gets_an_id_of_its_own(broker: MemoryBroker) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    given: set[int] = set()
    for version in versions(ApiKey.INIT_PRODUCER_ID):
        for _ in range(3):
            answer = broker.ask(request, version)
            assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0), version
            assert answer.producer_id not in given, version
            given.add(answer.producer_id)


def test_ids_are_not_given_twice_over_a_restart_and_over_blocks() -> None:
    broker = MemoryBroker()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    ids = [broker.ask(request).producer_id for _ in range(1500)]
    ids += [MemoryBroker(broker.files).ask(request).producer_id for _ in range(2)]
    assert len(set(ids)) == len(ids)


def test_a_transactional_producer_is_refused_for_good(broker: MemoryBroker) -> None:
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
    answer = broker.ask(request)
    assert answer.error_code != ErrorCode.NONE
    assert not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.is_retriable


# The coordinator ------------------------------------------------------------------------------------------------------


def test_the_only_node_is_the_coordinator_of_every_key(broker: MemoryBroker) -> None:
    for version in versions(ApiKey.FIND_COORDINATOR):
        is_one = version < 4
        request = FindCoordinatorRequest(key="g") if is_one else FindCoordinatorRequest(coordinator_keys=["g", "h"])
        response = broker.ask(request, version)
        answers = [response] if is_one else response.coordinators
        found = {(answer.error_code, answer.node_id, answer.port) for answer in answers}
        assert found == {(ErrorCode.NONE, 1, 9092)}, version
        assert is_one or [answer.key for answer in answers] == ["g", "h"], version


def test_keys_of_an_unknown_type_have_no_coordinator(broker: MemoryBroker) -> None:
    request = FindCoordinatorRequest(key_type=7, coordinator_keys=["g"])
    (answer,) = broker.ask(request, 4).coordinators
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_no_offset_is_committed_in_any_group(broker: MemoryBroker) -> None:
    """librdkafka asks for the committed offset of a partition that is assigned without one."""
    orders = broker.authority.image.topics["orders"].topic_id
    for version in versions(ApiKey.OFFSET_FETCH):
        if version >= 10:
            known = OffsetFetchRequestTopic(topic_id=orders, partition_indexes=[0, 2])
            unknown = OffsetFetchRequestTopic(topic_id=b"x" * 16, partition_indexes=[0])
        else:
            known = OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 2])
            unknown = OffsetFetchRequestTopic(name="nowhere", partition_indexes=[0])
        if version < 8:
            request = OffsetFetchRequest(group_id="g", topics=[known, unknown])
        else:
            groups = [OffsetFetchRequestGroup(group_id=name, topics=[known, unknown]) for name in ("g", "h")]
            request = OffsetFetchRequest(groups=groups)
        response = broker.ask(request, version)
        assert version < 8 or [it.group_id for it in response.groups] == ["g", "h"], f"version {version}"
        for answer in [response] if version < 8 else response.groups:
            assert answer.error_code == ErrorCode.NONE, f"version {version}"
            assert [
                (topic.name, topic.topic_id, [(it.partition_index, it.error_code) for it in topic.partitions])
                for topic in answer.topics
            ] == (
                [("orders", NO_UUID, [(0, 0), (2, 0)]), ("nowhere", NO_UUID, [(0, 0)])]
                if version < 10
                else [("", orders, [(0, 0), (2, 0)]), ("", b"x" * 16, [(0, ErrorCode.UNKNOWN_TOPIC_ID)])]
            ), f"version {version}"
            partitions = [it for topic in answer.topics for it in topic.partitions]
            assert {(it.committed_offset, it.committed_leader_epoch, it.metadata) for it in partitions} == {
                (-1, -1, "")
            }, f"version {version}"


def test_a_group_that_has_committed_nothing_has_no_topics(broker: MemoryBroker) -> None:
    for version in range(2, APIS[ApiKey.OFFSET_FETCH].max_version + 1):
        if version < 8:
            answer = broker.ask(OffsetFetchRequest(group_id="g", topics=None), version)
        else:
            groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
            (answer,) = broker.ask(OffsetFetchRequest(groups=groups), version).groups
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, []), f"version {version}"


# ApiVersions and the registry -----------------------------------------------------------------------------------------


def test_features_are_announced_from_version_3_on(broker: MemoryBroker) -> None:
    # KIP-584. The epoch grows with the metadata, as Kafka's does.
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    for version in versions(ApiKey.API_VERSIONS):
        answer = broker.ask(request, version)
        supported = [(it.name, it.min_version, it.max_version) for it in answer.supported_features]
        finalized = [(it.name, it.min_version_level, it.max_version_level) for it in answer.finalized_features]
        has_features = version >= 3
        assert supported == finalized == ([("metadata.version", 7, 7)] if has_features else []), version
        assert answer.finalized_features_epoch == (broker.authority.image.offset if has_features else -1), version


def test_a_feature_with_level_0_is_announced_from_version_4_on(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # KIP-1022: clients of version 3 refuse a lowest level of 0.
    monkeypatch.setitem(SUPPORTED_FEATURES, "group.version", LevelRange(0, 1))
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    for version, names in ((3, ["metadata.version"]), (4, ["metadata.version", "group.version"])):
        assert [it.name for it in broker.ask(request, version).supported_features] == names, version


def test_api_versions_are_those_of_the_registry(broker: MemoryBroker) -> None:
    declare_every_api()
    between_nodes = {23, 43, 56, 61, 62, 63, 67}
    assert between_nodes <= APIS.keys()
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    for version in versions(ApiKey.API_VERSIONS):
        response = broker.ask(request, version)
        ranges = {it.api_key: (it.min_version, it.max_version) for it in response.api_keys}
        # librdkafka takes a minimum above 0 for a broker without compression.
        assert ranges.get(ApiKey.PRODUCE) == (0, 12), version
        assert ranges.get(ApiKey.FETCH) == (4, 17), version
        # librdkafka takes a broker without FindCoordinator for one without lz4.
        assert ranges.get(ApiKey.FIND_COORDINATOR) == (0, 4), version
        assert ranges.get(ApiKey.OFFSET_FETCH) == (1, 10), version
        # The tables of calls between nodes are imported, but no handler here answers them.
        assert not between_nodes & ranges.keys(), version
        assert ApiKey.JOIN_GROUP not in ranges, version


def test_an_apiversions_request_of_a_newer_version_is_told_the_newest_one_here(broker: MemoryBroker) -> None:
    header = (18).to_bytes(2, "big") + (99).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\0\1x" + b"whatever follows"
    reply = broker.registry.dispatch(memoryview(bytearray(header)), now_ms=0, session=Session("test"))
    assert isinstance(reply, Reply)
    frame = memoryview(b"".join(bytes(part) for part in reply.parts))  # type: ignore[arg-type]
    response, _end = ApiVersionsResponse.decode(frame, 8, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(it.api_key, it.max_version) for it in response.api_keys] == [(18, 4)]


def test_bytes_after_a_request_are_ignored_because_librdkafka_sends_some(broker: MemoryBroker) -> None:
    # MetadataRequest v13 for all topics, as librdkafka 2.16 sends it: three bytes too long.
    frame = bytearray.fromhex("0003000d000000030007 72646b61666b61 00 00 00 00 00 010000")
    assert isinstance(broker.registry.dispatch(memoryview(frame), now_ms=0, session=Session("test")), Reply)


def test_any_other_unknown_api_or_version_ends_the_connection(broker: MemoryBroker) -> None:
    for key, version in ((999, 0), (0, 2), (0, 99), (11, 0), (-1, 0)):
        header = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
        try:
            broker.registry.dispatch(memoryview(bytearray(header)), now_ms=0, session=Session("test"))
        except Disconnect as ended:
            assert f"API {key} version {version}" in str(ended)
        else:
            pytest.fail(f"API {key} version {version} was answered")


def test_an_api_has_one_handler() -> None:
    registry = Registry()
    registry.add(ApiKey.PRODUCE, lambda _call: None)
    with pytest.raises(AssertionError, match="has a handler already"):
        registry.add(ApiKey.PRODUCE, lambda _call: None)


def test_a_stand_in_may_be_replaced() -> None:
    registry = Registry()
    registry.add(ApiKey.FIND_COORDINATOR, lambda _call: None, stand_in=True)
    registry.add(ApiKey.FIND_COORDINATOR, lambda _call: None)
    with pytest.raises(AssertionError, match="has a handler already"):
        registry.add(ApiKey.FIND_COORDINATOR, lambda _call: None)
