"""The record of a classic group, and what a new coordinator makes of it."""

import pytest
from classic_driver import DELAY_MS, SESSION_MS, Driver

from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.records import GroupMetadataValue, MemberMetadata
from minibroker.wire.codes import ErrorCode


def test_a_stable_group_is_loaded_as_it_was() -> None:
    driver = Driver()
    ids = driver.stable("a", "b", instances=("i",))
    before = driver.group
    driver.take_over()
    assert driver.group.record() == before.record()
    assert (driver.group.state, driver.group.generation_id) == (GroupState.STABLE, 1)
    assert [it.member_id for it in driver.group.members()] == ids
    assert [it.client for it in driver.group.members()] == [it.client for it in before.members()]
    for member_id in ids:
        assert driver.heartbeat(member_id) is ErrorCode.NONE
        driver.sync(f"sync-{member_id}", member_id)
        assert driver.synced(f"sync-{member_id}").assignment == member_id.encode()
    assert driver.heartbeat(ids[2], instance_id="i") is ErrorCode.NONE
    assert driver.heartbeat("someone", instance_id="i") is ErrorCode.FENCED_INSTANCE_ID


def test_the_sessions_of_a_loaded_group_begin_anew() -> None:
    driver = Driver()
    driver.stable("a")
    driver.now_ms += 10 * SESSION_MS
    driver.take_over()
    driver.run(SESSION_MS - 1)
    assert driver.group.members()
    driver.run(1)
    assert driver.group.state is GroupState.EMPTY


def test_an_empty_group_keeps_its_generation_and_the_time_since_when() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.leave("leave", member_id)
    since_ms = driver.now_ms
    driver.now_ms += 1_000
    driver.take_over()
    group = driver.group
    assert (group.state, group.generation_id, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    assert group.state_since_ms == since_ms
    assert driver.stable("b")
    assert driver.group.generation_id == 3


def test_a_rebalance_that_was_not_finished_leaves_no_partition_without_an_owner() -> None:
    """Trap 17: no record is written in the middle of a rebalance. The last one has an owner for every partition."""
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    written = len(driver.log)
    driver.enter("c")
    driver.join("a2", leader)
    driver.join("b2", follower)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    assert len(driver.log) == written
    with pytest.raises(AssertionError):
        driver.group.record()

    driver.take_over()
    assert {it.member_id: it.assignment for it in driver.group.members()} == {
        leader: leader.encode(),
        follower: follower.encode(),
    }
    # They are in a generation that the new coordinator does not know, so they join again; the new member starts anew.
    assert driver.heartbeat(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("c-3", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.join("a3", leader)
    driver.join("b3", follower)
    driver.assign("last")
    assert {it.assignment for it in driver.group.members()} == {leader.encode(), follower.encode()}


def test_a_snapshot_of_a_rebalance_has_a_protocol_that_all_members_support() -> None:
    """A conversion that cannot be written goes back to the snapshot."""
    driver = Driver()
    driver.stable("a", protocols={"range": b"r", "sticky": b"s"})
    driver.enter("b", protocols={"sticky": b"t"})
    snapshot = driver.group.snapshot()
    assert (snapshot.protocol, [it.subscription for it in snapshot.members]) == ("sticky", [b"s", b"t"])


def test_members_that_do_not_come_back_after_a_take_over_expire() -> None:
    """Trap 17: a loaded member without a client does not keep its partitions."""
    driver = Driver()
    leader, _follower = driver.stable("a", "b")
    driver.take_over()
    driver.run_with_heartbeats(SESSION_MS, leader)
    assert [it.member_id for it in driver.group.members()] == [leader]
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_group_whose_first_generation_was_not_finished_is_loaded_empty() -> None:
    driver = Driver()
    member_id = driver.enter("a")
    driver.run(DELAY_MS)
    driver.take_over()
    assert driver.group.state is GroupState.EMPTY
    assert driver.heartbeat(member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_record_of_an_old_version_has_the_session_timeout_as_rebalance_timeout() -> None:
    driver = Driver()
    old = MemberMetadata(
        member_id="a",
        client_id="c",
        client_host="/h",
        session_timeout=8_000,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(protocol_type="consumer", generation=7, protocol="range", leader="a", members=[old])
    driver.group.load(value, driver.now_ms)
    member = driver.group.members()[0]
    assert (member.rebalance_timeout_ms, member.protocols, member.client.host) == (8_000, {"range": b"s"}, "/h")
    assert driver.group.state_since_ms == -1
    assert driver.heartbeat("a", 7) is ErrorCode.NONE


def test_a_later_record_replaces_all_of_an_earlier_one() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    stable = driver.log[-1]
    driver.leave("leave", member_id)
    driver.group = driver.new_group()
    for value in [stable, driver.log[-1]]:
        driver.group.load(value, driver.now_ms)
    assert driver.group.members() == ()
    assert driver.group.deadline_ms() is None
