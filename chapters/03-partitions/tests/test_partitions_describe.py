"""Metadata and its like, ListOffsets, InitProducerId, ApiVersions: in every version."""

from typing import Any

import pytest
from partitions_house import NOW_MS, House, batch

from minibroker.broker.apis import declare_every_api
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Registry, Reply
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


@pytest.fixture
def house() -> House:
    house = House()
    house.create("orders", 3)
    house.create("other")
    return house


# Metadata -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_names_the_brokers_and_who_leads(house: House, version: int) -> None:
    response = house.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), version)
    assert [(it.node_id, it.host, it.port) for it in response.brokers] == [(1, "127.0.0.1", 9092)]
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "orders")
    assert [it.partition_index for it in topic.partitions] == [0, 1, 2]
    assert all((it.leader_id, it.replica_nodes, it.isr_nodes) == (1, [1], [1]) for it in topic.partitions)
    if version >= 10:
        assert topic.topic_id == house.authority.image.topics["orders"].topic_id


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_all_topics_are_an_empty_list_in_version_0_and_null_since(house: House, version: int) -> None:
    everything = house.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    assert {topic.name for topic in everything.topics} == {"orders", "other"}
    if version > 0:
        assert house.ask(MetadataRequest(topics=[]), version).topics == []


def ask_for(house: House, name: str, *, version: int = 12, is_allowed: bool = True) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=is_allowed)
    return house.ask(request, version).topics[0]


def test_a_missing_topic_is_created_if_broker_and_client_agree(house: House) -> None:
    assert ask_for(house, "new", is_allowed=False).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    created = ask_for(house, "new")
    assert (created.error_code, len(created.partitions)) == (ErrorCode.NONE, 1)
    assert house.produce("new", batch()).error_code == ErrorCode.NONE
    closed = House(auto_create_topics_enable="false")
    assert ask_for(closed, "new").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_before_version_4_every_client_agrees(house: House) -> None:
    assert ask_for(house, "new", version=3).error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "x" * 250, "ä"])
def test_an_impossible_name_is_invalid_and_touches_no_path(house: House, name: str) -> None:
    before = house.files.list("data")
    assert ask_for(house, name).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert house.files.list("data") == before


def test_a_topic_can_be_asked_for_by_its_id(house: House) -> None:
    topic_id = house.authority.image.topics["orders"].topic_id
    (topic,) = house.ask(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)]), 12).topics
    assert topic.name == "orders"
    (unknown,) = house.ask(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=b"x" * 16)]), 12).topics
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_ids_are_no_way_to_ask_before_version_12(house: House) -> None:
    topic_id = house.authority.image.topics["orders"].topic_id
    for version in (10, 11):
        (topic,) = house.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)]), version
        ).topics
        assert (topic.error_code, topic.name) == (ErrorCode.INVALID_REQUEST, "")


def test_a_topic_that_is_named_twice_is_answered_once(house: House) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")] * 3)
    assert len(house.ask(request).topics) == 1


# The cluster ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster_names_the_cluster_and_its_brokers(house: House, version: int) -> None:
    response = house.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version)
    assert (response.cluster_id, response.controller_id) == ("house", 1)
    assert [it.broker_id for it in response.brokers] == [1]


def test_describe_cluster_has_no_controllers_to_show(house: House) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    assert house.ask(request, 1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


# Offsets --------------------------------------------------------------------------------------------------------------


def offset_of(house: House, timestamp: int, version: int = 8, **more: int) -> Any:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
    return house.ask(request, version).topics[0].partitions[0]


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
def test_the_ends_of_a_log_and_the_offset_of_a_time(house: House, version: int) -> None:
    house.produce("orders", batch(b"a", b"b", b"c", timestamp=NOW_MS))
    house.produce("orders", batch(b"d", timestamp=NOW_MS + 10))
    assert offset_of(house, -1, version).offset == 4
    assert offset_of(house, -2, version).offset == 0
    found = offset_of(house, NOW_MS + 1, version)
    assert (found.offset, found.timestamp) == (1, NOW_MS + 1)
    assert found.leader_epoch == (0 if version >= 4 else -1)
    assert offset_of(house, NOW_MS + 3, version).offset == 3
    none = offset_of(house, NOW_MS + 11, version)
    assert (none.error_code, none.offset, none.timestamp) == (ErrorCode.NONE, -1, -1)


def test_the_largest_timestamp_is_found_from_version_7_on(house: House) -> None:
    house.produce("orders", batch(b"young", timestamp=NOW_MS + 9))
    house.produce("orders", batch(b"old", timestamp=NOW_MS))
    found = offset_of(house, -3, 7)
    assert (found.offset, found.timestamp) == (0, NOW_MS + 9)
    assert offset_of(house, -3, 6).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_log_has_no_largest_timestamp(house: House) -> None:
    found = offset_of(house, -3)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, -1, -1)


