"""The assignment of a generation, heartbeats, commits, and members that leave."""

import pytest
from cases import case
from classic_driver import DELAY_MS, REBALANCE_MS, Driver

from minibroker.groups.classic_transitions import GroupState
from minibroker.wire.codes import ErrorCode


def _completing() -> tuple[Driver, str, str]:
    """A group of a leader and a follower that wait for the assignment."""
    driver = Driver()
    leader, follower = driver.enter("a"), driver.enter("b")
    driver.run(2 * DELAY_MS)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    return driver, leader, follower


# Sync -----------------------------------------------------------------------------------------------------------------


def test_a_follower_waits_for_the_leaders_assignment() -> None:
    """Trap 15: a sync is never answered without the assignment."""
    driver, leader, follower = _completing()
    driver.sync("follower", follower)
    assert driver.is_parked("follower")
    driver.sync("leader", leader, {leader: b"one", follower: b"other"})
    assert driver.synced("follower").assignment == b"other"
    assert driver.synced("leader").assignment == b"one"


def test_a_follower_that_syncs_later_gets_its_assignment_at_once() -> None:
    """Trap 15: it is kept for the members that have not asked yet."""
    driver, leader, follower = _completing()
    driver.sync("leader", leader, {leader: b"one", follower: b"other"})
    for at in range(2):
        driver.sync(f"follower{at}", follower)
        assert driver.synced(f"follower{at}").assignment == b"other"


def test_a_member_that_the_leader_left_out_gets_no_partitions() -> None:
    driver, leader, follower = _completing()
    driver.sync("follower", follower)
    driver.sync("leader", leader, {leader: b"all", "someone": b"else"})
    assert driver.code("follower") is ErrorCode.NONE
    assert driver.synced("follower").assignment == b""
    assert {it.member_id: it.assignment for it in driver.log[-1].members} == {leader: b"all", follower: b""}


def test_a_follower_cannot_assign() -> None:
    driver, leader, follower = _completing()
    driver.sync("follower", follower, {leader: b"", follower: b"all"})
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.sync("leader", leader, {leader: b"all"})
    assert driver.synced("follower").assignment == b""


def test_the_assignment_is_written_before_it_is_answered() -> None:
    driver, leader, follower = _completing()
    driver.sync("follower", follower)
    driver.refuses_with = ErrorCode.NOT_COORDINATOR
    driver.sync("leader", leader, {leader: b"one", follower: b"other"})
    assert driver.code("leader") is driver.code("follower") is ErrorCode.NOT_COORDINATOR
    # The members join again.
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.refuses_with = None
    driver.join("a2", leader)
    driver.join("b2", follower)
    driver.assign()
    assert driver.group.state is GroupState.STABLE


