"""Joining a classic group: ids, protocols, the size limit, and when a join is answered."""

import pytest
from cases import case
from classic_driver import DELAY_MS, Driver

from minibroker.groups.classic_transitions import NEXT, Cause, GroupState
from minibroker.wire.codes import ErrorCode


def test_the_table_has_kafkas_transitions() -> None:
    """Kafka: ClassicGroupState.validPreviousStates."""
    moves = {(state, following) for (state, _cause), following in NEXT.items()}
    empty, preparing, completing, stable, dead = GroupState
    assert moves == {
        (empty, preparing),
        (stable, preparing),
        (completing, preparing),
        (preparing, completing),
        (completing, stable),
        (preparing, empty),
        *((state, dead) for state in GroupState),
    }
    assert {cause for _state, cause in NEXT} == set(Cause)


# Ids ------------------------------------------------------------------------------------------------------------------


def test_a_new_dynamic_member_is_given_an_id_and_joins_with_it() -> None:
    """Trap 16: the second join, with the id of the first answer, is not UNKNOWN_MEMBER_ID."""
    driver = Driver()
    driver.join("a1")
    assert driver.code("a1") is ErrorCode.MEMBER_ID_REQUIRED
    member_id = driver.joined("a1").member_id
    driver.join("a2", member_id)
    assert driver.is_parked("a2")
    driver.run(DELAY_MS)
    assert driver.code("a2") is ErrorCode.NONE
    assert driver.joined("a2").member_id == member_id == driver.joined("a2").leader


def test_versions_before_4_and_static_members_get_their_id_with_the_generation() -> None:
    for version, instance_id in [(0, None), (3, None), (5, "i"), (9, "i")]:
        with case(version, instance_id):
            driver = Driver()
            driver.join("a", version=version, instance_id=instance_id)
            assert driver.is_parked("a")
            driver.run(DELAY_MS)
            assert driver.joined("a").member_id == f"{instance_id or 'a'}-1"


def test_an_unknown_id_is_refused() -> None:
    driver = Driver()
    driver.stable("a")
    driver.join("x", "someone")
    assert driver.code("x") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_cannot_be_taken_by_a_static_member() -> None:
    driver = Driver()
    driver.join("a1")
    driver.join("a2", driver.joined("a1").member_id, instance_id="i")
    assert driver.code("a2") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_that_is_sent_again_replaces_the_one_that_waits() -> None:
    driver = Driver()
    member_id = driver.enter("a")
    driver.join("again", member_id)
    assert driver.code("a") is ErrorCode.REBALANCE_IN_PROGRESS
    driver.run(DELAY_MS)
    assert driver.code("again") is ErrorCode.NONE


# Protocols ------------------------------------------------------------------------------------------------------------


def test_the_protocol_is_one_that_all_members_support() -> None:
    """Trap 21: a protocol that only some members support is not chosen, whatever most members prefer."""
    driver = Driver()
    driver.enter("a", protocols={"sticky": b"", "range": b"a"})
    driver.enter("b", protocols={"sticky": b"", "range": b"b"})
    driver.enter("c", protocols={"range": b"c"})
    driver.run(2 * DELAY_MS)
    assert driver.joined("c").protocol_name == "range"
    assert {it.metadata for it in driver.joined("a").members} == {b"a", b"b", b"c"}


def test_a_member_without_a_protocol_that_all_support_is_refused() -> None:
    """Trap 21: one protocol in common with a single member is not enough."""
    driver = Driver()
    driver.enter("a", protocols={"range": b"", "sticky": b""})
    driver.enter("b", protocols={"range": b""})
    for protocols in [{"sticky": b""}, {"other": b""}, {}]:
        with case(protocols):
            driver.answers.pop("x", None)
            driver.join("x", protocols=protocols)
            assert driver.code("x") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_each_member_votes_for_the_first_protocol_that_all_support() -> None:
    driver = Driver()
    driver.enter("a", protocols={"range": b"", "sticky": b""})
    driver.enter("b", protocols={"own": b"", "sticky": b"", "range": b""})
    driver.enter("c", protocols={"sticky": b"", "range": b""})
    driver.run(2 * DELAY_MS)
    assert driver.group.protocol_name == "sticky"


def test_a_group_has_one_protocol_type_of_any_name() -> None:
    """The metadata are opaque: Connect's workers and Karapace's registries are groups, too. What looks like a
    consumer's subscription is not one.
    """
    no_topics = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
    for kind, metadata in (("connect", b"\xff\x00"), ("sr", b""), ("anything", no_topics)):
        with case(kind):
            driver = Driver()
            driver.enter("a", protocol_type=kind, protocols={"v0": metadata})
            driver.run(DELAY_MS)
            driver.assign()
            assert driver.log[-1].protocol_type == kind
            assert driver.group.subscribed_topics() is None
            driver.join("b", protocols={"v0": b""})
            assert driver.code("b") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_protocol_type_is_refused() -> None:
    driver = Driver()
    driver.join("a", protocol_type="")
    assert driver.code("a") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_can_be_used_with_another_protocol_type() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.leave("leave", member_id)
    driver.enter("b", protocol_type="connect", protocols={"v0": b""})
    driver.run(DELAY_MS)
    assert driver.joined("b").protocol_type == "connect"


# Joining again --------------------------------------------------------------------------------------------------------


def test_an_unchanged_follower_of_a_stable_group_is_answered_at_once() -> None:
    driver = Driver()
    _leader, follower = driver.stable("a", "b")
    driver.join("again", follower)
    assert driver.joined("again").generation_id == 1
    assert not driver.joined("again").members
    assert driver.group.state is GroupState.STABLE


