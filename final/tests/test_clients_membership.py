"""Claims about one member of a group, whose coordinator is the test."""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from cases import case

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerError, ClientClosed, ClientError, ConnectionLost, RequestTimedOut
from minibroker.clients.core import Ask, ClientConfig, Core, Pause
from minibroker.clients.errors import InvalidSetting
from minibroker.clients.membership import Change, ClassicMember, ConsumerMember, Member, MemberConfig
from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from minibroker.groups.tables.consumer_group_heartbeat import (
    ConsumerGroupAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from minibroker.wire.tables.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

R = TypeVar("R")
TOPIC, TOPIC_ID = "orders", bytes(range(16))
INTERVAL_MS = 1_000
LOST = ConnectionLost("gone")


def partitions(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPIC, it) for it in numbers)


class Talk:
    """A member and its coordinator. The coordinator is node 7, until `coordinator` says otherwise."""

    def __init__(self, *, is_classic: bool = True, is_topic_known: bool = True, **settings: Any) -> None:
        self.now_ms = 0.0
        self.coordinator = 7
        self.partition_count = 4
        self.topics = [TOPIC] if is_topic_known else []
        self.asked: list[str] = []
        self.core = Core([Address("h", 1)], ClientConfig(), clock=lambda: self.now_ms, chance=lambda: 0.5)
        topics = [] if "pattern" in settings else [TOPIC]
        config = MemberConfig("g", topics, heartbeat_interval_ms=INTERVAL_MS, **settings)
        self.member: Member = (
            ClassicMember(self.core, config) if is_classic else ConsumerMember(self.core, config, member_id="mine")
        )
        self._dialogue = self.member.live()
        self._order: Ask | Pause | None = next(self._dialogue)

    def next_ask(self) -> Ask | None:
        """The next request to the coordinator; None if the dialogue has ended. Time passes as the member wants."""
        for _step in range(1_000):
            order = self._order
            if order is None:
                return None
            if isinstance(order, Pause):
                self.now_ms += order.ms
                self.answer(None)
            elif isinstance(order.message, FindCoordinatorRequest):
                self.asked.append("find")
                self.answer(FindCoordinatorResponse(node_id=self.coordinator, host="h", port=1))
            elif isinstance(order.message, MetadataRequest):
                self.asked.append("metadata")
                self.answer(self._metadata())
            else:
                return order
        raise AssertionError("the member asks for nothing, again and again")

    def next(self, kind: type[R]) -> R:
        """The next request to the coordinator, which must be of this kind."""
        order = self.next_ask()
        assert order is not None, "the dialogue has ended"
        assert order.node_id == self.coordinator
        assert isinstance(order.message, kind), order.message
        return order.message

    def answer(self, response: object) -> None:
        """Answer the request, or end the pause."""
        try:
            if isinstance(response, ClientError):
                self._order = self._dialogue.throw(response)
            else:
                self._order = self._dialogue.send(response)
        except StopIteration:
            self._order = None

    def wake(self) -> None:
        """End a pause early, as after a change of the application."""
        assert isinstance(self._order, Pause)
        self.answer(None)

    def _metadata(self) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=it, host="h", port=it, rack=None) for it in (7, 8)]
        parts = [
            MetadataResponsePartition(
                error_code=0, partition_index=it, leader_id=7, leader_epoch=0, replica_nodes=[7], isr_nodes=[7]
            )
            for it in range(self.partition_count)
        ]
        topics = [
            MetadataResponseTopic(
                error_code=0, name=it, topic_id=TOPIC_ID, is_internal=it.startswith("__"), partitions=parts
            )
            for it in self.topics
        ]
        return MetadataResponse(brokers=brokers, topics=topics)

    # A rebalance of the classic protocol.

    def join(self, *, generation: int = 1, leader: str = "me", mine: Sequence[int] = (0, 1, 2, 3)) -> JoinGroupRequest:
        """Let the member join a generation and get partitions; return its request."""
        request = self.next(JoinGroupRequest)
        protocol = request.protocols[0]
        members = [JoinGroupResponseMember(member_id="me", metadata=protocol.metadata)] if leader == "me" else []
        self.answer(
            JoinGroupResponse(
                generation_id=generation,
                protocol_type="consumer",
                protocol_name=protocol.name,
                leader=leader,
                member_id="me",
                members=members,
            )
        )
        self.next(SyncGroupRequest)
        topics = [AssignedTopicPartitions(topic=TOPIC, partitions=list(mine))]
        assignment = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics))
        self.answer(SyncGroupResponse(assignment=assignment))
        return request

    def follow(self) -> Change | None:
        """Be the application: do what the member wants."""
        change = self.member.change()
        if change is not None:
            self.member.release(change.revoked)
            self.member.acquire(change.added)
        return change

    # A heartbeat of the new protocol.

    def assign(self, *numbers: int, epoch: int, topic_id: bytes = TOPIC_ID) -> ConsumerGroupHeartbeatRequest:
        request = self.next(ConsumerGroupHeartbeatRequest)
        topics = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=list(numbers))] if numbers else []
        self.answer(beat(epoch, ConsumerGroupAssignment(topic_partitions=topics)))
        return request


