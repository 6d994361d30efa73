"""What a cluster needs of this chapter: partitions of another kind, that are added, changed and moved away; fetches by
other nodes; partitions whose leader is another node, or that have none."""

from typing import Any

import pytest
from partitions_broker import NOW_MS, TICKS_MS, MemoryBroker, batch, fetch_request, produce_request

from minibroker.log.batch import batches
from minibroker.log.interfaces import FileSlice
from minibroker.log.memory import MemoryFiles
from minibroker.metadata.authority import Listeners
from minibroker.metadata.config_commands import AlterConfigs, ConfigChange, ResourceChange
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.metadata.names import CLUSTER_METADATA_TOPIC_ID
from minibroker.metadata.records import decode_record
from minibroker.partitions.fetch import Fetch
from minibroker.partitions.partition import ANY_NODE, EpochEnd, LocalPartition, LogEnd, Reader, SoleReplica
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.registry import Answer, Call, Session
from minibroker.partitions.store import METADATA, Store
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.describe_cluster import DescribeClusterRequest
from minibroker.wire.tables.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from minibroker.wire.tables.metadata import MetadataRequest

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)


class Replicated(SoleReplica):
    """A replica of another kind: it records which nodes read, and record `n` has the epoch `100 - n`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, copied_by=ANY_NODE, **named)
        self.readers: list[Reader] = []
        self.watermark: int | None = None
        self.diverging: EpochEnd | None = None

    @property
    def high_watermark(self) -> int:
        return super().high_watermark if self.watermark is None else self.watermark

    def on_follower_read(self, reader: Reader, offset: int, records: FileSlice) -> None:
        # As a leader with one follower does, which has the records before the offset that it fetches.
        self.readers.append(reader)
        self.watermark = offset

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        return self.diverging

    def epoch_of(self, offset: int) -> int:
        return 100 - offset


class Cluster(MemoryBroker):
    """A broker on the first of three nodes, with partitions of another kind."""

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self.told: list[tuple[TopicPartition, PartitionImage | None, PartitionImage | None]] = []
        self.opened: list[tuple[TopicPartition, bytes]] = []
        super().__init__(files)
        for node_id in (2, 3):
            self.register(node_id)

    def make_store(self, **more: Any) -> Store:
        return super().make_store(
            open_partition=self.open_partition, on_changed=lambda *change: self.told.append(change), **more
        )

    def open_partition(
        self, name: TopicPartition, topic_id: bytes, partition: PartitionImage, config: TopicConfig
    ) -> LocalPartition:
        self.opened.append((name, topic_id))
        producers = ProducerStates(self.files, self.data.directory_of(name))
        log = self.data.open_log(name, config.log_config, companions=[producers])
        replica = Replicated(name, log, leader_epoch=partition.leader_epoch, wake=self.waiting.wake)
        return LocalPartition(name, log, producers, config, replica)

    def replica(self, name: TopicPartition) -> Replicated:
        found = self.store.partition(*name).replica
        assert isinstance(found, Replicated)
        return found

    def partition_image(self, name: TopicPartition) -> PartitionImage:
        found = self.authority.image.partition(name)
        assert found is not None
        return found


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.create("orders", 2, replicas=[1, 2])
    return cluster


# Partitions that are added, changed and moved away --------------------------------------------------------------------


def test_a_store_opens_partitions_of_the_kind_that_it_is_given(cluster: Cluster) -> None:
    topic_id = cluster.authority.image.topics["orders"].topic_id
    assert cluster.opened == [(ORDERS_0, topic_id), (ORDERS_1, topic_id)]
    assert isinstance(cluster.store.partition("orders", 1).replica, Replicated)
    assert cluster.told == [(name, None, cluster.partition_image(name)) for name in (ORDERS_0, ORDERS_1)]


def test_a_change_is_reported_for_the_partition_that_changed_and_for_no_other(cluster: Cluster) -> None:
    before, partition = cluster.partition_image(ORDERS_1), cluster.store.partition("orders", 1)
    cluster.told.clear()
    cluster.change("orders", 1, isr=[1])
    cluster.change("orders", 1, leader=2)
    middle = PartitionImage((1, 2), (1,), 1, before.leader_epoch, before.partition_epoch + 1)
    after = PartitionImage((1, 2), (1,), 2, before.leader_epoch + 1, before.partition_epoch + 2)
    assert cluster.told == [(ORDERS_1, before, middle), (ORDERS_1, middle, after)]
    assert cluster.store.partition("orders", 1) is partition


def test_a_configuration_is_applied_before_the_changes_that_came_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader must know a larger `min.insync.replicas` when it learns that its in-sync set has become smaller."""
    told_before: list[int] = []
    configure = lambda _config: told_before.append(len(cluster.told))  # noqa: E731
    monkeypatch.setattr(cluster.replica(ORDERS_1), "configure", configure)
    old, cluster.authority._listeners = cluster.authority.image, Listeners()
    change = ResourceChange(ConfigResource.TOPIC, "orders", [ConfigChange("max.message.bytes", "100")])
    cluster.authority.propose(AlterConfigs([change], cluster.config))
    cluster.change("orders", 1, isr=[1])
    cluster.told.clear()
    cluster.store.follow(old, cluster.authority.image)
    assert (told_before, len(cluster.told)) == ([0], 1)


