"""The handlers of replication, called with request frames in every version."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from cases import case
from partitions_broker import answered, joined
from replication_nodes import ENDPOINTS, TOPIC_ID, AuthorityNode
from replication_stage import Stage

from minibroker.metadata.authority import Listener, Proposal
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image
from minibroker.partitions.errors import Refused
from minibroker.partitions.list_offsets import LATEST, ListOffsets
from minibroker.partitions.logs import DeleteRecords
from minibroker.partitions.partition import LocalPartition
from minibroker.partitions.registry import Deferred, Registry, Reply, Session
from minibroker.partitions.routes import Leader, Serve
from minibroker.partitions.waiting import Waiting
from minibroker.replication.answering import Decisions, DescribeProducers, OffsetForLeaderEpoch
from minibroker.replication.tables.allocate_producer_ids import AllocateProducerIdsRequest
from minibroker.replication.tables.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionAlteration,
    TopicAlteration,
)
from minibroker.replication.tables.broker_registration import BrokerRegistrationRequest
from minibroker.replication.tables.broker_registration import Listener as RegisteredListener
from minibroker.replication.tables.describe_producers import DescribeProducersRequest
from minibroker.replication.tables.describe_producers import TopicRequest as ProducersOf
from minibroker.replication.tables.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker.replication.tables.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from minibroker.wire.tables.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

R = TypeVar("R")


class One:
    """Routes to the replica of one node of a stage."""

    internal: Mapping[bytes, Serve] = {}

    def __init__(self, stage: Stage, node_id: int) -> None:
        self._stage = stage
        self._node_id = node_id

    def partition(self, topic: str, index: int) -> LocalPartition:
        if (topic, index) != ("orders", 0):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")
        return self._stage.nodes[self._node_id].local

    def topic_name(self, topic_id: bytes) -> str:
        return "orders"

    def leader(self, name: TopicPartition, listener: str) -> Leader | None:
        return None


class Broker:
    """The handlers of one node of a stage."""

    def __init__(self, stage: Stage, node_id: int = 1) -> None:
        self.waiting: Waiting[Response] = Waiting()
        self.registry = Registry()
        stage.nodes[node_id].replica._wake = self.waiting.wake
        routes = One(stage, node_id)
        self.registry.add(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpoch(routes, lambda _name: stage.nodes[node_id].replica)
        )
        self.registry.add(ApiKey.DESCRIBE_PRODUCERS, DescribeProducers(routes))
        self.registry.add(ApiKey.LIST_OFFSETS, ListOffsets(routes))
        self.registry.add(ApiKey.DELETE_RECORDS, DeleteRecords(routes))

    def ask(self, request: Request, version: int | None = None) -> Any:
        """The response of a request that does not wait."""
        return ask(self.registry, request, version)

    def wait_for(self, request: Request) -> list[Any]:
        """Send a request that waits; the returned list gets the response."""
        outcome = dispatch(self.registry, request)
        assert isinstance(outcome, Deferred), "the answer does not wait"
        responses: list[Any] = []
        self.waiting.park(
            outcome.wait, lambda it: responses.append(answered(request, outcome.reply(it), None)), now_ms=0
        )
        return responses


class Authority(AuthorityNode):
    """The handlers of the controller, with three registered nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = {node_id: self.register(node_id) for node_id in (1, 2, 3)}
        self.create([1, 2, 3])
        self.live: Collection[int] = (1, 2, 3)
        self.registry = registry_of(Decisions(self.voter, NodeConfig(), live=lambda: self.live))

    def ask(self, request: Request, version: int | None = None) -> Any:
        return ask(self.registry, request, version)


def registry_of(decisions: Decisions) -> Registry:
    registry = Registry()
    registry.add(ApiKey.ALTER_PARTITION, decisions.alter_partition)
    registry.add(ApiKey.BROKER_REGISTRATION, decisions.register)
    registry.add(ApiKey.ALLOCATE_PRODUCER_IDS, decisions.allocate_producer_ids)
    registry.add(ApiKey.ELECT_LEADERS, decisions.elect_leaders)
    return registry


