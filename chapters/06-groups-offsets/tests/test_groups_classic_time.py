"""The time limits of a classic group: sessions, rebalances, new members, pending ids, syncs."""

from cases import case
from classic_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver

from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.keys import NEW_MEMBER_JOIN_TIMEOUT_MS
from minibroker.wire.codes import ErrorCode


def test_a_silent_member_is_removed_when_its_session_ends() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.run_with_heartbeats(SESSION_MS - 1, leader)
    assert len(driver.group.members()) == 2
    driver.run(1)
    assert [it.member_id for it in driver.group.members()] == [leader]
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_heartbeat_a_commit_a_join_and_a_sync_begin_the_session_anew() -> None:
    for name in ("heartbeat", "commit", "join", "sync"):
        with case(name):
            driver = Driver()
            leader, follower = driver.stable("a", "b")
            driver.run(SESSION_MS - 1)
            driver.heartbeat(leader)
            if name == "heartbeat":
                driver.heartbeat(follower)
            elif name == "commit":
                driver.commit(follower, 1)
            elif name == "join":
                driver.join("again", follower)
            else:
                driver.sync("again", follower)
            driver.run(SESSION_MS - 1)
            assert len(driver.group.members()) == 2
            driver.run(1)
            assert driver.group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)


def test_a_commit_also_counts_while_the_others_join_again() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("again", leader)
    for _ in range(3):
        driver.run(SESSION_MS - 1)
        assert driver.commit(follower, 1) is ErrorCode.NONE
    assert driver.is_parked("again")


def test_a_heartbeat_only_sets_a_number() -> None:
    """No time limit is looked for: the earliest one stays as it was, and is looked at when it comes."""
    driver = Driver()
    (member_id,) = driver.stable("a")
    before_ms = driver.group.deadline_ms()
    driver.run(5_000)
    driver.heartbeat(member_id)
    assert driver.group.deadline_ms() == before_ms
    driver.run(5_000)
    assert driver.group.deadline_ms() == driver.now_ms + 5_000
    assert driver.group.state is GroupState.STABLE


def test_a_member_that_waits_for_the_others_needs_no_heartbeats() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("again", follower, protocols={"range": b"other"})
    driver.run_with_heartbeats(REBALANCE_MS - 1, leader)
    assert driver.is_parked("again")
    driver.join("last", leader)
    assert driver.code("again") is ErrorCode.NONE
    # Its session begins with the answer.
    driver.run(SESSION_MS - 1)
    assert len(driver.group.members()) == 2


def test_a_rebalance_goes_on_without_dynamic_members_that_do_not_come() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("again", follower, protocols={"range": b"other"})
    driver.run_with_heartbeats(REBALANCE_MS, leader)
    assert driver.joined("again").leader == follower
    assert driver.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_keeps_static_members_that_do_not_come() -> None:
    driver = Driver()
    dynamic, static = driver.stable("a", instances=("i",), session_ms=600_000)
    driver.join("again", dynamic)
    driver.run(REBALANCE_MS)
    assert {it.member_id for it in driver.joined("again").members} == {dynamic, static}


def test_a_static_leader_that_does_not_come_back_leads_no_more() -> None:
    driver = Driver()
    static, dynamic = driver.stable(instances=("i",), session_ms=600_000), driver.enter("b", session_ms=600_000)
    driver.run(REBALANCE_MS)
    assert driver.joined("b").leader == dynamic
    assert {it.member_id for it in driver.joined("b").members} == {*static, dynamic}


def test_a_rebalance_waits_again_if_only_static_members_are_left_and_none_has_come() -> None:
    driver = Driver()
    dynamic, static = driver.stable("a", instances=("i",), session_ms=600_000)
    driver.leave("leave", dynamic)
    driver.run(3 * REBALANCE_MS)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.join("again", static, instance_id="i", session_ms=600_000)
    assert driver.joined("again").generation_id == 2


def test_a_new_members_join_fails_after_five_minutes() -> None:
    """Its client may be gone: it cannot send heartbeats before it knows its id."""
    driver = Driver()
    (member_id,) = driver.stable("a", rebalance_ms=3_600_000)
    driver.join("b", version=3, rebalance_ms=3_600_000)
    driver.run_with_heartbeats(NEW_MEMBER_JOIN_TIMEOUT_MS - 1, member_id)
    assert driver.is_parked("b")
    driver.run(1)
    assert driver.code("b") is ErrorCode.UNKNOWN_MEMBER_ID
    assert [it.member_id for it in driver.group.members()] == [member_id]