def test_a_partition_that_is_moved_away_is_closed_and_deleted_and_can_come_back_empty(cluster: Cluster) -> None:
    cluster.produce("orders", batch(b"a"), partition=1)
    before, partition = cluster.partition_image(ORDERS_1), cluster.store.partition("orders", 1)
    cluster.told.clear()
    cluster.change("orders", 1, replicas=[2, 3], isr=[2], leader=2)
    assert cluster.told == [(ORDERS_1, before, None)]
    assert partition.is_deleted
    assert not any(name.startswith("orders-1") for name in cluster.files.list("data"))
    # A client that asks this node is told the new leader.
    response = cluster.ask(produce_request("orders", batch(b"b"), partition=1))
    answer = response.responses[0].partition_responses[0]
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert [(it.node_id, it.host) for it in response.node_endpoints] == [(2, "host-2")]
    cluster.change("orders", 1, replicas=[1, 2], isr=[2])
    assert cluster.told[1:] == [(ORDERS_1, None, cluster.partition_image(ORDERS_1))]
    assert cluster.end("orders", 1) == 0
    assert cluster.end("orders", 0) == 0


def test_the_partitions_of_a_deleted_topic_are_reported_if_they_are_on_this_node(
    cluster: Cluster,
) -> None:
    cluster.create("others", replicas=[2, 3])
    assert "others-0" not in cluster.files.list("data")
    before = [cluster.partition_image(name) for name in (ORDERS_0, ORDERS_1)]
    cluster.told.clear()
    cluster.change("others", 0, leader=3)
    cluster.delete("others")
    cluster.delete("orders")
    assert cluster.told == [(ORDERS_0, before[0], None), (ORDERS_1, before[1], None)]


def test_after_a_crash_the_directory_of_a_partition_that_was_moved_away_is_set_aside(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.produce("orders", batch(b"a"), partition=1)
    cluster.authority._listeners = Listeners()
    cluster.change("orders", 1, replicas=[2, 3], isr=[2], leader=2)
    again = Cluster(cluster.files)
    assert [name for name, _topic_id in again.opened] == [ORDERS_0]
    assert "orders-1: the metadata place it on other nodes" in caplog.text
    assert any(name.startswith("orders-1.") and name.endswith("-stray") for name in again.files.list("data"))


# Fetches by other nodes -----------------------------------------------------------------------------------------------


def by_replica(version: int, **wanted: Any) -> FetchRequest:
    """A fetch by node 2, whose log starts with offset 3."""
    who: dict[str, Any] = {"replica_id": 2}
    if version >= 15:
        who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=9)}
    request = fetch_request(**{"topic": "orders", "offset": 0, **wanted}, **who)
    request.topics[0].partitions[0].log_start_offset = 3
    return request