def dispatch(registry: Registry, request: Request, version: int | None = None) -> Reply | Deferred:
    version = APIS[request.schema.key or 0].max_version if version is None else version
    parts = frame_request(request, version=version, correlation_id=7, client_id="test")
    return registry.dispatch(memoryview(bytearray(joined(parts)))[4:], now_ms=0, session=Session("test"))


def ask(registry: Registry, request: Request, version: int | None = None) -> Any:
    outcome = dispatch(registry, request, version)
    assert isinstance(outcome, Reply), "the answer waits"
    return answered(request, outcome, version)


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def play(*steps: str) -> Stage:
    stage = Stage()
    stage.play("\n".join(f"> {step}" for step in steps))
    return stage


# Requests to a replica ------------------------------------------------------------------------------------------------


def epoch_end(broker: Broker, epoch: int, *, current: int = -1, version: int | None = None, index: int = 0) -> Any:
    wanted = OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="orders", partitions=[wanted])])
    (topic,) = broker.ask(request, version).topics
    (answer,) = topic.partitions
    assert (topic.topic, answer.partition) == ("orders", index)
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_a_leader_tells_where_an_epoch_ends() -> None:
    """KIP-320."""
    for version in versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        with case(version):
            stage = play("nodes 1 2", "produce a b", "fetch 2", "elect 2", "tell", "produce c")
            broker = Broker(stage, 2)
            assert epoch_end(broker, 0, version=version) == (ErrorCode.NONE, 0, 2)
            assert epoch_end(broker, 1, version=version) == (ErrorCode.NONE, 1, 3)
            assert epoch_end(broker, 5, version=version) == (ErrorCode.NONE, -1, -1)


def test_a_client_with_another_epoch_or_at_the_wrong_node_is_refused() -> None:
    stage = play("nodes 1 2", "produce a", "elect 2", "tell")
    assert epoch_end(Broker(stage, 2), 0, current=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert epoch_end(Broker(stage, 2), 0, current=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(Broker(stage, 1), 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert epoch_end(Broker(stage, 1), 0, index=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


def test_every_replica_tells_what_it_remembers_of_producers() -> None:
    """KIP-664: a hanging transaction is looked for on each replica. Only a replica whose disk has failed refuses."""
    stage = play("nodes 1 2", "produce a b as 7:0", "fetch 2", "produce c as 7:2")
    request = DescribeProducersRequest(topics=[ProducersOf(name="orders", partition_indexes=[0, 4])])
    (topic,) = Broker(stage).ask(request).topics
    known, unknown = topic.partitions
    assert (known.error_code, unknown.error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert unknown.error_message == "there is no orders-4"
    (producer,) = known.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 0, 2)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    (other,) = Broker(stage, 2).ask(request).topics
    # The follower has not fetched the second batch yet.
    (producer,) = other.partitions[0].active_producers
    assert (other.partitions[0].error_code, producer.producer_id, producer.last_sequence) == (ErrorCode.NONE, 7, 1)
    stage.nodes[2].local.log._tail.failure = "the disk is gone"
    (other,) = Broker(stage, 2).ask(request).topics
    assert other.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert other.partitions[0].error_message == "orders-0 is offline: the disk is gone"


def test_a_leader_that_does_not_know_the_watermark_says_so_as_the_version_allows() -> None:
    """KIP-207: an older client knows only that there may be no leader."""
    for version in versions(ApiKey.LIST_OFFSETS):
        with case(version):
            stage = play("nodes 1 2", "produce a", "fetch 2", "elect 2", "tell")
            wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
            request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="orders", partitions=[wanted])])
            broker = Broker(stage, 2)
            refused = broker.ask(request, version).topics[0].partitions[0]
            expected = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
            assert refused.error_code == expected
            stage.play("> fetch 1")
            answer = broker.ask(request, version).topics[0].partitions[0]
            assert (answer.error_code, answer.offset) == (ErrorCode.NONE, 1)


def test_any_replica_says_where_its_own_log_ends_if_it_is_asked_as_such() -> None:
    """Kafka's replica id -2. An operator compares the replicas of a partition that has no leader."""
    stage = play("nodes 1 2 3", "produce a b", "fetch 2", "produce c")
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    for node_id, replica_id, expected in (
        (1, -2, (ErrorCode.NONE, 3, 0)),
        (2, -2, (ErrorCode.NONE, 2, 0)),
        (3, -2, (ErrorCode.NONE, 0, -1)),
        (2, -1, (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)),
    ):
        with case(node_id, replica_id):
            topics = [ListOffsetsTopic(name="orders", partitions=[wanted])]
            request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
            answer = Broker(stage, node_id).ask(request).topics[0].partitions[0]
            assert (answer.error_code, answer.offset, answer.leader_epoch) == expected


# DeleteRecords --------------------------------------------------------------------------------------------------------


def delete(offset: int, *, indexes: Collection[int] = (0,)) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=index, offset=offset) for index in indexes]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="orders", partitions=partitions)], timeout_ms=1000)


