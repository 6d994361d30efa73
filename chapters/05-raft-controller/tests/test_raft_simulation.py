"""The quorum and the controller under everything that can go wrong: seeds of two worlds, and bugs that they find.

`make simulate SEEDS=10000` runs more of them; `planted_bugs` says how a bug is looked for anew.
"""

import controller_world
import pytest
import raft_world
from planted_bugs import BUGS
from simulation_claims import check_found, check_one_trace, check_seeds
from simulation_planted import Bug

from minibroker.simulation.world import World

SEEDS, PARTS = 100, 4
# A quarter of the seeds need not meet what only one seed in twenty meets.
RARE = {
    "candidate: somebody leads the epoch",
    "move on top of a move",
    "move taken back",
    "stale incarnation refused",
    "leader: somebody is in a newer epoch",
    "duplicate answered",
}
WORLDS = [raft_world.World, controller_world.World]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__module__)
def test_every_invariant_holds_in_every_seed(world: type[World], part: int) -> None:
    """After every event; and once all is healed, everything comes right again. Every change of role is met."""
    summary = check_seeds(world, range(1 + part, 1 + SEEDS, PARTS), rare=RARE)
    assert summary.acks >= 300 * summary.seeds


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """The same seed finds nothing in the code as it is, and the same scenario plays as recorded."""
    check_found(bug)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__module__)
def test_a_seed_has_one_trace_under_any_hash_seed(world: type[World]) -> None:
    check_one_trace(world, 5)