def test_a_fetch_by_a_replica_names_the_node_its_epoch_and_the_start_of_its_log(cluster: Cluster) -> None:
    for version in (5, 12, 14, 15, 16):
        request = by_replica(version)
        if version >= 13:
            request.topics[0].topic = ""
            request.topics[0].topic_id = cluster.authority.image.topics["orders"].topic_id
        cluster.ask(request, version)
        epoch = 9 if version >= 15 else -1
        readers = cluster.replica(ORDERS_0).readers
        assert readers == [Reader(2, epoch, log_start_offset=3, now_ms=TICKS_MS)], version
        readers.clear()


def test_the_retry_of_a_replicas_waiting_fetch_is_marked(cluster: Cluster) -> None:
    """What the fetch says of the replica may be out of date: a newer one may have come on another connection."""
    answers = cluster.wait_for(by_replica(12, min_bytes=1, max_wait_ms=500), 12)
    cluster.produce("orders", batch(b"a"))
    cluster.waiting.settle()
    assert [reader.is_retry for reader in cluster.replica(ORDERS_0).readers] == [False, True]
    assert len(answers) == 1


def test_a_replicas_fetch_of_very_many_partitions_is_tried_again_when_one_changes_and_the_retry_is_marked(
    cluster: Cluster,
) -> None:
    cluster.create("many", 600, replicas=[1, 2])
    request = by_replica(12, topic="many", min_bytes=1, max_wait_ms=500)
    request.topics[0].partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(600)
    ]
    answers = cluster.wait_for(request, 12)
    cluster.take_turns(10)
    assert answers == []
    cluster.produce("many", batch(b"a"), partition=599)
    cluster.take_turns(10)
    assert len(answers) == 1
    readers = cluster.replica(TopicPartition("many", 599)).readers
    assert [reader.is_retry for reader in readers] == [False, True]


def test_a_replicas_fetch_waits_for_the_end_of_the_log_and_a_consumers_for_the_high_watermark(
    cluster: Cluster,
) -> None:
    for name, replica_id, key, other in (
        (ORDERS_0, 2, LogEnd(ORDERS_0), ORDERS_0),
        (ORDERS_1, -1, ORDERS_1, LogEnd(ORDERS_1)),
    ):
        request = fetch_request(name.topic, partition=name.partition, min_bytes=1, max_wait_ms=500)
        request.replica_id = replica_id
        answers = cluster.wait_for(request, 12)
        cluster.store.partition(*name).log.append(batch(b"a"))
        for woken, count in ((other, 0), (key, 1)):
            cluster.waiting.wake(woken)
            cluster.waiting.settle()
            assert len(answers) == count, (name, woken)


def test_a_follower_whose_log_diverges_is_told_where_at_once_and_gets_no_records(cluster: Cluster) -> None:
    cluster.produce("orders", batch(b"a"))
    cluster.replica(ORDERS_0).diverging = EpochEnd(3, 1)
    request = by_replica(12, last_fetched_epoch=4, min_bytes=1000, max_wait_ms=500)
    (answer,) = cluster.ask(request, 12).responses[0].partitions
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (3, 1)
    assert not answer.records
    assert cluster.replica(ORDERS_0).readers == []
    # A follower that names no epoch is not compared.
    (answer,) = cluster.ask(by_replica(12), 12).responses[0].partitions
    assert answer.records


def test_a_node_makes_sure_that_it_leads_before_it_tells_a_consumer_that_an_offset_is_out_of_range(
    cluster: Cluster,
) -> None:
    asked: list[int] = []
    handler = Fetch(cluster.store, bytes_max=1000, check_leading=lambda: asked.append(1))
    consumer, replica, in_range = fetch_request("orders", 9), by_replica(12, offset=9), fetch_request("orders")
    for request, count in ((consumer, 1), (replica, 0), (in_range, 0)):
        asked.clear()
        handler(Call(request, 12, RequestHeader(1, 12, 1, None), NOW_MS, Session("test")))
        assert len(asked) == count


def test_a_consumers_fetch_is_not_reported_as_a_followers(cluster: Cluster) -> None:
    cluster.fetch("orders", isolation_level=1)
    assert cluster.replica(ORDERS_0).readers == []