def results(response: Any) -> list[tuple[int, int, int]]:
    (topic,) = response.topics
    return [(it.partition_index, it.error_code, it.low_watermark) for it in topic.partitions]


REPLICATED = ("nodes 1 2", "produce a b", "fetch 2", "fetch 2")


class Deletion:
    """A leader that deletes its first record and waits for its follower to do the same."""

    def __init__(self, **options: Any) -> None:
        self.stage = play(*REPLICATED)
        self.broker = Broker(self.stage)
        self.responses = self.broker.wait_for(delete(1, **options))

    def results(self, *steps: str) -> list[Any]:
        """The answer after some more steps."""
        self.stage.play("\n".join(f"> {step}" for step in steps))
        self.broker.waiting.settle()
        return [results(it) for it in self.responses]


def test_records_are_deleted_once_no_replica_in_sync_has_them() -> None:
    """KIP-107: otherwise the next leader would bring them back."""
    deletion = Deletion()
    assert deletion.results("fetch 2") == []
    # The follower deletes them with this answer, and the leader learns it from the next fetch.
    assert deletion.results("fetch 2") == [[(0, ErrorCode.NONE, 1)]]


def test_a_follower_that_is_not_in_sync_is_not_waited_for() -> None:
    stage = play(*REPLICATED, "produce c", "tick 31000", "alter 1")
    assert results(Broker(stage).ask(delete(-1))) == [(0, ErrorCode.NONE, 3)]


def test_the_wait_for_a_follower_ends_when_it_leaves_the_in_sync_set() -> None:
    assert Deletion().results("produce c", "tick 31000", "alter 1") == [[(0, ErrorCode.NONE, 1)]]


