"""Replication under faults: seeds of `replication_world`, each at least 30 virtual seconds.

`make simulate SEEDS=10000` runs more of them; `replication_bugs` looks for each planted bug anew.
"""

import re
from pathlib import Path

import pytest
from partition_watch import ACKS_MIN
from replication_bugs import BUGS
from replication_world import World
from simulation_claims import check_found, check_one_trace, check_seeds, check_strangers
from simulation_planted import Bug

from minibroker.simulation.checker import INVARIANTS
from minibroker.simulation.cluster import FAILING_DISK, FULL_DISK
from minibroker.simulation.faults import Fault
from minibroker.simulation.host import DISK_FAILED, DISK_FULL, DISK_UNREADABLE

HERE = Path(__file__).parent
SEEDS = range(1, 41)
# So few seeds need not reach states that only one seed in twenty reaches.
RARE = {
    "offline, the most complete one elected",
    "producer gave up",
    "consumer reset to the log's start",
    DISK_UNREADABLE,
}


def test_every_invariant_holds_in_every_seed() -> None:
    """Invariants 1 to 6 and 10 to 13 hold after every event, and the cluster recovers after healing."""
    summary = check_seeds(World, SEEDS, rare=RARE)
    assert summary.acks_min is not None
    assert summary.acks_min >= ACKS_MIN


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """Without the bug no seed fails, and every scenario plays as recorded."""
    check_found(bug)


def test_a_planted_bug_is_removed_afterwards() -> None:
    """All patched attributes are restored, also those that were only inherited."""
    before = {(owner, name): vars(owner).get(name) for bug in BUGS for owner, name, _value in bug.patches}
    for bug in BUGS:
        with bug.planted():
            assert all(vars(owner)[name] is value for owner, name, value in bug.patches)
    assert before == {(owner, name): vars(owner).get(name) for owner, name in before}


def test_the_lesson_lists_every_planted_bug_with_what_finds_it() -> None:
    lesson = (HERE.parent / "lessons/10-bugs-planted.md").read_text()
    (table,) = re.findall(r"^\| planted \| found by \| as \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", lesson, re.MULTILINE)
    assert table.splitlines() == [f"| {bug.name} | {found_by(bug)} | {shown_as(bug)} |" for bug in BUGS]


def found_by(bug: Bug) -> str:
    return bug.found_by.removesuffix(" of `replication_world`")


def shown_as(bug: Bug) -> str:
    if bug.scenario is not None:
        return "it comes out otherwise"
    return "an error in the code" if bug.invariant is None else f"{bug.invariant}, {INVARIANTS[bug.invariant]}"


def test_a_seed_has_one_trace_under_any_hash_seed() -> None:
    check_one_trace(World, 5)


# Faults of the whole cluster ------------------------------------------------------------------------------------------


def only(*faults: Fault) -> dict[str, int]:
    """The states of a run with these faults alone, in calm weather."""
    outcome = World(6, faults=faults).run()
    assert outcome.violation is None, outcome.violation
    return dict(outcome.states)


def test_faults_of_the_whole_cluster_do_not_move_the_draws_of_the_others() -> None:
    class Before(World):
        DISASTERS = ()
        TRIALS = ()

    names = {it.name for it in (*World.DISASTERS, *World.TRIALS)}
    drawn = [World(seed).faults for seed in SEEDS]
    assert [[it for it in faults if it.kind not in names] for faults in drawn] == [
        list(Before(seed).faults) for seed in SEEDS
    ]
    assert any(not names & {it.kind for it in faults} for faults in drawn)
    assert names == {it.kind for faults in drawn for it in faults if it.kind in names}


def test_a_full_disk_keeps_the_place_of_a_node_and_a_failed_flush_does_not() -> None:
    full = only(Fault(5_000, FULL_DISK.name, (0, 0, 1), 2_000))
    assert (full[DISK_FULL] > 0, full[DISK_FAILED], full["unclean registration"]) == (True, 0, 0)
    failed = only(Fault(5_000, FAILING_DISK.name, (1,), 500))
    assert (failed[DISK_FULL], failed[DISK_FAILED], failed["unclean registration"]) == (0, 1, 1)


def test_a_node_that_cannot_read_its_disk_ends_and_comes_back_without_its_place() -> None:
    unreadable = only(Fault(5_000, FAILING_DISK.name, (1002,), 1_500))
    assert (unreadable[DISK_UNREADABLE] > 0, unreadable["unclean registration"]) == (True, 1)


def test_the_access_table_refuses_every_message_of_a_stranger() -> None:
    check_strangers(World)


def test_a_trace_changes_nothing() -> None:
    silent, traced = World(3).run(), World(3, is_traced=True).run()
    assert (silent.events, silent.acks, silent.states) == (traced.events, traced.acks, traced.states)
