"""Bugs to plant, and what finds each: the test of the tests. It changes code while it runs.

A simulator that finds nothing is good news, or a bad simulator. So a chapter lists bugs, each as a patch of its code
that holds for the time of a `with`; the code itself has no switch for any of them. A bug is found by the seed of a
world, or by a scenario whose transcript comes out otherwise.

    BUGS = (
        Bug.in_world(World, "the pending set is ignored", (Leadership, "maximal_isr", …), seed=1, invariant=12),
        Bug.in_scenario(Stage, FOLDER, "a deposed leader answers", (Replica, "check_leader", …), by="kip-320"),
    )
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation_scenario import Stage

from minibroker.partitions.access import Access, Gate
from minibroker.partitions.registry import Handler
from minibroker.simulation.running import shrunk
from minibroker.simulation.world import Outcome, World
from minibroker.wire.schema import Request

SEEDS_MAX = 500
Patch = tuple[Any, str, Any]
"""The owner of an attribute, its name, and its new value."""


@dataclass(frozen=True)
class Bug:
    """A bug: what it patches, and the world and a seed in which it is found; or the scenario that shows it."""

    name: str
    patches: tuple[Patch, ...]
    world: type[World] | None = None
    seed: int = 0
    """A seed that finds it."""
    invariant: int | None = None
    """The invariant that this seed breaks; None if an assertion of the code fails."""
    scenario: Path | None = None
    stage: type[Stage] | None = None

    @classmethod
    def in_world(cls, world: type[World], name: str, *patches: Patch, seed: int, invariant: int | None) -> "Bug":
        """A bug that a seed of a world finds."""
        return cls(name, patches, world=world, seed=seed, invariant=invariant)

    @classmethod
    def in_scenario(cls, stage: type[Stage], folder: Path, name: str, *patches: Patch, by: str) -> "Bug":
        """A bug that a scenario in a folder shows."""
        return cls(name, patches, scenario=folder / f"{by}.txt", stage=stage)

    @property
    def replaced(self) -> str:
        """The code that the bug replaces."""
        return ", ".join(f"{owner.__name__}.{name}" for owner, name, _value in self.patches)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the block with the bug in the code."""
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                # An inherited attribute is deleted again, so that the subclass inherits it as before.
                if name in vars(owner):
                    stack.callback(setattr, owner, name, vars(owner)[name])
                else:
                    stack.callback(delattr, owner, name)
                setattr(owner, name, value)
            yield

    def run(self, seed: int) -> Outcome:
        """Run a seed with the bug."""
        assert self.world is not None, f"{self.name} is found by a scenario"
        with self.planted():
            return self.world(seed).run()

    def play(self) -> tuple[str, str]:
        """The scenario as it is recorded, and as it goes with the bug."""
        assert self.scenario is not None, f"{self.name} is found by a seed"
        assert self.stage is not None
        recorded = self.scenario.read_text(encoding="utf-8")
        with self.planted():
            try:
                return recorded, self.stage().play(recorded)
            except AssertionError as error:
                return recorded, str(error)

    @property
    def found_by(self) -> str:
        """What finds it, for a table."""
        if self.scenario is not None:
            return f"the transcript `{self.scenario.stem}`"
        return f"seed {self.seed} of `{self.world.__module__ if self.world else ''}`"


def open_to(kind: type[Request]) -> Callable[[Gate, Access, Handler], Handler]:
    """A check of callers that lets anyone send requests of one kind."""

    def if_allowed(self: Gate, row: Access, handler: Handler) -> Handler:
        guarded = _IF_ALLOWED(self, row, handler)
        return lambda call: handler(call) if isinstance(call.request, kind) else guarded(call)

    return if_allowed


_IF_ALLOWED = Gate._if_allowed


def first_failure(bug: Bug) -> Outcome | None:
    """A seed that finds a bug: the known one, or else the first one."""
    seeds = (bug.seed, *range(1, SEEDS_MAX + 1))
    return next((outcome for seed in seeds if (outcome := bug.run(seed)).violation is not None), None)


def look_for(bug: Bug, *, shrinks: bool) -> str:
    """Search for a bug: a seed that finds it, or its scenario, and how it shows."""
    if bug.scenario is not None:
        recorded, played = bug.play()
        return f"{bug.found_by}: it comes out otherwise" if recorded != played else "not found by its transcript"
    failure = first_failure(bug)
    if failure is None:
        return f"not found in {SEEDS_MAX} seeds"
    told = f"seed {failure.seed}: {failure.violation}"[:160]
    return "\n".join([told, *_faults_that_matter(bug, failure)]) if shrinks else told


def _faults_that_matter(bug: Bug, failure: Outcome) -> list[str]:
    assert bug.world is not None
    with bug.planted():
        fewer = shrunk(bug.world, failure)
    return [f"  {len(fewer)} of {len(failure.faults)} faults matter:", *(f"    {fault}" for fault in fewer)]


def print_table(bugs: Sequence[Bug], words: Sequence[str]) -> None:
    """Search for every bug with one of the words in its name, or for all. `--shrink` names the faults that matter."""
    names = [word for word in words if word != "--shrink"]
    for bug in bugs:
        if not names or any(name in bug.name for name in names):
            print(f"{bug.name:<58} {look_for(bug, shrinks='--shrink' in words)}", flush=True)
