"""The quorum and the controller under everything that can go wrong: seeds of two worlds, and bugs that they find.

`make simulate SEEDS=10000` runs more of them; `planted_bugs` says how a bug is looked for anew.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import controller_world
import pytest
import raft_world
from planted_bugs import BUGS
from raft_cluster import TRANSITIONS

from minibroker.simulation.faults import COUNT_MIN
from minibroker.simulation.planted import SEEDS_MAX, Bug
from minibroker.simulation.running import run_seeds
from minibroker.simulation.trace import digest

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
WORLDS = {"quorum": raft_world.World, "controller": controller_world.World}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", WORLDS)
def test_every_invariant_holds_in_every_seed(name: str, part: int) -> None:
    """After every event; and once all is healed, everything comes right again."""
    world: Any = WORLDS[name]
    summary = run_seeds(world, range(1 + part, 1 + SEEDS, PARTS))
    assert summary.failure is None, f"seed {summary.failure.seed}: {summary.failure.violation}"
    assert summary.seeds == SEEDS // PARTS
    assert summary.virtual_ms >= 30_000 * summary.seeds
    assert summary.faults >= COUNT_MIN * summary.seeds
    assert summary.acks >= 300 * summary.seeds
    # Every row of the table of roles is met, and everything else that a world declares.
    assert set(summary.missing) <= RARE, set(TRANSITIONS) & set(summary.missing)


@pytest.mark.parametrize("bug", [it for it in BUGS if it.world is not None], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """By a seed that is known to find it; the same seed finds nothing in the code as it is."""
    assert bug.seed <= SEEDS_MAX
    outcome = bug.run(bug.seed)
    assert outcome.violation is not None, f"seed {bug.seed} does not find it any more: look for another one"
    assert outcome.invariant == bug.invariant, outcome.violation


@pytest.mark.parametrize("bug", [it for it in BUGS if it.scenario], ids=lambda bug: bug.name)
def test_a_scenario_shows_a_planted_bug(bug: Bug) -> None:
    recorded, played = bug.play()
    assert recorded != played


@pytest.mark.parametrize("name", ["raft_world", "controller_world"])
def test_a_seed_has_one_trace_under_any_hash_seed(name: str) -> None:
    here, world = Path(__file__).parent, WORLDS["quorum" if name == "raft_world" else "controller"]
    program = f"import {name} as w; from minibroker.simulation.trace import digest; "
    program += "print(digest(w.World(5, is_traced=True).run().entries))"
    path = os.pathsep.join(str(it) for it in (here, here.parents[1] / "04-replication-isr" / "tests"))
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    outcome: Any = world(5, is_traced=True).run()
    assert child.stdout.strip() == digest(outcome.entries)
