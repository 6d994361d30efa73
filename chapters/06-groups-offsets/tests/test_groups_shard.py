"""The groups of one partition: their kinds, how they are listed, deleted, expired, and loaded from the log."""

from dataclasses import replace
from typing import Any

import pytest
from cases import case
from test_groups_offsets import IMAGE, NOW_MS, WEEK_MS, delete_of, image_of

from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.describing import filter_of
from minibroker.groups.keys import GroupSettings
from minibroker.groups.records import ConsumerGroupMetadataValue, decode, encode
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import Client, Step
from minibroker.groups.subscription import (
    AssignedTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
    encode_subscription,
)
from minibroker.groups.tables.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.groups.tables.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker.metadata.configs import NodeConfig
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response, codes_in
from minibroker.wire.tables.offset_fetch import OffsetFetchRequestGroup

CLIENT = Client("app", "/127.0.0.1")
ALL = encode_assignment(
    ConsumerProtocolAssignment(assigned_partitions=[AssignedTopicPartitions(topic="orders", partitions=[0, 1, 2])])
)


class Bench:
    """One shard with its log. Every request is answered at once, as if there were one replica."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.settings = replace(GroupSettings.of(NodeConfig()), initial_rebalance_delay_ms=0)
        self.image = IMAGE
        self.log: list[tuple[bytes, bytes | None]] = []
        self.answers: dict[str, Response | ErrorCode] = {}
        self._made = 0
        self.shard = self.new_shard()
        self.shard.on_loaded(self.now_ms)

    def new_shard(self) -> GroupShard:
        return GroupShard(
            settings=lambda _group_id: self.settings,
            new_member_id=self._new_member_id,
            matcher=lambda pattern: lambda name: name.startswith(pattern),
            image=self.image,
        )

    def _new_member_id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self._made}"

    def take(self, step: Step, code: ErrorCode = ErrorCode.NONE) -> Any:
        """Append and apply the records of a step, or let the log refuse them; returns the last answer."""
        if code is not ErrorCode.NONE and step.records:
            step = step.refused(code)
        for record in step.records:
            self.log.append(encode(record))
            self.shard.apply(record, len(self.log) - 1, self.now_ms)
        for ticket, response in step.replies:
            assert isinstance(ticket, str)
            self.answers[ticket] = response
        return step.replies[-1].response if step.replies else None

    def take_over(self) -> None:
        """Another node becomes the coordinator: it replays the log."""
        self.shard = self.new_shard()
        for offset, (key, value) in enumerate(self.log):
            record = decode(key, value)
            assert record is not None
            self.shard.replay(record, offset)
        self.shard.on_loaded(self.now_ms)

    def compact(self) -> None:
        """Keep the last record of each key, and no tombstones."""
        last = {key: number for number, (key, _value) in enumerate(self.log)}
        self.log = [it for number, it in enumerate(self.log) if last[it[0]] == number and it[1] is not None]

    def wait(self, ms: int) -> None:
        """Let time pass, up to each time limit in turn."""
        until_ms = self.now_ms + ms
        while (deadline_ms := self.shard.deadline_ms()) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            for step in self.shard.on_time(self.now_ms):
                self.take(step)
        self.now_ms = until_ms

    # Requests ---------------------------------------------------------------------------------------------------------

    def join(self, name: str, member_id: str = "", *, kind: str = "consumer", group_id: str = "g") -> Any:
        """Join a classic group, in a version that has no second join."""
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=["orders"])) if kind == "consumer" else b"?"
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type=kind,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        self.take(self.shard.on_join(name, request, 3, CLIENT, self.now_ms))
        return self.answers.get(name)

    def sync(self, member_id: str, generation: int) -> Any:
        assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=ALL)]
        request = SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id, assignments=assignments)
        return self.take(self.shard.on_sync("sync", request, 3, self.now_ms))

    def stable(self, **options: Any) -> str:
        """A group with one member; returns the member's id."""
        joined = self.join("first", **options)
        assert joined.error_code == ErrorCode.NONE
        assert self.sync(joined.member_id, joined.generation_id).assignment == ALL
        member_id: str = joined.member_id
        return member_id

    def heartbeat(self, member_id: str, generation: int = 1, group_id: str = "g") -> Any:
        request = HeartbeatRequest(group_id=group_id, generation_id=generation, member_id=member_id)
        return self.code(self.take(self.shard.on_heartbeat("beat", request, self.now_ms)))

    def leave(self, member_id: str, version: int = 3) -> Any:
        request = LeaveGroupRequest(
            group_id="g", member_id=member_id, members=[MemberIdentity(member_id=member_id, group_instance_id=None)]
        )
        return self.code(self.take(self.shard.on_leave("leave", request, version, self.now_ms)))

    def commit(
        self, offset: int, member_id: str = "", epoch: int = -1, *, version: int = 8, group_id: str = "g"
    ) -> ErrorCode:
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
        topics = [OffsetCommitRequestTopic(name="orders", partitions=partitions)]
        request = OffsetCommitRequest(
            group_id=group_id, generation_id_or_member_epoch=epoch, member_id=member_id, topics=topics
        )
        return self.code(self.take(self.shard.on_commit("commit", request, version, self.now_ms)))

    def offset(self, group_id: str = "g") -> int | None:
        found = self.shard.offsets.get(group_id, "orders", 0)
        return None if found is None else found.offset

    def delete(self, group_id: str = "g") -> ErrorCode:
        return self.code(self.take(self.shard.on_delete("delete", group_id)))

    def list(self, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[tuple[str, str, str, str]]:
        response = self.take(self.shard.on_list("list", filter_of(states, types)))
        return {(it.group_id, it.protocol_type, it.group_state, it.group_type) for it in response.groups}

    def state(self, group_id: str = "g", version: int = 5) -> str:
        (described,) = self.take(self.shard.on_describe("describe", group_id, version)).groups
        state: str = described.group_state
        return state

    @staticmethod
    def code(response: Any) -> ErrorCode:
        if isinstance(response, ErrorCode):
            return response
        return next((ErrorCode(code) for code in codes_in(response) if code), ErrorCode.NONE)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Kinds ----------------------------------------------------------------------------------------------------------------


def test_a_commit_without_a_member_makes_a_simple_group(bench: Bench) -> None:
    assert bench.commit(5) is ErrorCode.NONE
    assert bench.offset() == 5
    assert bench.list() == {("g", "", "Empty", "classic")}
    assert bench.state() == "Empty"
    # A group that has only offsets has no generation.
    assert bench.commit(6, "m", 1) is ErrorCode.ILLEGAL_GENERATION
    assert bench.commit(6, "m", 1, version=9) is ErrorCode.GROUP_ID_NOT_FOUND


def test_members_commit_in_a_classic_group_and_others_only_when_it_is_empty(bench: Bench) -> None:
    member_id = bench.stable()
    assert bench.commit(5, member_id, 1) is ErrorCode.NONE
    assert bench.commit(6, member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert bench.commit(6, "other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.leave(member_id) is ErrorCode.NONE
    assert bench.commit(7) is ErrorCode.NONE
    assert bench.offset() == 7


def test_requests_about_an_unknown_group_do_not_make_it(bench: Bench) -> None:
    assert bench.code(bench.join("m", "m-1")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.heartbeat("m-1") is ErrorCode.UNKNOWN_MEMBER_ID
    assert bench.code(bench.sync("m-1", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert [bench.leave("m-1", version) for version in (2, 3)] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert bench.delete() is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.state() == "Dead"
    (described,) = bench.take(bench.shard.on_describe("describe", "g", 6)).groups
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.list() == set()
    assert bench.log == []
    fetch = OffsetFetchRequestGroup(group_id="g", topics=None)
    (group,) = bench.take(bench.shard.on_fetch("fetch", fetch, 9, require_stable=False)).groups
    assert (group.error_code, group.topics) == (ErrorCode.NONE, [])


def test_a_join_that_is_refused_leaves_no_group_behind(bench: Bench) -> None:
    bench.settings = replace(bench.settings, session_timeout_ms_min=60_000)
    assert bench.code(bench.join("m")) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert bench.list() == set()


def test_groups_are_listed_by_state_and_type_in_any_case(bench: Bench) -> None:
    bench.stable()
    bench.commit(5, group_id="simple")
    stable, simple = ("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")
    cases = [
        ((), (), {stable, simple}),
        (("stable",), (), {stable}),
        (("EMPTY", "Dead"), (), {simple}),
        ((), ("Classic",), {stable, simple}),
        ((), ("consumer",), set()),
        ((), ("share",), set()),
    ]
    for states, types, found in cases:
        with case(states, types):
            assert bench.list(states, types) == found


# Deleting -------------------------------------------------------------------------------------------------------------


def test_a_deleted_group_does_not_come_back_after_a_restart(bench: Bench) -> None:
    """Trap 4. The log may have been compacted in between, or not."""
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    assert bench.delete() is ErrorCode.NON_EMPTY_GROUP
    bench.leave(member_id)
    bench.commit(6, group_id="simple")
    assert bench.delete() is ErrorCode.NONE
    assert bench.delete("simple") is ErrorCode.NONE
    for is_compacted in (False, True):
        with case(is_compacted):
            if is_compacted:
                bench.compact()
            bench.take_over()
            assert bench.list() == set()
            assert bench.offset() is None
            assert bench.state() == "Dead"
    assert bench.log == []


def test_offsets_of_a_topic_that_members_read_are_not_deleted(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    request = delete_of("orders", 0)
    delete = bench.shard.on_delete_offsets
    assert bench.code(bench.take(delete("delete", request))) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    bench.leave(member_id)
    assert bench.code(bench.take(delete("delete", request))) is ErrorCode.NONE
    assert bench.offset() is None


def test_offsets_of_members_with_another_protocol_are_not_deleted(bench: Bench) -> None:
    bench.stable(kind="connect")
    delete = bench.shard.on_delete_offsets("delete", delete_of("orders", 0))
    assert bench.code(bench.take(delete)) is ErrorCode.NON_EMPTY_GROUP


def test_a_deleted_topic_takes_its_offsets_along(bench: Bench) -> None:
    bench.commit(5)
    for step in bench.shard.on_image(IMAGE, image_of({"orders": (b"new" + bytes(13), 3)})):
        bench.take(step)
    assert bench.offset() is None
    assert bench.list() == set()


# Loading --------------------------------------------------------------------------------------------------------------


def test_a_new_coordinator_has_the_groups_and_offsets_of_the_last_one(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    bench.commit(9, group_id="simple")
    listed = bench.list()
    bench.take_over()
    assert bench.list() == listed
    assert (bench.offset(), bench.offset("simple")) == (5, 9)
    # The session begins anew: the member has heard of no coordinator for a while.
    bench.wait(9000)
    assert bench.heartbeat(member_id) is ErrorCode.NONE
    assert bench.commit(6, member_id, 1) is ErrorCode.NONE


def test_a_member_that_does_not_come_back_to_the_new_coordinator_is_removed(bench: Bench) -> None:
    bench.stable()
    bench.take_over()
    bench.wait(10_000)
    assert bench.state() == "Empty"


def test_records_that_the_log_refuses_leave_no_group_behind(bench: Bench) -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    step = bench.shard.on_join("join", request, 3, CLIENT, bench.now_ms)
    assert bench.code(bench.take(step, ErrorCode.COORDINATOR_NOT_AVAILABLE)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.wait(120_000)
    assert bench.list() == set()
    assert bench.stable()


# Expiring -------------------------------------------------------------------------------------------------------------


def test_offsets_expire_a_week_after_the_last_member_has_left_and_the_group_with_them(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    bench.leave(member_id)
    bench.wait(WEEK_MS - 1)
    assert bench.offset() == 5
    bench.wait(600_000)
    assert bench.offset() is None
    assert bench.list() == set()
    bench.take_over()
    assert bench.list() == set()


def test_offsets_do_not_expire_while_a_member_reads_the_topic(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    for _day in range(8 * 24 * 60 * 10):
        bench.now_ms += 9000
        assert bench.heartbeat(member_id) is ErrorCode.NONE
        if bench.now_ms - NOW_MS > WEEK_MS + 600_000:
            break
    bench.wait(1000)
    assert bench.offset() == 5


def test_a_simple_groups_offset_expires_a_week_after_its_commit(bench: Bench) -> None:
    bench.commit(5)
    bench.wait(WEEK_MS - 600_000)
    assert bench.offset() == 5
    bench.wait(1_200_000)
    assert bench.list() == set()


def test_a_check_for_expired_offsets_is_done_in_slices(bench: Bench) -> None:
    for number in range(12_000):
        bench.commit(5, group_id=f"g{number}")
    bench.now_ms += WEEK_MS
    slices = 0
    while bench.list():
        slices += 1
        steps = [bench.take(step) for step in bench.shard.on_time(bench.now_ms)]
        assert len(steps) <= 5001
    assert slices == 5


# Groups of the new protocol -------------------------------------------------------------------------------------------


def beat_of(member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []} | fields
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)


def beat(bench: Bench, member_id: str, epoch: int, **fields: Any) -> Any:
    request = beat_of(member_id, epoch, **fields)
    return bench.take(bench.shard.on_consumer_heartbeat("beat", request, 1, CLIENT, bench.now_ms))


def test_a_heartbeat_with_epoch_0_makes_a_group_and_others_do_not(bench: Bench) -> None:
    for epoch, code in (
        (5, ErrorCode.GROUP_ID_NOT_FOUND),
        (-1, ErrorCode.GROUP_ID_NOT_FOUND),
        (-2, ErrorCode.INVALID_REQUEST),
        (-3, ErrorCode.INVALID_REQUEST),
    ):
        with case(epoch):
            assert bench.code(beat(bench, "m", epoch)) is code
    assert bench.log == []
    joined = beat(bench, "m", 0)
    assert (joined.error_code, joined.member_epoch) == (ErrorCode.NONE, 1)
    assert bench.list() == {("g", "consumer", "Stable", "consumer")}
    assert bench.state() == "Dead"
    (described,) = bench.take(bench.shard.on_consumer_describe("describe", "g")).groups
    assert (described.group_state, [it.member_id for it in described.members]) == ("Stable", ["m"])
    assert bench.commit(5, "m", 1, version=9) is ErrorCode.NONE
    assert bench.commit(5, "m", 7, version=9) is ErrorCode.STALE_MEMBER_EPOCH


def test_a_group_that_cannot_be_described_is_unknown_or_classic(bench: Bench) -> None:
    """Kafka's admin client asks so first, and shows the text of this answer if there is no classic group either."""

    def told() -> tuple[ErrorCode, str | None]:
        (described,) = bench.take(bench.shard.on_consumer_describe("describe", "g")).groups
        return ErrorCode(described.error_code), described.error_message

    assert told() == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")
    bench.stable()
    assert told() == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")


def test_a_join_of_the_new_protocol_that_is_refused_leaves_no_group_behind(bench: Bench) -> None:
    assert bench.code(beat(bench, "m", 0, topic_partitions=None)) is ErrorCode.INVALID_REQUEST
    assert bench.list() == set()
    step = bench.shard.on_consumer_heartbeat("beat", beat_of("m", 0), 1, CLIENT, bench.now_ms)
    assert bench.take(step, ErrorCode.COORDINATOR_NOT_AVAILABLE) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.list() == set()
    bench.wait(120_000)


def test_an_empty_group_changes_its_kind_at_once_and_keeps_its_offsets(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    bench.leave(member_id)
    assert beat(bench, "m", 0).error_code == ErrorCode.NONE
    assert beat(bench, "m", -1).error_code == ErrorCode.NONE
    assert bench.list() == {("g", "consumer", "Empty", "consumer")}
    assert bench.stable()
    assert bench.list() == {("g", "consumer", "Stable", "classic")}
    for is_compacted in (False, True):
        with case(is_compacted):
            if is_compacted:
                bench.compact()
            bench.take_over()
            assert bench.list() == {("g", "consumer", "Stable", "classic")}
            assert bench.offset() == 5


def test_a_running_group_is_converted_to_the_new_protocol_and_back(bench: Bench) -> None:
    member_id = bench.stable()
    bench.commit(5, member_id, 1)
    assert beat(bench, "new", 0).error_code == ErrorCode.NONE
    assert {it[3] for it in bench.list()} == {"consumer"}
    # The classic member goes on: its generation is its member epoch, and it is told to join again.
    assert bench.heartbeat(member_id) in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    bench.take_over()
    group = bench.shard.group("g")
    assert isinstance(group, ConsumerGroup)
    assert set(group.members) == {member_id, "new"}
    # The last member of the new protocol leaves, and the classic one gets its partitions by a rebalance.
    assert beat(bench, "new", -1).error_code == ErrorCode.NONE
    assert bench.list() == {("g", "consumer", "PreparingRebalance", "classic")}
    bench.take_over()
    assert bench.list() == {("g", "consumer", "Stable", "classic")}
    assert bench.offset() == 5


def test_a_conversion_that_the_log_refuses_leaves_the_classic_group(bench: Bench) -> None:
    member_id = bench.stable()
    step = bench.shard.on_consumer_heartbeat("beat", beat_of("new", 0), 1, CLIENT, bench.now_ms)
    assert bench.take(step, ErrorCode.NOT_COORDINATOR) is ErrorCode.NOT_COORDINATOR
    assert bench.list() == {("g", "consumer", "Stable", "classic")}
    assert bench.heartbeat(member_id) is ErrorCode.NONE


def test_a_group_of_another_protocol_type_is_not_converted(bench: Bench) -> None:
    bench.stable(kind="connect")
    assert bench.code(beat(bench, "new", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.list() == {("g", "connect", "Stable", "classic")}


def test_a_deleted_group_of_the_new_protocol_does_not_come_back(bench: Bench) -> None:
    beat(bench, "m", 0)
    bench.commit(5, "m", 1, version=9)
    assert bench.delete() is ErrorCode.NON_EMPTY_GROUP
    beat(bench, "m", -1)
    assert bench.delete() is ErrorCode.NONE
    bench.take_over()
    assert bench.list() == set()
    bench.compact()
    assert bench.log == []


def test_the_records_of_a_group_without_members_are_kafkas(bench: Bench) -> None:
    """Kafka's hash of no topics is 0. A deleted group also gets a tombstone for what Kafka wrote until 4.0."""
    beat(bench, "m", 0)
    beat(bench, "m", -1)
    record = decode(*bench.log[-1])
    assert record is not None
    assert record.value == ConsumerGroupMetadataValue(epoch=2, metadata_hash=0)
    assert bench.delete() is ErrorCode.NONE
    # A key begins with its type.
    assert [int.from_bytes(key[:2]) for key, _ in bench.log[-3:]] == [6, 4, 3]


def test_a_member_of_the_new_protocol_that_is_silent_is_removed(bench: Bench) -> None:
    beat(bench, "m", 0)
    bench.wait(44_000)
    assert bench.list() == {("g", "consumer", "Stable", "consumer")}
    bench.wait(2000)
    assert bench.list() == {("g", "consumer", "Empty", "consumer")}