def test_the_leaders_join_rebalances_a_stable_group() -> None:
    """It may have seen that a topic has grown, which its metadata do not show."""
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.join("again", leader)
    assert driver.is_parked("again")
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_changed_member_rebalances_the_group() -> None:
    for state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        with case(state):
            driver = Driver()
            _leader, follower = driver.enter("a"), driver.enter("b")
            driver.run(2 * DELAY_MS)
            if state is GroupState.STABLE:
                driver.assign()
            driver.join("again", follower, protocols={"range": b"other topics"})
            assert driver.is_parked("again")
            assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_another_order_of_the_protocols_is_a_change() -> None:
    driver = Driver()
    both = {"range": b"", "sticky": b""}
    _leader, follower = driver.stable("a", "b", protocols=both)
    driver.join("again", follower, protocols=dict(reversed(both.items())))
    assert driver.is_parked("again")


def test_an_unchanged_member_whose_answer_was_lost_gets_it_again_before_the_sync() -> None:
    driver = Driver()
    leader, follower = driver.enter("a"), driver.enter("b")
    driver.run(2 * DELAY_MS)
    driver.join("a-again", leader)
    driver.join("b-again", follower)
    assert driver.joined("a-again") == driver.joined("a")
    assert driver.joined("b-again") == driver.joined("b")
    assert len(driver.joined("a-again").members) == 2


def test_a_pending_member_holds_up_a_rebalance() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.join("b1")
    driver.join("again", member_id)
    assert driver.is_parked("again")
    driver.join("b2", driver.joined("b1").member_id)
    assert len(driver.joined("again").members) == 2


# Limits ---------------------------------------------------------------------------------------------------------------


def test_a_session_timeout_outside_of_the_limits_is_refused() -> None:
    driver = Driver()
    for session_ms, code in [
        (5_999, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6_000, ErrorCode.MEMBER_ID_REQUIRED),
        (1_800_000, ErrorCode.MEMBER_ID_REQUIRED),
        (1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
    ]:
        with case(session_ms):
            driver.join(f"a{session_ms}", session_ms=session_ms)
            assert driver.code(f"a{session_ms}") is code
            driver.group = driver.new_group()


def test_a_full_group_refuses_another_member() -> None:
    driver = Driver(max_size=2)
    _one, other = driver.stable("a", "b")
    driver.join("c", version=3)
    assert driver.code("c") is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.join("again", other)
    assert driver.code("again") is ErrorCode.NONE


def test_a_full_group_lets_a_static_member_restart() -> None:
    driver = Driver(max_size=1)
    driver.stable(instances=("i",))
    driver.join("again", instance_id="i")
    assert driver.code("again") is ErrorCode.NONE


def test_while_members_join_again_those_count_that_have_done_so() -> None:
    """After the limit was lowered, the last members to join again are refused, and the others go on."""
    driver = Driver()
    ids = driver.stable("a", "b", "c")
    driver.settings = Driver(max_size=2).settings
    driver.take_over()
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    for at, member_id in enumerate(ids):
        driver.join(f"again{at}", member_id)
    assert driver.code("again2") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [it.member_id for it in driver.joined("again0").members] == ids[:2]


# The first rebalance --------------------------------------------------------------------------------------------------


def test_the_first_rebalance_waits_as_long_as_members_come() -> None:
    driver = Driver()
    driver.enter("a")
    driver.run(2_000)
    driver.enter("b")
    driver.run(2_000)
    assert driver.is_parked("a")
    driver.enter("c")
    driver.run(4_999)
    assert driver.is_parked("a")
    driver.run(1)
    assert len(driver.joined("a").members) == 3


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    driver = Driver()
    driver.enter("a", rebalance_ms=7_000)
    for at in range(6):
        driver.run(1_000)
        driver.enter(f"b{at}", rebalance_ms=7_000)
    driver.run(999)
    assert driver.is_parked("a")
    driver.run(1)
    assert len(driver.joined("a").members) == 7


def test_without_a_delay_the_first_member_is_answered_at_once() -> None:
    driver = Driver(initial_rebalance_delay_ms=0)
    driver.enter("a")
    assert driver.joined("a").generation_id == 1


def test_a_later_rebalance_has_no_delay() -> None:
    driver = Driver()
    (member_id,) = driver.stable("a")
    driver.join("again", member_id)
    assert driver.joined("again").generation_id == 2


# The first record -----------------------------------------------------------------------------------------------------


def test_a_new_group_is_written_before_its_first_member_is_answered() -> None:
    driver = Driver()
    driver.join("a")
    (first,) = driver.log
    assert (first.generation, first.protocol_type, first.members) == (0, "", [])
    driver.join("b")
    assert len(driver.log) == 1


def test_a_group_whose_first_join_is_refused_leaves_nothing() -> None:
    driver = Driver()
    driver.join("a", session_ms=1)
    assert driver.log == []
    assert driver.group.state is GroupState.DEAD
    driver.join("b")
    assert driver.code("b") is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(("version", "delay_ms"), [(3, DELAY_MS), (9, DELAY_MS), (3, 0)])
def test_a_group_that_cannot_be_written_has_never_begun(version: int, delay_ms: int) -> None:
    driver = Driver(initial_rebalance_delay_ms=delay_ms)
    driver.refuses_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.join("a", version=version)
    assert driver.code("a") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.is_unused
    assert driver.group.deadline_ms() is None
    driver.refuses_with = None
    driver.enter("b")
    driver.run(delay_ms)
    assert driver.joined("b").generation_id == 1
