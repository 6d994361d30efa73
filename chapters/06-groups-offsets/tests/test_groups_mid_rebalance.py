"""A classic group in the middle of a rebalance, or before its first one: cases that simulation has found."""

from typing import Any

from cases import case
from classic_driver import SESSION_MS, Driver
from test_groups_shard import CLIENT, Bench

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.consumer import ConsumerGroup
from minibroker.groups.records import GroupMetadataValue, decode
from minibroker.groups.tables.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker.wire.codes import ErrorCode


def first_generation(bench: Bench) -> None:
    """All have joined, and nobody has synced."""
    bench.join("first")


def later_generation(bench: Bench) -> None:
    """A stable group, and a second member has come."""
    bench.stable()
    bench.join("second")


def upgrade(bench: Bench, code: ErrorCode = ErrorCode.NONE) -> Any:
    """A member of the new protocol joins."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="new",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    return bench.take(bench.shard.on_consumer_heartbeat("new", request, 1, CLIENT, bench.now_ms), code)


def test_a_group_is_converted_in_the_middle_of_a_rebalance() -> None:
    for begin in (first_generation, later_generation):
        with case(begin.__name__):
            bench = Bench()
            begin(bench)
            assert bench.code(upgrade(bench)) is ErrorCode.NONE
            assert isinstance(bench.shard.group("g"), ConsumerGroup)


def test_a_refused_conversion_in_the_middle_of_a_rebalance_begins_the_rebalance_again() -> None:
    """The members' parked requests are refused, so each of them joins again."""
    for begin in (first_generation, later_generation):
        with case(begin.__name__):
            bench = Bench()
            begin(bench)
            before = bench.shard.group("g")
            assert isinstance(before, ClassicGroup)
            members = [it.member_id for it in before.members()]
            assert upgrade(bench, ErrorCode.COORDINATOR_NOT_AVAILABLE) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            group = bench.shard.group("g")
            assert isinstance(group, ClassicGroup)
            assert group.state is GroupState.PREPARING_REBALANCE
            assert [it.member_id for it in group.members()] == members
            assert bench.shard.deadline_ms() is not None


def test_an_empty_group_with_a_pending_id_has_the_time_of_its_record() -> None:
    """Otherwise its offsets would expire at another time than after a restart of the coordinator."""
    bench = Bench()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    bench.take(bench.shard.on_join("first", request, 9, CLIENT, bench.now_ms))
    group, stored = bench.shard.group("g"), decode(*bench.log[-1])
    assert isinstance(group, ClassicGroup)
    assert stored is not None
    assert isinstance(stored.value, GroupMetadataValue)
    assert group.state_since_ms == stored.value.current_state_timestamp == bench.now_ms


def test_a_converted_member_holds_what_it_reads_until_the_end_of_the_rebalance() -> None:
    """A cooperative member goes on reading while it joins again, so no other member may get its partitions yet."""
    bench = Bench()
    first = bench.stable()
    bench.join("second")
    bench.join("again", first)
    group = bench.shard.group("g")
    assert isinstance(group, ClassicGroup)
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert bench.code(upgrade(bench)) is ErrorCode.NONE
    converted = bench.shard.group("g")
    assert isinstance(converted, ConsumerGroup)
    assert sorted(number for _topic, number in converted.members[first].held()) == [0, 1, 2]


def test_a_refused_assignment_leaves_each_member_what_it_had() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    member_id = driver.enter("a")
    driver.assign("first")
    driver.join("again", member_id)
    driver.refuses_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.sync("sync", member_id, {member_id: b"other"})
    assert driver.code("sync") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [it.assignment for it in driver.group.members()] == [member_id.encode()]


def test_a_sync_that_a_rebalance_answers_begins_the_session_again() -> None:
    """Otherwise a static member that dies then would stay for ever: its session was over while its sync was parked."""
    driver = Driver(initial_rebalance_delay_ms=0)
    leader = driver.enter("a")
    driver.join("static", instance_id="i")
    driver.join("a-again", leader)
    static = driver.joined("static").member_id
    driver.sync("parked", static, instance_id="i")
    driver.run(SESSION_MS)
    assert driver.code("parked") is ErrorCode.REBALANCE_IN_PROGRESS
    assert [it.member_id for it in driver.group.members()] == [static]
    driver.run(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY
