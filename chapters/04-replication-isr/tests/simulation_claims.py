"""What is claimed of every simulated world and of every planted bug, for the tests of chapters 04 and 05."""

import inspect
import os
import subprocess
import sys
from collections.abc import Set

from simulated_machine import STRANGER_REFUSED, GuardedWorld
from simulation_planted import SEEDS_MAX, Bug

from minibroker.simulation.cluster import FORGE
from minibroker.simulation.faults import COUNT_MIN, Fault
from minibroker.simulation.running import Summary, run_seeds
from minibroker.simulation.trace import digest
from minibroker.simulation.world import Outcome, World


def check_seeds(world: type[World], seeds: range, *, rare: Set[str]) -> Summary:
    """Every seed holds, and is worth something: it is long, and much goes wrong. Only rare states may be missed."""
    summary = run_seeds(world, seeds)
    assert summary.failure is None, _failed(world, summary.failure)
    assert summary.seeds == len(seeds)
    assert summary.virtual_ms >= 30_000 * summary.seeds
    assert summary.faults >= COUNT_MIN * summary.seeds
    assert set(summary.missing) <= rare
    return summary


def _failed(world: type[World], failure: Outcome) -> str:
    """The violation, and the command that replays its seed."""
    folder = os.path.relpath(os.path.dirname(inspect.getfile(world)))
    again = f"python -m minibroker.simulation {world.__module__} --path {folder} --replay {failure.seed} --shrink"
    return f"seed {failure.seed}: {failure.violation}\nagain: {again}"


def check_strangers(world: type[GuardedWorld]) -> None:
    """A stranger sends every message that it can forge, one kind after the other, and the access table refuses all."""
    kinds = range(len(world(1, faults=()).forgeries()))
    outcome = world(1, faults=[Fault(5_000 + 500 * kind, FORGE.name, (kind, 1), 300) for kind in kinds]).run()
    assert outcome.violation is None, outcome.violation
    assert outcome.states[STRANGER_REFUSED] >= 5 * len(kinds)


def check_found(bug: Bug) -> None:
    """A planted bug is found by its seed, as what its table says, or by its scenario, which comes out otherwise."""
    if bug.scenario is not None:
        recorded, played = bug.play()
        assert recorded != played
        return
    assert bug.seed <= SEEDS_MAX
    outcome = bug.run(bug.seed)
    assert outcome.violation is not None, (
        f"seed {bug.seed} does not find the planted bug any more. In the reference, look for another seed. Your own "
        f"code may be right all the same: it may not use what the bug replaces ({bug.replaced}), or draw other numbers"
    )
    assert outcome.invariant == bug.invariant, outcome.violation


def check_one_trace(world: type[World], seed: int) -> None:
    """A seed has one trace under any hash seed."""
    program = f"import {world.__module__} as w; from minibroker.simulation.trace import digest; "
    program += f"print(digest(w.World({seed}, is_traced=True).run().entries))"
    expected = digest(world(seed, is_traced=True).run().entries)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program]
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert child.stdout.strip() == expected