def beat(epoch: int, assignment: ConsumerGroupAssignment | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id="mine", member_epoch=epoch, heartbeat_interval_ms=INTERVAL_MS, assignment=assignment
    )


def reported(request: ConsumerGroupHeartbeatRequest) -> list[int] | None:
    if request.topic_partitions is None:
        return None
    return [number for topic in request.topic_partitions for number in topic.partitions]


# Both protocols.


def test_a_coordinator_that_is_gone_or_moved_is_searched_again() -> None:
    for what, trouble in {
        "lost": LOST,
        "timed out": RequestTimedOut("late"),
        "moved": HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR),
        "none": HeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
    }.items():
        with case(what):
            talk = Talk()
            talk.join()
            talk.follow()
            talk.next(HeartbeatRequest)
            talk.coordinator = 8
            talk.answer(trouble)
            assert talk.next(HeartbeatRequest).member_id == "me"
            assert talk.member.owned == partitions(0, 1, 2, 3)
            assert talk.asked.count("find") == 2


def test_a_coordinator_that_loads_is_asked_again_and_keeps_the_member() -> None:
    talk = Talk()
    talk.join()
    talk.next(HeartbeatRequest)
    before_ms = talk.now_ms
    talk.answer(HeartbeatResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    talk.next(HeartbeatRequest)
    assert talk.now_ms > before_ms
    assert talk.asked.count("find") == 1


def test_an_error_that_does_not_pass_ends_the_dialogue_and_is_kept_for_the_application() -> None:
    talk = Talk()
    talk.next(JoinGroupRequest)
    talk.answer(JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    assert talk.next_ask() is None
    assert isinstance(talk.member.error, BrokerError)
    assert talk.member.error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_bytes_that_are_no_assignment_are_an_error_for_the_application() -> None:
    talk = Talk()
    talk.next(JoinGroupRequest)
    talk.answer(JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="me"))
    talk.next(SyncGroupRequest)
    talk.answer(SyncGroupResponse(assignment=b"\x00\x00\xff"))
    talk.next(LeaveGroupRequest)
    assert "cannot be decoded" in str(talk.member.error)


def test_settings_that_cannot_work_are_refused() -> None:
    for what, settings in {
        "assignor": {"group_id": "g", "topics": ["t"], "assignors": ["rnage"]},
        "none": {"group_id": "g", "topics": ["t"], "assignors": []},
        "group": {"group_id": "", "topics": ["t"]},
        "topics": {"group_id": "g", "topics": []},
        "both": {"group_id": "g", "topics": ["t"], "pattern": "t"},
        "empty": {"group_id": "g", "pattern": ""},
    }.items():
        with case(what), pytest.raises(InvalidSetting):
            MemberConfig(**settings)  # type: ignore[arg-type]


def test_an_application_that_does_not_poll_leaves_the_group_until_it_polls_again() -> None:
    talk = Talk(max_poll_interval_ms=2_500)
    talk.join()
    talk.follow()
    for _beat in range(3):
        talk.next(HeartbeatRequest)
        talk.answer(HeartbeatResponse())
    talk.next(LeaveGroupRequest)
    talk.answer(LeaveGroupResponse())
    assert talk.member.change() == Change(partitions(0, 1, 2, 3), partitions(), is_lost=True)
    talk.wake()
    assert talk.member.on_poll()
    talk.follow()
    talk.wake()
    talk.next(JoinGroupRequest)


# The classic protocol.


def test_a_member_joins_with_the_id_that_it_is_given_and_the_leader_assigns() -> None:
    talk = Talk()
    assert talk.next(JoinGroupRequest).member_id == ""
    talk.answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    request = talk.next(JoinGroupRequest)
    assert request.member_id == "me"
    assert decode_subscription(request.protocols[0].metadata).topics == [TOPIC]
    members = [
        JoinGroupResponseMember(member_id=it, metadata=request.protocols[0].metadata) for it in ("me", "another")
    ]
    talk.answer(JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=members))
    assignments = talk.next(SyncGroupRequest).assignments
    given = {it.member_id: decode_assignment(it.assignment).assigned_partitions[0].partitions for it in assignments}
    assert given == {"another": [0, 1], "me": [2, 3]}