def test_the_answer_to_a_fetch_has_the_high_watermark_that_the_fetch_moved(cluster: Cluster) -> None:
    for value in (b"a", b"b"):
        cluster.produce("orders", batch(value))
    (answer,) = cluster.ask(by_replica(12, offset=1), 12).responses[0].partitions
    assert (answer.high_watermark, answer.error_code) == (1, ErrorCode.NONE)


@pytest.fixture
def with_metadata(cluster: Cluster) -> Cluster:
    """The metadata log can be fetched by other nodes."""
    log = cluster.authority._log

    def serve(_call: Call[FetchRequest]) -> Answer:
        data = PartitionData(
            partition_index=0,
            error_code=ErrorCode.NONE,
            high_watermark=log.log_end_offset,
            records=log.read(0, bytes_max=1 << 20),
        )
        topic = FetchableTopicResponse(topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[data])
        return FetchResponse(responses=[topic])

    cluster.store.add_internal(CLUSTER_METADATA_TOPIC_ID, serve)
    return cluster


def metadata_fetch(version: int, *, is_replica: bool) -> FetchRequest:
    request = by_replica(version, topic=METADATA.topic) if is_replica else fetch_request(METADATA.topic)
    if version >= 13:
        request.topics[0].topic, request.topics[0].topic_id = "", CLUSTER_METADATA_TOPIC_ID
    return request


def test_only_nodes_may_fetch_the_metadata_log_and_its_owner_answers_them(with_metadata: Cluster) -> None:
    """A node fetches by topic id, and has a replica state, which exists since version 15 (KIP-903)."""
    with_metadata.delete("orders")  # its topic id in these tests is that of the metadata log
    for version, is_replica in [(4, False), (12, False), (13, False), (16, False), (4, True), (12, True), (13, True)]:
        (topic,) = with_metadata.ask(metadata_fetch(version, is_replica=is_replica), version).responses
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert topic.partitions[0].error_code == unknown, (version, is_replica)
    for version in (15, 16):
        (topic,) = with_metadata.ask(metadata_fetch(version, is_replica=True), version).responses
        (answer,) = topic.partitions
        assert answer.error_code == ErrorCode.NONE, version
        found = [decode_record(record.value or b"") for it in batches(answer.records) for record in it.records()]
        assert len(found) == with_metadata.authority.image.offset + 1, version


