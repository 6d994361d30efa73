"""Groups under faults: seeds of `groups_world`, each at least 30 virtual seconds, and planted bugs that they find.

`make simulate WORLDS=groups_world SEEDS=10000` runs more seeds; `groups_bugs` looks for each planted bug anew.
"""

import pytest
from groups_bugs import BUGS
from groups_watch import CLAIMS, Broken, DurableGroups, Note
from groups_world import ACKS_MIN, World
from simulation_claims import check_found, check_one_trace, check_seeds
from simulation_planted import Bug

from minibroker.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetCommitValue,
)
from minibroker.simulation.host import DISK_UNREADABLE
from minibroker.simulation.states import States

SEEDS = range(1, 21)
# So few seeds need not reach the states that only one seed in twenty reaches.
RARE = {
    "offsets from a coordinator that was replaced",
    "commit in the middle of a rebalance refused",
    "commit of a replaced static member refused",
    "group became a classic one",
    "member does not give up partitions",
    "static member fenced",
    DISK_UNREADABLE,
}


def test_every_invariant_holds_in_every_seed() -> None:
    """The invariants hold after every event, and every group is stable again after the faults."""
    summary = check_seeds(World, SEEDS, rare=RARE)
    assert summary.acks_min is not None
    assert summary.acks_min >= ACKS_MIN


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """The same seed finds nothing in the correct code."""
    check_found(bug)


def test_a_seed_has_one_trace_under_any_hash_seed() -> None:
    check_one_trace(World, 5)


# The checker itself ---------------------------------------------------------------------------------------------------

PLACE = ("g", "t1", 0)


def durable() -> DurableGroups:
    """A stable group with one member, in generation 3."""
    world = World(1, faults=())
    world.build()
    groups = DurableGroups(world.new_shard(str, world.image), States(["a commit overtaken by a later one"]))
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m", current_state_timestamp=0, members=[]
    )
    groups.take(GroupRecord(GroupMetadataKey(group_id="g"), value), 0)
    return groups


def commit(groups: DurableGroups, offset: int, *, number: int, client: str = "a", epoch: int = 4) -> Note:
    """A commit becomes durable."""
    note = Note(number, client, "m", epoch)
    value = OffsetCommitValue(offset=offset, metadata=note.text(), commit_timestamp=0)
    groups.take(GroupRecord(OffsetCommitKey(group_id="g", topic="t1", partition=0), value), groups.end)
    return note


def test_a_commit_that_goes_back_is_flagged() -> None:
    groups = durable()
    groups.on_acknowledged(PLACE, commit(groups, 10, number=5), 10)
    groups.on_acknowledged(PLACE, commit(groups, 12, number=6), 12)
    # The client itself sent this one earlier, over a connection that broke.
    commit(groups, 11, number=4)
    with pytest.raises(Broken, match=CLAIMS[8]):
        commit(groups, 9, number=7, client="b")


def test_an_acknowledged_commit_that_is_not_durable_is_flagged() -> None:
    with pytest.raises(Broken, match=CLAIMS[8]):
        durable().on_acknowledged(PLACE, Note(1, "a", "m", 4), 10)


def test_a_fetch_of_an_older_offset_is_flagged() -> None:
    groups = durable()
    groups.on_acknowledged(PLACE, commit(groups, 10, number=5), 10)
    groups.on_fetched(PLACE, 10, groups.floor(PLACE))
    with pytest.raises(Broken, match=CLAIMS[8]):
        groups.on_fetched(PLACE, 9, groups.floor(PLACE))


def test_a_commit_of_an_old_generation_or_of_a_stranger_is_flagged() -> None:
    for epoch in (2, 3):
        with pytest.raises(Broken, match=CLAIMS[14]):
            commit(durable(), 10, number=5, epoch=epoch)


def test_two_owners_of_one_generation_are_flagged() -> None:
    groups = durable()
    groups.on_synced("g", 3, "m", [("t1", 0)])
    groups.on_synced("g", 3, "m", [("t1", 0)])
    with pytest.raises(Broken, match=CLAIMS[20]):
        groups.on_synced("g", 3, "n", [("t1", 0)])


def test_an_assignment_that_the_log_does_not_have_yet_is_flagged() -> None:
    with pytest.raises(Broken, match=CLAIMS[20]):
        durable().on_synced("g", 4, "m", [])