def test_a_leader_that_is_told_to_keep_the_assignment_sends_none() -> None:
    talk = Talk(instance_id="static")
    request = talk.next(JoinGroupRequest)
    members = [JoinGroupResponseMember(member_id="me", metadata=request.protocols[0].metadata)]
    talk.answer(
        JoinGroupResponse(
            generation_id=1, protocol_name="range", leader="me", member_id="me", members=members, skip_assignment=True
        )
    )
    assert talk.next(SyncGroupRequest).assignments == []


def test_an_eager_member_gives_up_everything_before_it_joins_again() -> None:
    talk = Talk()
    talk.join()
    talk.follow()
    talk.next(HeartbeatRequest)
    talk.answer(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert talk.member.change() == Change(partitions(0, 1, 2, 3), partitions(), is_lost=False)
    # The application is still at work, and the heartbeats go on.
    talk.next(HeartbeatRequest)
    talk.answer(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    talk.follow()
    talk.wake()
    assert decode_subscription(talk.next(JoinGroupRequest).protocols[0].metadata).owned_partitions == []


def test_a_cooperative_member_reads_on_and_joins_once_more_for_what_it_gives_up() -> None:
    talk = Talk(assignors=["cooperative-sticky"])
    talk.join()
    talk.follow()
    talk.next(HeartbeatRequest)
    talk.answer(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    request = talk.join(generation=2, leader="another", mine=[0, 1])
    subscription = decode_subscription(request.protocols[0].metadata)
    assert [it.partitions for it in subscription.owned_partitions] == [[0, 1, 2, 3]]
    assert subscription.generation_id == 1
    assert talk.follow() == Change(partitions(2, 3), partitions(), is_lost=False)
    talk.wake()
    request = talk.join(generation=3, leader="another", mine=[0, 1])
    assert [it.partitions for it in decode_subscription(request.protocols[0].metadata).owned_partitions] == [[0, 1]]
    talk.next(HeartbeatRequest)


def test_a_sync_that_meets_a_rebalance_joins_again() -> None:
    talk = Talk()
    talk.next(JoinGroupRequest)
    talk.answer(JoinGroupResponse(generation_id=1, protocol_name="range", leader="another", member_id="me"))
    talk.next(SyncGroupRequest)
    talk.answer(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert talk.next(JoinGroupRequest).member_id == "me"


def test_a_member_that_was_removed_gives_up_everything_before_it_joins_as_a_new_one() -> None:
    for code, member_id in {ErrorCode.UNKNOWN_MEMBER_ID: "", ErrorCode.ILLEGAL_GENERATION: "me"}.items():
        with case(code.name):
            talk = Talk(assignors=["cooperative-sticky"])
            talk.join()
            talk.follow()
            talk.next(HeartbeatRequest)
            talk.answer(HeartbeatResponse(error_code=code))
            assert talk.member.change() == Change(partitions(0, 1, 2, 3), partitions(), is_lost=True)
            talk.wake()  # the end of the back-off
            talk.wake()  # nothing is sent while the application still reads
            talk.follow()
            request = talk.next(JoinGroupRequest)
            assert request.member_id == member_id
            assert decode_subscription(request.protocols[0].metadata).owned_partitions == []


def test_a_leader_rebalances_when_a_topic_has_grown() -> None:
    talk = Talk(max_poll_interval_ms=10_000_000)
    talk.join()
    talk.follow()
    talk.partition_count = 5
    age_ms = talk.core.config.metadata_max_age_ms
    while talk.asked.count("metadata") == 2:
        assert talk.now_ms <= age_ms + INTERVAL_MS
        talk.next(HeartbeatRequest)
        talk.answer(HeartbeatResponse())
        assert talk.next_ask() is not None
    assert talk.now_ms >= age_ms
    assert talk.follow() == Change(partitions(0, 1, 2, 3), partitions(), is_lost=False)


def subscribed(request: JoinGroupRequest) -> list[str]:
    return list(decode_subscription(request.protocols[0].metadata).topics)


def test_a_member_with_a_pattern_joins_with_the_topics_that_match_and_again_when_there_are_others() -> None:
    for leader in ("me", "other"):
        with case(leader):
            talk = Talk(pattern="orders|__.*", max_poll_interval_ms=10_000_000)
            talk.topics = [TOPIC, "orders-2", "old-orders", "__consumer_offsets"]
            assert subscribed(talk.join(leader=leader)) == [TOPIC]
            talk.follow()
            talk.topics = ["payments"]
            while isinstance((order := talk.next_ask()) and order.message, HeartbeatRequest):
                talk.answer(HeartbeatResponse())
                talk.follow()
            assert talk.core.config.metadata_max_age_ms <= talk.now_ms
            assert subscribed(talk.next(JoinGroupRequest)) == []


def test_a_pattern_that_python_does_not_understand_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="not a regular expression"):
        Talk(pattern="(")


def test_a_dynamic_member_leaves_and_a_static_one_does_not() -> None:
    for instance_id in (None, "static"):
        with case(instance_id):
            talk = Talk(instance_id=instance_id)
            talk.join()
            talk.member.is_leaving = True
            talk.wake()
            if instance_id is None:
                assert talk.next(LeaveGroupRequest).member_id == "me"
                talk.answer(LeaveGroupResponse())
            assert talk.next_ask() is None


def test_a_member_that_is_interrupted_in_its_join_leaves() -> None:
    talk = Talk()
    talk.next(JoinGroupRequest)
    talk.answer(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    talk.next(JoinGroupRequest)
    talk.member.is_leaving = True
    talk.answer(ClientClosed("leaving"))
    assert talk.next(LeaveGroupRequest).member_id == "me"
    talk.answer(LOST)
    assert talk.next_ask() is None
    assert talk.member.error is None


# The new protocol.


def test_the_first_heartbeat_joins_and_the_next_ones_are_short() -> None:
    talk = Talk(is_classic=False)
    first = talk.assign(0, 1, epoch=1)
    assert (first.member_id, first.member_epoch, first.subscribed_topic_names) == ("mine", 0, [TOPIC])
    assert (first.rebalance_timeout_ms, reported(first)) == (300_000, [])
    assert talk.follow() == Change(partitions(), partitions(0, 1), is_lost=False)
    second = talk.next(ConsumerGroupHeartbeatRequest)
    assert (second.member_epoch, second.subscribed_topic_names, second.rebalance_timeout_ms) == (1, None, -1)
    assert reported(second) == [0, 1]
    talk.answer(beat(1))
    before_ms = talk.now_ms
    third = talk.next(ConsumerGroupHeartbeatRequest)
    assert (talk.now_ms - before_ms, reported(third)) == (INTERVAL_MS, None)


def test_the_coordinator_matches_the_pattern() -> None:
    talk = Talk(is_classic=False, is_topic_known=False, pattern="ord.*")
    first = talk.assign(0, 1, epoch=1)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (None, "ord.*")
    # Only an assignment says which topics there are.
    talk.topics = [TOPIC]
    assert talk.follow() is None
    second = talk.next(ConsumerGroupHeartbeatRequest)
    assert second.subscribed_topic_regex is None
    assert talk.follow() == Change(partitions(), partitions(0, 1), is_lost=False)


def test_partitions_that_are_given_up_are_reported_at_once() -> None:
    talk = Talk(is_classic=False)
    talk.assign(0, 1, epoch=1)
    talk.follow()
    talk.assign(0, epoch=1)
    assert talk.member.change() == Change(partitions(1), partitions(), is_lost=False)
    before_ms = talk.now_ms
    talk.follow()
    talk.wake()
    assert reported(talk.next(ConsumerGroupHeartbeatRequest)) == [0]
    assert talk.now_ms == before_ms


def test_a_partition_that_is_taken_back_before_it_was_read_is_reported_as_not_owned() -> None:
    # The coordinator waits for a report, and would wait for ever if the member only reported changes.
    talk = Talk(is_classic=False)
    talk.assign(0, 1, epoch=1)
    assert reported(talk.assign(epoch=1)) == []
    assert talk.member.change() is None
    before_ms = talk.now_ms
    assert reported(talk.next(ConsumerGroupHeartbeatRequest)) == []
    assert talk.now_ms == before_ms


def test_a_partition_that_is_gone_when_the_application_takes_it_is_not_taken() -> None:
    talk = Talk(is_classic=False)
    talk.assign(0, 1, epoch=1)
    change = talk.member.change()
    assert change is not None
    talk.assign(0, epoch=2)
    assert talk.member.acquire(change.added) == partitions(0)


def test_a_topic_that_the_member_does_not_know_yet_is_looked_for_until_it_is_found() -> None:
    # Trap 19: the coordinator does not send an assignment twice.
    talk = Talk(is_classic=False, is_topic_known=False)
    talk.assign(0, 1, epoch=1)
    assert talk.next_ask() is not None
    assert talk.member.target == partitions()
    talk.topics = [TOPIC]
    talk.answer(beat(1))
    assert talk.next_ask() is not None
    assert talk.member.target == partitions(0, 1)


def test_after_a_lost_heartbeat_everything_is_said_again() -> None:
    talk = Talk(is_classic=False)
    talk.assign(0, 1, epoch=1)
    talk.follow()
    talk.next(ConsumerGroupHeartbeatRequest)
    talk.answer(LOST)
    again = talk.next(ConsumerGroupHeartbeatRequest)
    assert (again.member_epoch, again.subscribed_topic_names, reported(again)) == (1, [TOPIC], [0, 1])
    talk.answer(beat(1))
    assert talk.next(ConsumerGroupHeartbeatRequest).subscribed_topic_names is None


def test_a_fenced_member_gives_up_everything_and_joins_again_with_its_id() -> None:
    for code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
        with case(code.name):
            talk = Talk(is_classic=False)
            talk.assign(0, 1, epoch=3)
            talk.follow()
            talk.next(ConsumerGroupHeartbeatRequest)
            talk.answer(ConsumerGroupHeartbeatResponse(error_code=code))
            assert talk.member.change() == Change(partitions(0, 1), partitions(), is_lost=True)
            talk.wake()  # the end of the back-off
            talk.wake()  # nothing is sent while the application still reads
            talk.follow()
            again = talk.next(ConsumerGroupHeartbeatRequest)
            assert (again.member_id, again.member_epoch, reported(again)) == ("mine", 0, [])


def test_a_member_of_the_new_protocol_leaves_with_the_epoch_of_its_kind() -> None:
    for instance_id, epoch in {None: -1, "static": -2}.items():
        with case(instance_id):
            talk = Talk(is_classic=False, instance_id=instance_id)
            talk.assign(0, epoch=1)
            talk.next(ConsumerGroupHeartbeatRequest)
            talk.answer(beat(1))
            talk.member.is_leaving = True
            talk.wake()
            assert talk.next(ConsumerGroupHeartbeatRequest).member_epoch == epoch
            talk.answer(beat(epoch))
            assert talk.next_ask() is None


# Commits.


def test_a_commit_is_repeated_if_only_the_epoch_was_old() -> None:
    talk = Talk(is_classic=False)
    talk.assign(0, 1, epoch=1)
    old = talk.member.signature
    talk.follow()
    assert talk.member.may_commit_again(old, ErrorCode.STALE_MEMBER_EPOCH)
    assert not talk.member.may_commit_again(old, ErrorCode.UNKNOWN_MEMBER_ID)
    talk.next(ConsumerGroupHeartbeatRequest)
    talk.answer(beat(2))
    assert talk.member.signature.epoch == 2
    assert talk.member.may_commit_again(old, ErrorCode.ILLEGAL_GENERATION)
    talk.next(ConsumerGroupHeartbeatRequest)
    talk.answer(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH))
    assert not talk.member.may_commit_again(old, ErrorCode.STALE_MEMBER_EPOCH)
