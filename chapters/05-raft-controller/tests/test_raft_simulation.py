"""The quorum and the controller under all kinds of faults: seeds of two worlds, and planted bugs that they find.

`make simulate SEEDS=10000` runs more seeds; `planted_bugs` tells how to look for a bug again.
"""

import controller_world
import pytest
import racks_world
import raft_world
from cases import case
from planted_bugs import BUGS
from simulated_machine import GuardedWorld
from simulation_claims import check_found, check_one_trace, check_seeds, check_strangers
from simulation_planted import Bug

from minibroker.metadata.placement import place
from minibroker.simulation.cluster import COME_BACK, RACK_LOST
from minibroker.simulation.faults import Fault
from minibroker.simulation.host import DISK_UNREADABLE
from minibroker.simulation.world import World

SEEDS = range(1, 25)
RACKS_SEED = 7
# So few seeds need not reach the states that only one seed in twenty reaches.
RARE = {
    "candidate: leader known",
    "move replaced by a move",
    "move cancelled",
    "stale incarnation refused",
    "leader: another node is in a newer epoch",
    "duplicate answered",
    DISK_UNREADABLE,
}
WORLDS: list[type[GuardedWorld]] = [raft_world.World, controller_world.World]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__module__)
def test_every_invariant_holds_in_every_seed(world: type[World]) -> None:
    """Invariants hold after every event, and the cluster recovers after the faults. Every change of role is reached."""
    summary = check_seeds(world, SEEDS, rare=RARE)
    assert summary.acks >= 300 * summary.seeds


def test_replicas_are_on_as_many_racks_as_possible_when_racks_are_lost() -> None:
    summary = check_seeds(racks_world.World, range(1, 7), rare=set(racks_world.World.STATES))
    assert summary.states[RACK_LOST]
    without_racks = (racks_world, "place_on_racks", place)
    check_found(Bug.in_world(racks_world.World, "racks do not count", without_racks, seed=RACKS_SEED, invariant=None))


def test_no_earlier_fault_starts_a_node_while_the_whole_cluster_is_down() -> None:
    """Neither a node that is to return later nor one that stops already is up again before the others."""
    storm_ms = controller_world.World.STORM_MS
    earlier = {
        "returns six seconds later": Fault(storm_ms - 2000, "stop all", (1, 0)),
        "stops already": Fault(storm_ms - 20, "leave", (0,), 963),
    }
    for name, fault in earlier.items():
        with case(name):
            outcome = controller_world.World(1, faults=[fault, Fault(storm_ms, "comeback", (0, 1))]).run()
            assert outcome.violation is None
            assert outcome.states[COME_BACK] == 1


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """The same seed finds nothing in the correct code, and the same scenario plays as recorded."""
    check_found(bug)


def test_the_access_table_refuses_every_message_of_a_stranger() -> None:
    for world in WORLDS:
        with case(world.__module__):
            check_strangers(world)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__module__)
def test_a_seed_has_one_trace_under_any_hash_seed(world: type[World]) -> None:
    check_one_trace(world, 5)
