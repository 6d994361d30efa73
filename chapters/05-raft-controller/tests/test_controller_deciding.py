"""Claims about the decisions of the controller: uncommitted, committed, and lost ones."""

from typing import Any

from controller_nodes import ORDERS, Trio
from hypothesis import given, settings
from hypothesis import strategies as st
from replication_nodes import ENDPOINTS

from minibroker.controller.deciding import Controller
from minibroker.controller.lifecycle import Heartbeat, RegisterFenced
from minibroker.controller.snapshot import records_of
from minibroker.metadata import records as kinds
from minibroker.metadata.config_keys import ConfigResource
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.decision import Command
from minibroker.metadata.image import Image, fold_all
from minibroker.metadata.topic_commands import CreateTopics, DeleteTopics, NewTopic, TopicReference
from minibroker.partitions.producer_ids import InitProducerId
from minibroker.partitions.registry import Call, Session
from minibroker.partitions.waiting import Wait
from minibroker.raft.messages import BeginQuorumEpoch
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def registration(broker_id: int) -> Command[Any]:
    return RegisterFenced(broker_id=broker_id, endpoints=ENDPOINTS, incarnation_id=bytes([broker_id] * 16))


def led() -> Trio:
    trio = Trio()
    trio.elect(1)
    trio.pump()
    assert trio.controllers[1].is_active
    return trio


def test_a_leader_is_not_the_controller_before_its_epoch_has_a_committed_record() -> None:
    trio = Trio()
    controller = trio.elect(1)
    assert not controller.is_active
    assert controller.propose(registration(1)).result.code is ErrorCode.NOT_CONTROLLER
    trio.fetch(2)
    trio.fetch(2)
    assert controller.is_active


def test_a_controller_sets_missing_features_and_configurations_once() -> None:
    """KIP-966: the number that must be in sync is in the metadata, and not only in the files of nodes."""
    trio = Trio(1)
    controller = trio.controllers[1]
    controller._configs = {"min.insync.replicas": "2"}
    trio.elect(1)
    trio.catch_up()
    assert controller.image.features == {"metadata.version": 7, "eligible.leader.replicas.version": 1}
    assert controller.image.configs == {(ConfigResource.BROKER, ""): {"min.insync.replicas": "2"}}
    # The next controller has another file, and changes nothing.
    again = Controller(trio.nodes[1].open(trio.now_ms), Image(), clock=lambda: 7, configs={"min.insync.replicas": "3"})
    trio.controllers[1] = again
    trio.elect(1)
    trio.catch_up()
    assert again.is_active
    assert again.image.configs == {(ConfigResource.BROKER, ""): {"min.insync.replicas": "2"}}


def test_a_proposal_is_done_when_a_majority_has_it_and_all_see_the_same() -> None:
    trio = led()
    proposal = trio.controllers[1].propose(registration(7))
    is_done = [proposal.is_done]
    for _ in range(2):
        # The first fetch asks for the record; the second one shows that the follower has it.
        trio.fetch(2)
        is_done.append(proposal.is_done)
    assert is_done == [False, False, True]
    assert trio.done == [proposal]
    trio.pump()
    images = [it.image for it in trio.controllers.values()]
    assert images[0] == images[1] == images[2]
    assert images[0].brokers[7].epoch == proposal.result.epoch


def test_uncommitted_records_of_a_deposed_controller_are_never_seen() -> None:
    trio = led()
    seen: list[Image] = []
    for controller in trio.controllers.values():
        controller.subscribe(lambda _old, new: seen.append(new))
    lost = trio.controllers[1].propose(registration(7))
    # Node 1 does not hear that node 2 is elected, and goes on for a while.
    trio.elect(2)
    trio.fetch(3)
    trio.fetch(3)
    kept = trio.controllers[2].propose(registration(8))
    trio.fetch(3)
    trio.fetch(3)
    assert (lost.is_done, kept.is_done) == (False, True)
    raft = trio.nodes[2].raft
    trio.nodes[1].raft.on_begin(BeginQuorumEpoch(raft.epoch, 2, raft.voters.key_of(1)), trio.now_ms)
    trio.catch_up()
    assert (lost.result.code, kept.result.code) == (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)
    trio.pump()
    assert all(7 not in image.brokers for image in seen)
    assert [sorted(it.image.brokers) for it in trio.controllers.values()] == [[8], [8], [8]]