def test_a_pending_id_that_is_not_used_expires() -> None:
    """Trap 1: otherwise the group would stay in PreparingRebalance, or wait for the whole rebalance timeout."""
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.join("b")
    pending = driver.joined("b").member_id
    driver.join("again", member_id)
    driver.run(SESSION_MS - 1)
    assert driver.is_parked("again")
    driver.run(1)
    assert driver.joined("again").generation_id == 2
    driver.join("late", pending)
    assert driver.code("late") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_of_an_empty_group_expires() -> None:
    driver = Driver()
    driver.join("a")
    driver.run(SESSION_MS)
    assert driver.group.deadline_ms() is None
    driver.join("late", driver.joined("a").member_id)
    assert driver.code("late") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_and_the_sessions_of_the_members_end_independently() -> None:
    for leaves in (False, True):
        with case(leaves):
            driver = Driver()
            (member_id,) = driver.stable("a")
            driver.run(SESSION_MS - 1)
            driver.join("b")
            if leaves:
                driver.leave("leave", member_id)
            driver.run(1)
            assert driver.heartbeat(member_id) is ErrorCode.UNKNOWN_MEMBER_ID
            driver.run(SESSION_MS - 1)
            driver.join("late", driver.joined("b").member_id)
            assert driver.code("late") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_sync_is_removed_though_it_sends_heartbeats() -> None:
    for has_assignment in (False, True):
        with case(has_assignment):
            driver = Driver()
            leader, follower = driver.enter("a"), driver.enter("b")
            driver.run(2 * DELAY_MS)
            if has_assignment:
                driver.sync("sync", leader, {leader: b"all"})
            else:
                driver.sync("sync", follower)
            silent, waiting = (follower, leader) if has_assignment else (leader, follower)
            driver.run_with_heartbeats(REBALANCE_MS - 1, leader, follower)
            assert len(driver.group.members()) == 2
            driver.run(1)
            assert [it.member_id for it in driver.group.members()] == [waiting]
            assert driver.heartbeat(silent) is ErrorCode.UNKNOWN_MEMBER_ID
            assert driver.heartbeat(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
            assert driver.code("sync") is (ErrorCode.NONE if has_assignment else ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_rebalance_ends_the_time_limit_of_the_syncs_before_it() -> None:
    """Otherwise it would remove members that have nothing to sync while they join."""
    driver = Driver()
    leader, follower = driver.enter("a"), driver.enter("b")
    driver.run(2 * DELAY_MS)
    driver.run_with_heartbeats(REBALANCE_MS - 1, leader, follower)
    driver.join("again", leader, protocols={"range": b"other"})
    driver.run_with_heartbeats(SESSION_MS, follower)
    assert len(driver.group.members()) == 2
    assert driver.is_parked("again")


def test_version_0_has_the_session_timeout_as_its_rebalance_timeout() -> None:
    driver = Driver()
    driver.join("a", version=0, rebalance_ms=-1, session_ms=7_000)
    driver.run(DELAY_MS)
    driver.assign()
    assert driver.log[-1].members[0].rebalance_timeout == 7_000


def test_all_members_gone_leave_an_empty_group_and_no_time_limit() -> None:
    driver = Driver()
    driver.stable("a", "b", "c")
    driver.run(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY
    assert driver.log[-1].members == []
    assert driver.group.deadline_ms() is None


def test_the_session_of_a_member_whose_sync_is_refused_begins_anew() -> None:
    """While its sync waited, its session could not end. A member that is silent from then on must not stay."""
    driver = Driver()
    leader, follower = driver.enter("a"), driver.enter("b")
    driver.run(2 * DELAY_MS)
    driver.sync("sync", follower)
    driver.run_with_heartbeats(3 * SESSION_MS, leader)
    driver.join("again", leader, protocols={"range": b"other"})
    assert driver.code("sync") is ErrorCode.REBALANCE_IN_PROGRESS
    driver.run(SESSION_MS - 1)
    assert driver.is_parked("again")
    driver.run(1)
    assert [it.member_id for it in driver.joined("again").members] == [leader]


def test_assignments_that_the_log_refuses_are_withdrawn_and_the_previous_ones_come_back() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    before = {it.member_id: it.assignment for it in driver.log[-1].members}
    driver.join("again", leader, protocols={"range": b"other"})
    driver.join("again too", follower)
    driver.refuses_with = ErrorCode.NOT_COORDINATOR
    driver.sync("sync", leader, {leader: b"other", follower: b"other"})
    assert driver.code("sync") is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert {it.member_id: it.assignment for it in driver.group.members()} == before