def test_a_new_rebalance_ends_the_wait_for_the_assignment() -> None:
    driver, _leader, follower = _completing()
    driver.sync("follower", follower)
    driver.enter("c")
    assert driver.code("follower") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_is_checked() -> None:
    driver, leader, follower = _completing()
    for name, code, options in [
        ("an unknown member", ErrorCode.UNKNOWN_MEMBER_ID, {"member_id": "someone"}),
        ("the last generation", ErrorCode.ILLEGAL_GENERATION, {"generation_id": 0}),
        ("another type", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_type": "connect"}),
        ("another protocol", ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_name": "sticky"}),
        ("no such instance", ErrorCode.UNKNOWN_MEMBER_ID, {"instance_id": "i"}),
    ]:
        with case(name):
            driver.sync(name, **{"member_id": follower, **options})  # type: ignore[dict-item, arg-type]
            assert driver.code(name) is code
    driver.sync("named", follower, protocol_type="consumer", protocol_name="range")
    assert driver.is_parked("named")
    driver.enter("c")
    driver.sync("preparing", leader)
    assert driver.code("preparing") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_that_is_sent_again_replaces_the_one_that_waits() -> None:
    driver, leader, follower = _completing()
    driver.sync("first", follower)
    driver.sync("second", follower)
    assert driver.code("first") is ErrorCode.REBALANCE_IN_PROGRESS
    driver.sync("leader", leader, {follower: b"all"})
    assert driver.synced("second").assignment == b"all"


# Heartbeats -----------------------------------------------------------------------------------------------------------


def test_only_members_of_a_group_that_prepares_are_told_to_join_again() -> None:
    driver, leader, follower = _completing()
    assert driver.heartbeat(follower) is ErrorCode.NONE
    driver.assign()
    assert driver.heartbeat(follower) is ErrorCode.NONE
    driver.join("again", leader)
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.leave("leave", leader, follower)
    assert driver.group.state is GroupState.EMPTY
    assert driver.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_of_another_generation_is_refused() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    for generation_id in (0, 2, -1):
        with case(generation_id):
            assert driver.heartbeat(member_id, generation_id) is ErrorCode.ILLEGAL_GENERATION


# Commits --------------------------------------------------------------------------------------------------------------


def test_a_commit_is_checked_by_state() -> None:
    driver, leader, follower = _completing()
    assert driver.commit(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.commit(follower, 1, is_transactional=True) is ErrorCode.NONE
    driver.assign()
    for name, code, arguments in [
        ("a member", ErrorCode.NONE, (follower, 1)),
        ("an old generation", ErrorCode.ILLEGAL_GENERATION, (follower, 0)),
        ("an unknown member", ErrorCode.UNKNOWN_MEMBER_ID, ("someone", 1)),
        ("no member of a group with members", ErrorCode.UNKNOWN_MEMBER_ID, ("", -1)),
        ("an instance that is not there", ErrorCode.UNKNOWN_MEMBER_ID, (follower, 1, "i")),
    ]:
        with case(name):
            assert driver.commit(*arguments) is code  # type: ignore[arg-type]
    # Before a member joins again, it commits what it has read in the old generation.
    driver.join("again", leader)
    assert driver.commit(follower, 1) is ErrorCode.NONE
    driver.leave("leave", leader, follower)
    assert driver.commit("", -1) is ErrorCode.NONE
    assert driver.commit(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transactional_commit_need_not_name_a_member() -> None:
    driver = Driver()
    driver.stable("a")
    assert driver.commit("", -1, is_transactional=True) is ErrorCode.NONE
    assert driver.commit("a-1", 7, is_transactional=True) is ErrorCode.ILLEGAL_GENERATION
    # A generation or an instance id also means a member.
    for generation_id, instance_id in ((1, None), (-1, "i")):
        with case(generation_id, instance_id):
            code = driver.commit("", generation_id, instance_id, is_transactional=True)
            assert code is ErrorCode.UNKNOWN_MEMBER_ID


# Leaving --------------------------------------------------------------------------------------------------------------


def test_the_others_join_again_when_a_member_leaves() -> None:
    driver = Driver()
    leader, second, third = driver.stable("a", "b", "c")
    driver.leave("leave", leader)
    assert driver.heartbeat(second) is driver.heartbeat(third) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join("again third", third)
    driver.join("again", second)
    # The member that joined first of those that are left leads, even if another one joins again before it.
    assert driver.joined("again").leader == second
    assert driver.joined("again").generation_id == 2


def test_the_last_member_to_leave_leaves_an_empty_group() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.now_ms += 500
    driver.leave("leave", member_id)
    last = driver.log[-1]
    assert (last.generation, last.protocol, last.leader, last.members) == (2, None, None, [])
    assert (last.protocol_type, last.current_state_timestamp) == ("consumer", driver.now_ms)
    assert driver.group.deadline_ms() is None


def test_the_requests_that_a_leaving_member_waits_for_are_answered() -> None:
    driver, _leader, follower = _completing()
    driver.sync("sync", follower)
    driver.leave("leave", follower)
    assert driver.code("sync") is ErrorCode.UNKNOWN_MEMBER_ID
    third = driver.enter("c")
    driver.leave("leave2", third)
    assert driver.code("c") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_first_versions_of_leave_have_one_member_and_one_code(version: int) -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.leave("x", "someone", version=version)
    assert driver.left("x").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    driver.leave("leave", member_id, version=version)
    assert driver.left("leave").error_code == ErrorCode.NONE
    driver.left("leave").encode(version)
    assert driver.group.state is GroupState.EMPTY


def test_many_members_leave_with_a_result_each() -> None:
    driver = Driver()
    _dynamic, static = driver.stable("a", instances=("i",))
    pending = "p-3"
    driver.join("p")
    assert driver.joined("p").member_id == pending
    driver.leave("leave", ("", "i"), ("", "j"), "someone", (static, "j"), pending, ("a-1", "i"), "a-1")
    assert [ErrorCode(it.error_code).name for it in driver.left("leave").members] == [
        "NONE",  # an administrator removes a static member
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "UNKNOWN_MEMBER_ID",
        "NONE",  # it has an id and has not joined yet
        "FENCED_INSTANCE_ID",
        "NONE",
    ]
    assert driver.left("leave").error_code == 0
    assert driver.group.state is GroupState.EMPTY
    assert driver.log[-1].generation == 2


def test_a_pending_member_that_leaves_does_not_disturb_a_stable_group() -> None:
    driver = Driver()
    driver.stable("a")
    driver.join("b")
    driver.leave("leave", driver.joined("b").member_id)
    assert driver.group.state is GroupState.STABLE


def test_a_leave_whose_record_is_refused_is_refused() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.refuses_with = ErrorCode.NOT_COORDINATOR
    driver.leave("leave", member_id)
    assert driver.code("leave") is ErrorCode.NOT_COORDINATOR


# The end --------------------------------------------------------------------------------------------------------------


def test_a_group_that_ends_answers_whoever_waits() -> None:
    driver, _leader, follower = _completing()
    driver.sync("sync", follower)
    driver.take(driver.group.end(ErrorCode.REBALANCE_IN_PROGRESS))
    assert driver.code("sync") is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.group.state is GroupState.DEAD
    assert driver.group.deadline_ms() is None
    assert driver.heartbeat(follower) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    joining = Driver()
    joining.enter("a")
    joining.take(joining.group.end(ErrorCode.REBALANCE_IN_PROGRESS))
    assert joining.code("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert joining.group.deadline_ms() is None


def test_a_subscription_tells_the_topics_of_a_consumer_group() -> None:
    driver = Driver()
    valid = b"\0\0" + b"\0\0\0\2" + b"\0\1t" + b"\0\1u" + b"\xff\xff\xff\xff"
    driver.stable("a", protocols={"range": valid, "sticky": valid})
    assert driver.group.subscribed_topics() == frozenset({"t", "u"})
    # A member that is joining need not support the protocol of the last generation.
    driver.enter("b", protocols={"sticky": b"\0"})
    assert driver.group.subscribed_topics() == frozenset({"t", "u"})
    driver.enter("c", protocols={"range": b"\0", "sticky": b"\0"})
    assert driver.group.subscribed_topics() is None


def test_the_rebalance_timeout_is_the_longest_of_all() -> None:
    driver = Driver()
    driver.stable("a", rebalance_ms=30_000)
    driver.enter("b", rebalance_ms=REBALANCE_MS)
    driver.run_with_heartbeats(REBALANCE_MS - 1, "a-1")
    assert driver.is_parked("b")
    driver.run(1)
    assert [it.member_id for it in driver.joined("b").members] == ["b-2"]