def test_a_producer_gets_a_retriable_code_when_the_controller_is_deposed() -> None:
    trio = Trio()
    old = trio.elect(1)
    trio.pump()
    old.propose(RegisterFenced(broker_id=1, endpoints=ENDPOINTS, incarnation_id=b"1" * 16))
    trio.pump()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    waiting = InitProducerId(old, 1)(
        Call(request, 0, RequestHeader(ApiKey.INIT_PRODUCER_ID, 0, 1, None), 0, Session(""))
    )
    assert isinstance(waiting, Wait)
    trio.elect(2)
    raft = trio.nodes[2].raft
    trio.nodes[1].raft.on_begin(BeginQuorumEpoch(raft.epoch, 2, raft.voters.key_of(1)), trio.now_ms)
    trio.catch_up()
    answer = waiting.attempt()
    assert isinstance(answer, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_deleted_topics_are_known_from_the_committed_records() -> None:
    """Reading the log once for every directory took an hour with a thousand directories."""
    trio = led()
    controller, topic_ids = trio.controllers[1], {name: name.encode().ljust(16) for name in ("kept", "gone", "going")}
    broker_epoch = controller.propose(registration(7))
    trio.pump()
    controller.propose(Heartbeat(7, broker_epoch.result.epoch, 10**6))
    topics = [NewTopic(name, topic_id, assignments=[(0, [7])]) for name, topic_id in topic_ids.items()]
    controller.propose(CreateTopics(topics, NodeConfig()))
    controller.propose(DeleteTopics([TopicReference("gone")]))
    trio.pump()
    controller.propose(DeleteTopics([TopicReference("going")]))
    assert sorted(controller.image.topics) == ["going", "kept"]
    assert [set(it.removed_topics()) for it in trio.controllers.values()] == [{topic_ids["gone"]}] * 3
    # `removed_topics` is called once, and its set is dropped.
    trio.pump()
    assert not any(it.removed_topics() for it in trio.controllers.values())


def test_an_only_voter_is_the_controller_at_once() -> None:
    trio = Trio(1)
    controller = trio.elect(1)
    assert controller.is_active
    trio.catch_up()
    topic = NewTopic("orders", bytes([1] * 16), assignments=[(0, [7])])
    controller.propose(registration(7))
    created = controller.propose(CreateTopics([topic], NodeConfig()))
    assert created.is_done
    assert kinds.METADATA_VERSION in controller.image.features
    assert (controller.image.partition(ORDERS) is not None) == (created.result[0].code is ErrorCode.NONE)


# A snapshot of the metadata -------------------------------------------------------------------------------------------

BROKERS = st.builds(
    kinds.RegisterBrokerRecord,
    broker_id=st.integers(0, 9),
    incarnation_id=st.binary(min_size=16, max_size=16),
    broker_epoch=st.integers(0, 2**40),
    end_points=st.lists(
        st.builds(
            kinds.BrokerEndpoint,
            name=st.sampled_from(["A", "B"]),
            host=st.sampled_from(["", "localhost"]),
            port=st.integers(0, 65535),
            security_protocol=st.integers(0, 3),
        ),
        min_size=1,
        max_size=2,
    ),
    rack=st.none() | st.text(max_size=3),
    fenced=st.booleans(),
    in_controlled_shutdown=st.booleans(),
)
NODES = st.lists(st.integers(0, 9), max_size=4, unique=True)
TOPICS = st.dictionaries(
    st.sampled_from(["orders", "a.b", "a_b", "x"]),
    st.lists(
        st.builds(
            kinds.PartitionRecord,
            topic_id=st.just(bytes(16)),
            partition_id=st.just(0),
            replicas=NODES,
            isr=NODES,
            adding_replicas=NODES,
            removing_replicas=NODES,
            leader=st.integers(-1, 9),
            leader_epoch=st.integers(0, 99),
            partition_epoch=st.integers(0, 99),
            leader_recovery_state=st.integers(0, 1),
            eligible_leader_replicas=st.none() | NODES,
            last_known_elr=st.none() | NODES,
        ),
        max_size=3,
    ),
)
CONFIGS = st.builds(
    kinds.ConfigRecord,
    resource_type=st.sampled_from([it.value for it in ConfigResource]),
    resource_name=st.sampled_from(["", "1", "orders"]),
    name=st.sampled_from(["retention.ms", "a"]),
    value=st.text(max_size=5),
)


QUOTAS = st.builds(
    kinds.ClientQuotaRecord,
    entity=st.lists(
        st.builds(
            kinds.QuotaEntityData,
            entity_type=st.sampled_from(["user", "client-id"]),
            entity_name=st.none() | st.text(max_size=3),
        ),
        max_size=2,
        unique_by=lambda it: it.entity_type,
    ),
    key=st.sampled_from(["producer_byte_rate", "consumer_byte_rate"]),
    value=st.floats(1, 10**9),
    remove=st.just(False),
)


@settings(max_examples=60)
@given(
    st.lists(BROKERS, max_size=5),
    TOPICS,
    st.lists(CONFIGS | QUOTAS, max_size=9),
    st.integers(0, 10**6),
    st.integers(1, 9),
)
def test_the_records_of_an_image_make_the_same_image(
    brokers: list[kinds.RegisterBrokerRecord],
    topics: dict[str, list[kinds.PartitionRecord]],
    configs: list[kinds.ConfigRecord | kinds.ClientQuotaRecord],
    producer_ids: int,
    level: int,
) -> None:
    records: list[kinds.MetadataRecord] = [
        kinds.FeatureLevelRecord(name=kinds.METADATA_VERSION, feature_level=level),
        *brokers,
    ]
    for name, partitions in topics.items():
        topic_id = name.encode().rjust(16, b"\0")
        records.append(kinds.TopicRecord(name=name, topic_id=topic_id))
        for number, partition in enumerate(partitions):
            partition.topic_id, partition.partition_id = topic_id, number
            records.append(partition)
    records += [*configs, kinds.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=producer_ids)]
    image = fold_all(Image(cluster_id="c"), enumerate(records))
    told = [kinds.decode_record(kinds.encode_record(it)) for it in records_of(image)]
    again = fold_all(Image(cluster_id="c"), enumerate(told, start=image.offset + 1 - len(told)))
    assert again == image
