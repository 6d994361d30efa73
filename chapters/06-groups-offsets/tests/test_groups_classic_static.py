"""Static members: a restart within the session changes nothing for the others (KIP-345)."""

from cases import case
from classic_driver import DELAY_MS, REBALANCE_MS, Driver

from minibroker.groups.classic_transitions import GroupState
from minibroker.wire.codes import ErrorCode


def test_a_restarted_static_member_keeps_its_assignment() -> None:
    driver = Driver()
    leader, static = driver.stable("a", instances=("i",))
    driver.join("again", instance_id="i")
    joined = driver.joined("again")
    assert (joined.generation_id, joined.leader, joined.members) == (1, leader, [])
    assert joined.member_id != static
    driver.sync("sync", joined.member_id, instance_id="i")
    assert driver.synced("sync").assignment == static.encode()
    assert driver.heartbeat(leader) is ErrorCode.NONE
    assert {it.member_id for it in driver.log[-1].members} == {leader, joined.member_id}


def test_the_replaced_member_is_fenced_everywhere() -> None:
    driver = Driver()
    _leader, old = driver.stable("a", instances=("i",))
    driver.join("again", instance_id="i")
    assert driver.heartbeat(old, instance_id="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.commit(old, 1, "i") is ErrorCode.FENCED_INSTANCE_ID
    driver.sync("sync", old, instance_id="i")
    driver.join("join", old, instance_id="i")
    driver.leave("leave", (old, "i"))
    assert driver.code("sync") is driver.code("join") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.left("leave").members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    # Without its instance id it is not known at all.
    assert driver.heartbeat(old) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_replaced_members_parked_requests_are_fenced() -> None:
    driver = Driver()
    driver.enter("a")
    driver.join("first", instance_id="i")
    driver.join("second", instance_id="i")
    assert driver.code("first") is ErrorCode.FENCED_INSTANCE_ID
    driver.run(2 * DELAY_MS)
    driver.sync("sync", driver.joined("second").member_id, instance_id="i")
    driver.join("third", instance_id="i")
    assert driver.code("sync") is ErrorCode.FENCED_INSTANCE_ID


def test_a_restarted_leader_does_not_compute_an_assignment() -> None:
    """Version 9 says so (KIP-814). Before it, the answer names the old leader, so that the client takes itself for
    a follower.
    """
    for version in (5, 8, 9):
        with case(version):
            driver = Driver()
            old, _other = driver.stable(instances=("i", "j"))
            driver.join("again", instance_id="i", version=version)
            joined = driver.joined("again")
            assert driver.group.leader_id == joined.member_id
            if version == 9:
                assert joined.skip_assignment
                assert joined.leader == joined.member_id
                # The new member has its predecessor's place in the order.
                assert [it.group_instance_id for it in joined.members] == ["i", "j"]
            else:
                assert not joined.skip_assignment
                assert joined.leader == old
                assert joined.members == []
            joined.encode(version)
            assert driver.group.state is GroupState.STABLE


def test_a_restarted_follower_may_not_skip_anything() -> None:
    driver = Driver()
    leader, _static = driver.stable("a", instances=("i",))
    driver.join("again", instance_id="i")
    assert not driver.joined("again").skip_assignment
    assert driver.joined("again").leader == leader


def test_a_restarted_member_has_its_new_timeouts() -> None:
    """Trap 2: the old ones would remove it too early or too late."""
    driver = Driver()
    driver.stable(instances=("i",))
    driver.join("again", instance_id="i", session_ms=20_000, rebalance_ms=90_000)
    member = driver.group.members()[0]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 90_000)
    assert driver.log[-1].members[0].session_timeout == 20_000
    driver.run(19_999)
    assert driver.group.members()
    driver.run(1)
    assert not driver.group.members()


def test_a_restart_before_the_assignment_rebalances() -> None:
    """Trap 3: the leader assigns to the old id, and the new one would get nothing."""
    driver = Driver()
    leader, static = driver.enter("a"), "i-2"
    driver.join("i", instance_id="i")
    driver.run(2 * DELAY_MS)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.join("again", instance_id="i")
    assert driver.is_parked("again")
    driver.sync("sync", leader, {leader: b"", static: b"all"}, generation_id=1)
    assert driver.code("sync") is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join("leader", leader)
    driver.assign()
    new = driver.joined("again").member_id
    driver.sync("last", new, instance_id="i")
    assert driver.synced("last").assignment == new.encode()


def test_a_restart_with_another_preferred_protocol_rebalances() -> None:
    """Trap 33: the assignment in use was computed by the old assignor."""
    driver = Driver()
    both = {"range": b"", "sticky": b""}
    driver.stable(instances=("i",), protocols=both)
    assert driver.group.protocol_name == "range"
    driver.join("again", instance_id="i", protocols=dict(reversed(both.items())))
    joined = driver.joined("again")
    assert (joined.generation_id, joined.protocol_name, joined.skip_assignment) == (2, "sticky", False)
    assert len(joined.members) == 1


def test_a_restart_while_the_others_join_again_waits_with_them() -> None:
    driver = Driver()
    leader, _static = driver.stable("a", instances=("i",))
    driver.join("leader", leader)
    driver.join("again", instance_id="i")
    assert driver.joined("leader").generation_id == driver.joined("again").generation_id == 2


def test_a_restart_that_cannot_be_written_did_not_happen() -> None:
    driver = Driver()
    _leader, old = driver.stable("a", instances=("i",))
    driver.now_ms += 5_000
    driver.heartbeat("a-1")
    driver.refuses_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.join("again", instance_id="i", session_ms=20_000)
    assert driver.code("again") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(old, instance_id="i") is ErrorCode.NONE
    assert {it.member_id: it.session_timeout_ms for it in driver.group.members()}[old] == 10_000
    assert driver.group.record().value == driver.log[-1]


def test_a_restarted_member_is_not_removed_because_its_predecessor_did_not_sync() -> None:
    driver = Driver()
    leader = driver.enter("a")
    driver.join("i", instance_id="i")
    driver.run(2 * DELAY_MS)
    driver.sync("sync", leader, {leader: b"all"})
    driver.join("again", instance_id="i")
    new = driver.joined("again").member_id
    driver.run_with_heartbeats(REBALANCE_MS, leader, new)
    assert driver.group.state is GroupState.STABLE


def test_an_unknown_instance_id_with_a_member_id_is_refused() -> None:
    driver = Driver()
    (dynamic,) = driver.stable("a")
    driver.join("x", dynamic, instance_id="i")
    assert driver.code("x") is ErrorCode.UNKNOWN_MEMBER_ID