def test_a_client_that_waits_at_a_deposed_leader_is_told_so() -> None:
    codes = [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert Deletion(indexes=[0, 4]).results("elect 2", "tell") == [codes]


def test_the_client_is_told_that_a_follower_did_not_delete_in_time() -> None:
    deletion = Deletion()
    deletion.broker.waiting.expire(1000)
    assert deletion.results() == [[(0, ErrorCode.REQUEST_TIMED_OUT, 0)]]


def test_a_refused_deletion_does_not_wait() -> None:
    stage = play(*REPLICATED)
    assert results(Broker(stage).ask(delete(9))) == [(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
    assert results(Broker(stage, 2).ask(delete(1))) == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


# AlterPartition -------------------------------------------------------------------------------------------------------


def alteration(members: dict[int, int], version: int, *, index: int = 0, partition_epoch: int = 0) -> TopicAlteration:
    names: dict[str, Any] = (
        {"new_isr_with_epochs": [BrokerState(broker_id=it, broker_epoch=epoch) for it, epoch in members.items()]}
        if version >= 3
        else {"new_isr": list(members)}
    )
    it = PartitionAlteration(partition_index=index, leader_epoch=0, partition_epoch=partition_epoch, **names)
    return TopicAlteration(topic_id=TOPIC_ID, partitions=[it])


def alter(*topics: TopicAlteration, broker_epoch: int = -1) -> AlterPartitionRequest:
    return AlterPartitionRequest(broker_id=1, broker_epoch=broker_epoch, topics=list(topics))


def test_a_leader_is_answered_with_the_partitions_new_state() -> None:
    for version in versions(ApiKey.ALTER_PARTITION):
        with case(version):
            authority = Authority()
            members = {1: authority.epochs[1], 3: authority.epochs[3]}
            response = authority.ask(alter(alteration(members, version), broker_epoch=authority.epochs[1]), version)
            (topic,) = response.topics
            (it,) = topic.partitions
            assert (response.error_code, topic.topic_id, it.partition_index) == (ErrorCode.NONE, TOPIC_ID, 0)
            assert (it.error_code, it.leader_id, it.leader_epoch, it.isr, it.partition_epoch) == (0, 1, 0, [1, 3], 1)
            assert authority.partition.isr == (1, 3)


def test_before_version_3_a_leader_names_no_broker_epochs() -> None:
    """KIP-903."""
    authority = Authority()
    authority.ask(alter(alteration({1: -1}, 2)), 2)
    stale = {1: -1, 2: authority.epochs[2] - 1}
    (topic,) = authority.ask(alter(alteration(stale, 3, partition_epoch=1)), 3).topics
    assert topic.partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    (topic,) = authority.ask(alter(alteration(stale, 2, partition_epoch=1)), 2).topics
    assert topic.partitions[0].error_code == ErrorCode.NONE


def test_each_partition_is_answered_under_its_topic() -> None:
    authority = Authority()
    request = alter(alteration({1: -1}, 3), alteration({1: -1}, 3, index=7))
    (topic,) = authority.ask(request).topics
    codes = [(it.partition_index, it.error_code) for it in topic.partitions]
    assert codes == [(0, ErrorCode.NONE), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def test_a_request_with_a_stale_broker_epoch_is_refused_as_a_whole() -> None:
    authority = Authority()
    response = authority.ask(alter(alteration({1: -1}, 3), broker_epoch=authority.epochs[1] - 1))
    assert (response.error_code, response.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])


# BrokerRegistration and AllocateProducerIds ---------------------------------------------------------------------------


def registration(node_id: int = 2, **values: Any) -> BrokerRegistrationRequest:
    listeners = [RegisteredListener(**it._asdict()) for it in ENDPOINTS]
    named: dict[str, Any] = {"cluster_id": "test", "incarnation_id": b"new".rjust(16), "listeners": listeners} | values
    return BrokerRegistrationRequest(broker_id=node_id, **named)


def test_a_broker_registers_and_says_whether_its_logs_are_complete() -> None:
    """KIP-966. Before version 3 a broker cannot say it, so it leaves the in-sync set."""
    for version in versions(ApiKey.BROKER_REGISTRATION):
        with case(version):
            authority = Authority()
            request = registration(rack="a", previous_broker_epoch=authority.epochs[2] if version >= 3 else -1)
            response = authority.ask(request, version)
            broker = authority.image.brokers[2]
            assert (response.error_code, response.broker_epoch) == (ErrorCode.NONE, broker.epoch)
            assert (broker.rack, broker.incarnation_id, broker.endpoints) == ("a", b"new".rjust(16), ENDPOINTS)
            assert authority.partition.isr == ((1, 2, 3) if version >= 3 else (1, 3))


def test_a_broker_of_another_cluster_is_refused() -> None:
    authority = Authority()
    known = authority.image.brokers[2]
    response = authority.ask(registration(cluster_id="another"))
    assert (response.error_code, response.broker_epoch) == (ErrorCode.INCONSISTENT_CLUSTER_ID, -1)
    assert authority.image.brokers[2] == known


def test_brokers_get_blocks_of_producer_ids_that_do_not_overlap() -> None:
    """KIP-730."""
    authority = Authority()
    blocks = [
        authority.ask(AllocateProducerIdsRequest(broker_id=it, broker_epoch=authority.epochs[it])) for it in (1, 2)
    ]
    assert [it.error_code for it in blocks] == [ErrorCode.NONE, ErrorCode.NONE]
    assert blocks[0].producer_id_start + blocks[0].producer_id_len <= blocks[1].producer_id_start
    stale = authority.ask(AllocateProducerIdsRequest(broker_id=1, broker_epoch=authority.epochs[1] - 1))
    assert (stale.error_code, stale.producer_id_len) == (ErrorCode.STALE_BROKER_EPOCH, 0)


# ElectLeaders ---------------------------------------------------------------------------------------------------------


def election(*partitions: int, **values: Any) -> ElectLeadersRequest:
    topics = [TopicPartitions(topic="orders", partitions=list(partitions))] if partitions else None
    return ElectLeadersRequest(topic_partitions=topics, timeout_ms=1000, **values)


def test_an_operator_has_leaders_elected_among_the_nodes_that_answer() -> None:
    """KIP-460."""
    for version in versions(ApiKey.ELECT_LEADERS):
        with case(version):
            authority = Authority()
            authority.live = (2, 3)
            response = authority.ask(election(0, 5), version)
            (topic,) = response.replica_election_results
            codes = [(it.partition_id, it.error_code) for it in topic.partition_result]
            assert (topic.topic, codes) == ("orders", [(0, ErrorCode.NONE), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)])
            assert (topic.partition_result[0].error_message, topic.partition_result[1].error_message) == (
                None,
                "there is no orders-5",
            )
            assert authority.partition.leader == 2


def test_only_a_request_for_an_unclean_election_gets_one() -> None:
    authority = Authority()
    authority.ask(alter(alteration({1: -1}, 3)))
    authority.live = (3,)
    refused = authority.ask(election(0)).replica_election_results[0].partition_result[0]
    assert refused.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    done = authority.ask(election(0, election_type=1)).replica_election_results[0].partition_result[0]
    assert done.error_code == ErrorCode.NONE
    assert authority.partition.leader == 3


def test_a_request_for_all_partitions_lists_those_that_needed_an_election() -> None:
    authority = Authority()
    assert authority.ask(election()).replica_election_results == []
    asked = authority.ask(election(0)).replica_election_results[0].partition_result[0]
    assert asked.error_code == ErrorCode.ELECTION_NOT_NEEDED
    authority.live = (2,)
    (topic,) = authority.ask(election()).replica_election_results
    assert [it.error_code for it in topic.partition_result] == [ErrorCode.NONE]


def test_an_election_of_another_kind_is_refused() -> None:
    authority = Authority()
    response = authority.ask(election(0, election_type=2))
    assert (response.error_code, response.replica_election_results) == (ErrorCode.INVALID_REQUEST, [])


# A slow controller ----------------------------------------------------------------------------------------------------


class Slow:
    """A controller that decides later or never, as chapter 05's quorum may."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.proposals: list[tuple[Command[Any], Proposal[Any]]] = []

    def propose(self, command: Command[R]) -> Proposal[R]:
        proposal: Proposal[R] = Proposal()
        self.proposals.append((command, proposal))
        return proposal

    def subscribe(self, listener: Listener) -> None:
        pass


def test_a_request_that_is_not_decided_in_time_is_answered_with_a_timeout() -> None:
    cases: dict[str, Callable[[], Request]] = {
        "alter": lambda: alter(alteration({1: -1}, 3)),
        "register": registration,
        "allocate": lambda: AllocateProducerIdsRequest(broker_id=1),
        "elect": lambda: election(0),
    }
    for name, request_of in cases.items():
        with case(name):
            authority = Authority()
            slow = Slow(authority.image)
            request = request_of()
            registry = registry_of(Decisions(slow, NodeConfig(), live=lambda: (1, 2, 3)))
            outcome = dispatch(registry, request)
            assert isinstance(outcome, Deferred)
            assert outcome.wait.attempt() is None
            response = answered(request, outcome.reply(outcome.wait.expire()), None)
            # An election has a code for each partition.
            by_partition = isinstance(request, ElectLeadersRequest)
            it = response.replica_election_results[0].partition_result[0] if by_partition else response
            assert it.error_code == ErrorCode.REQUEST_TIMED_OUT
            # A command that is decided later is answered with its result.
            ((command, proposal),) = slow.proposals
            proposal.complete(authority.voter.propose(command).result)
            assert outcome.wait.attempt() is not None