def test_a_partition_that_is_named_twice_is_not_looked_up_at_all(house: House) -> None:
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=-1) for _ in range(3)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=wanted)])
    answers = house.ask(request, 8).topics[0].partitions
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 3


def test_list_offsets_checks_the_leader_epoch(house: House) -> None:
    assert offset_of(house, -1, current_leader_epoch=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# Producer ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_producer_gets_an_id_of_its_own(house: House, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    answers = [house.ask(request, version) for _ in range(3)]
    assert len({answer.producer_id for answer in answers}) == 3
    assert all((answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0) for answer in answers)


def test_ids_are_not_given_twice_over_a_restart_and_over_blocks() -> None:
    house = House()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    ids = [house.ask(request).producer_id for _ in range(1500)]
    ids += [House(house.files).ask(request).producer_id for _ in range(2)]
    assert len(set(ids)) == len(ids)


def test_a_transactional_producer_is_refused_for_good(house: House) -> None:
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
    answer = house.ask(request)
    assert answer.error_code != ErrorCode.NONE
    assert not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.is_retriable


# The coordinator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_the_one_node_coordinates_everything(house: House, version: int) -> None:
    request = FindCoordinatorRequest(key="g") if version < 4 else FindCoordinatorRequest(coordinator_keys=["g", "h"])
    response = house.ask(request, version)
    answers = [response] if version < 4 else response.coordinators
    assert {(answer.error_code, answer.node_id, answer.port) for answer in answers} == {(ErrorCode.NONE, 1, 9092)}
    assert version < 4 or [answer.key for answer in answers] == ["g", "h"]


def test_keys_of_an_unknown_type_have_no_coordinator(house: House) -> None:
    request = FindCoordinatorRequest(key_type=7, coordinator_keys=["g"])
    (answer,) = house.ask(request, 4).coordinators
    assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)


# ApiVersions and the registry -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_api_versions_are_those_of_the_registry(house: House, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    response = house.ask(request, version)
    ranges = {it.api_key: (it.min_version, it.max_version) for it in response.api_keys}
    assert ranges[ApiKey.PRODUCE] == (0, 12)  # librdkafka takes a minimum above 0 for a broker without compression
    assert ranges[ApiKey.FETCH] == (4, 17)
    # … and one without FindCoordinator for one without lz4.
    assert ranges[ApiKey.FIND_COORDINATOR] == (0, 4)
    # There is a table for what nodes say to each other, but no handler here that answers it.
    declare_every_api()
    between_nodes = {23, 43, 56, 61, 62, 63, 67}
    assert between_nodes <= APIS.keys()
    assert not between_nodes & ranges.keys()
    assert ApiKey.JOIN_GROUP not in ranges


def test_a_client_of_the_future_is_told_what_to_ask(house: House) -> None:
    header = (18).to_bytes(2, "big") + (99).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\0\1x" + b"whatever follows"
    reply = house.registry.dispatch(memoryview(bytearray(header)), now_ms=0, peer="test")
    assert isinstance(reply, Reply)
    frame = memoryview(b"".join(bytes(part) for part in reply.parts))  # type: ignore[arg-type]
    response, _end = ApiVersionsResponse.decode(frame, 8, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(it.api_key, it.max_version) for it in response.api_keys] == [(18, 4)]


def test_bytes_behind_a_request_are_not_looked_at_because_librdkafka_leaves_some(house: House) -> None:
    # MetadataRequest v13 for all topics, as librdkafka 2.16 sends it: three bytes too long.
    frame = bytearray.fromhex("0003000d000000030007 72646b61666b61 00 00 00 00 00 010000")
    assert isinstance(house.registry.dispatch(memoryview(frame), now_ms=0, peer="test"), Reply)


@pytest.mark.parametrize(("key", "version"), [(999, 0), (0, 2), (0, 99), (11, 0), (-1, 0)])
def test_any_other_unknown_api_or_version_ends_the_connection(house: House, key: int, version: int) -> None:
    header = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with pytest.raises(Disconnect, match=f"API {key} version {version}"):
        house.registry.dispatch(memoryview(bytearray(header)), now_ms=0, peer="test")


def test_an_api_has_one_owner() -> None:
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
