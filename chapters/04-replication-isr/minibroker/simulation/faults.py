"""Faults as data. A pure module.

A fault is a value: its time, kind, arguments and duration. All faults of a run are drawn before it begins, from
random numbers that nothing else uses. So a run can be repeated without some of its faults, and everything else draws
the same numbers. Each run first chooses a few kinds, and how frequent each is (swarm testing). A run with all kinds of
faults at once never gets far enough to reach rare states.

A world (`world.py`, the simulated cluster) defines what a kind does, with a function that causes the fault and returns
an action that ends it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from minibroker.simulation.scheduler import Action, Scheduler, Timer

COUNT_MIN, COUNT_MAX = 5, 25
DISASTERS_MAX = 6
_BURST_GAP_MS = 40


class Fault(NamedTuple):
    """A fault that begins at `at_ms` and ends after `duration_ms`."""

    at_ms: int
    kind: str
    arguments: tuple[int | str, ...] = ()
    duration_ms: int = 0

    def __str__(self) -> str:
        length = f" for {self.duration_ms} ms" if self.duration_ms else ""
        return f"{self.at_ms / 1000:.3f} s: {' '.join([self.kind, *map(str, self.arguments)])}{length}"


class Kind(NamedTuple):
    """A kind of fault: how its arguments are drawn, how long it lasts, how frequent it is compared with others."""

    name: str
    draw: Callable[[Random], tuple[int | str, ...]]
    duration_ms: tuple[int, int] = (0, 0)
    weight: float = 1.0


def draw_faults(
    kinds: Sequence[Kind], chance: Random, *, until_ms: int, count: tuple[int, int] = (COUNT_MIN, COUNT_MAX)
) -> list[Fault]:
    """Draw the kinds and their frequencies, then the faults of one run, in the order of time."""
    # In some runs (`in_burst` above 0) faults come in bursts, faster than a node can recover.
    chosen = [kind for kind in kinds if chance.random() < 0.5] or [chance.choice(kinds)]
    weights = [kind.weight * chance.choice((1, 1, 3)) for kind in chosen]
    in_burst = chance.choice((0.0, 0.2, 0.5))
    faults: list[Fault] = []
    at_ms = 0
    for _ in range(chance.randint(*count)):
        if faults and chance.random() < in_burst:
            at_ms = min(at_ms + chance.randrange(_BURST_GAP_MS), until_ms - 1)
        else:
            at_ms = chance.randrange(until_ms)
        kind = chance.choices(chosen, weights)[0]
        faults.append(Fault(at_ms, kind.name, kind.draw(chance), chance.randint(*kind.duration_ms)))
    return in_order(faults)


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Faults in the order of time."""
    return sorted(faults, key=lambda fault: fault.at_ms)


Cause = Callable[[Fault], Action | None]


class Storm:
    """Causes the faults at their times. The function that causes a fault returns the action that ends it, or None."""

    def __init__(self, scheduler: Scheduler, faults: Sequence[Fault], causes: Mapping[str, Cause]) -> None:
        self._scheduler = scheduler
        self._causes = causes
        self._ends: dict[int, Action] = {}
        self._timers: list[Timer] = []
        for number, fault in enumerate(faults):
            delay_ms = fault.at_ms - scheduler.now_ms
            self._timers.append(scheduler.after(delay_ms, lambda n=number, it=fault: self._begin(n, it)))  # type: ignore[misc]

    def heal(self) -> None:
        """End every fault that is under way, the last one first, and cancel those that have not begun."""
        for timer in self._timers:
            timer.cancel()
        for number in sorted(self._ends, reverse=True):
            self._ends.pop(number)()

    def _begin(self, number: int, fault: Fault) -> None:
        end = self._causes[fault.kind](fault)
        if end is not None:
            self._ends[number] = end
            self._timers.append(self._scheduler.after(fault.duration_ms, lambda: self._end(number)))

    def _end(self, number: int) -> None:
        self._ends.pop(number)()