def test_clients_cannot_list_or_write_the_metadata_log_and_other_partitions_are_found_as_before(
    with_metadata: Cluster,
) -> None:
    assert with_metadata.produce(METADATA.topic, batch(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [topic.name for topic in with_metadata.ask(MetadataRequest(topics=None)).topics] == ["orders"]
    assert with_metadata.ask(by_replica(12), 12).responses[0].partitions[0].error_code == ErrorCode.NONE
    unknown = with_metadata.ask(by_replica(12, partition=9), 12).responses[0].partitions[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_node_that_fetches_from_the_wrong_node_is_told_the_leader(with_metadata: Cluster) -> None:
    with_metadata.create("elsewhere", replicas=[3, 2])
    answer = with_metadata.ask(by_replica(12, topic="elsewhere"), 12).responses[0].partitions[0]
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
    # A leader that cannot be reached is not named.
    with_metadata.register(3, is_fenced=True)
    answer = with_metadata.ask(by_replica(12, topic="elsewhere"), 12).responses[0].partitions[0]
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_since_version_16_the_leaders_address_comes_along_also_in_slices(cluster: Cluster) -> None:
    cluster.create("few", replicas=[3, 2])
    cluster.create("many", 600, replicas=[3, 2])
    for topic, count in (("few", 1), ("many", 600)):
        request = fetch_request("")
        request.topics[0].topic_id = cluster.authority.image.topics[topic].topic_id
        request.topics[0].partitions = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(count)
        ]
        if count == 1:
            response = cluster.ask(request, 16)
        else:
            responses = cluster.wait_for(request, 16)
            cluster.take_turns(3)
            (response,) = responses
        assert [(it.node_id, it.host) for it in response.node_endpoints] == [(3, "host-3")], topic


# Epochs ---------------------------------------------------------------------------------------------------------------


def test_an_appended_batch_has_the_epoch_in_which_the_leader_wrote_or_found_it(
    cluster: Cluster,
) -> None:
    partition = cluster.store.partition("orders", 0)
    sent = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    assert partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS).leader_epoch == 0
    cluster.replica(ORDERS_0).leader_epoch = 5
    again = partition.append(memoryview(bytearray(sent)), acks=-1, now_ms=NOW_MS)
    assert (again.base_offset, again.leader_epoch) == (0, 5)


def test_an_offset_comes_with_the_epoch_of_its_record(cluster: Cluster) -> None:
    cluster.produce("orders", batch(b"a", b"b", b"c"))
    for timestamp, offset, epoch in ((-2, 0, 100), (NOW_MS + 1, 1, 99), (-3, 2, 98), (-1, 3, 0)):
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
        found = cluster.ask(request, 8).topics[0].partitions[0]
        assert (found.offset, found.leader_epoch) == (offset, epoch), f"timestamp {timestamp}"


def test_a_reader_for_debugging_is_told_the_end_of_the_log_and_nothing_else_that_others_are_not(
    cluster: Cluster,
) -> None:
    """It asks any replica for its end, so the epoch of the request is not looked at."""
    cluster.produce("orders", batch(b"a", b"b", b"c"))
    cluster.replica(ORDERS_0).watermark = 1
    for replica_id, timestamp, epoch, expected in (
        (-1, -1, -1, (ErrorCode.NONE, 1, 0)),
        (-2, -1, -1, (ErrorCode.NONE, 3, 98)),
        (-2, -1, 7, (ErrorCode.NONE, 3, 98)),
        (-2, -2, -1, (ErrorCode.NONE, 0, 100)),
        (-2, -2, 7, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
    ):
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
        topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
        found = cluster.ask(ListOffsetsRequest(replica_id=replica_id, topics=topics), 8).topics[0].partitions[0]
        case = (replica_id, timestamp, epoch)
        assert (found.error_code, found.offset, found.leader_epoch) == expected, case


# What clients learn ---------------------------------------------------------------------------------------------------


def described(cluster: Cluster) -> list[tuple[ErrorCode, int, int, list[int], list[int], list[int]]]:
    """The partitions of the only topic, as Metadata describes them."""
    (topic,) = cluster.ask(MetadataRequest(topics=None)).topics
    return [
        (it.error_code, it.leader_id, it.leader_epoch, it.replica_nodes, it.isr_nodes, it.offline_replicas)
        for it in topic.partitions
    ]


def test_metadata_has_the_leader_the_in_sync_replicas_and_the_offline_ones(cluster: Cluster) -> None:
    assert described(cluster) == [(ErrorCode.NONE, 1, 0, [1, 2], [1, 2], [])] * 2
    # One partition has no leader. Then the leader of the other one is fenced.
    cluster.change("orders", 0, leader=-1, isr=[2])
    cluster.change("orders", 1, leader=2, isr=[2])
    assert described(cluster) == [
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, 1, [1, 2], [2], []),
        (ErrorCode.NONE, 2, 1, [1, 2], [2], []),
    ]
    cluster.register(2, is_fenced=True)
    assert described(cluster) == [(ErrorCode.LEADER_NOT_AVAILABLE, -1, 1, [1, 2], [2], [2])] * 2
    assert [it.node_id for it in cluster.ask(MetadataRequest(topics=[])).brokers] == [1, 3]
    assert [
        it.broker_id for it in cluster.ask(DescribeClusterRequest(include_cluster_authorized_operations=False)).brokers
    ] == [1, 3]
    # Fenced brokers are listed only on request (KIP-1073).
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    assert [(it.broker_id, it.is_fenced) for it in cluster.ask(request).brokers] == [(1, False), (2, True), (3, False)]


def test_a_leader_that_is_not_registered_is_not_named(cluster: Cluster) -> None:
    cluster.change("orders", 0, replicas=[1, 9], leader=9, isr=[9])
    assert described(cluster)[0] == (ErrorCode.LEADER_NOT_AVAILABLE, -1, 1, [1, 9], [9], [9])
