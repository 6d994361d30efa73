"""What a chapter implements to be simulated: a world. A pure module.

A world is built from a seed and played once. The base class has the clock, network, trace, faults and states. A
subclass adds nodes and clients, defines what each kind of fault does, and plays: first faults, then healing, then a
quiet time in which the cluster must recover.

    class World(simulation.World):
        STATES = ("truncation", "ISR shrink")
        KINDS = (Kind("kill", …), …)
        def play(self) -> None: …
        def causes(self) -> …

The same seed with the same faults plays the same, to the last message.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from minibroker.simulation.chance import stream
from minibroker.simulation.checker import Checker, Violation
from minibroker.simulation.faults import DISASTERS_MAX, Cause, Fault, Kind, Storm, draw_faults, in_order
from minibroker.simulation.history import History, Promise
from minibroker.simulation.network import Network, Weather
from minibroker.simulation.scheduler import Scheduler
from minibroker.simulation.states import States
from minibroker.simulation.trace import Entry, Trace


@dataclass(frozen=True)
class Outcome:
    """The result of one seed."""

    seed: int
    violation: str | None
    faults: tuple[Fault, ...]
    acks: int
    events: int
    virtual_ms: int
    states: Mapping[str, int]
    entries: Sequence[Entry] = field(default=(), repr=False)
    invariant: int | None = None
    """The number of the broken invariant. If it is None and `violation` is not, the code raised another error."""


class World(ABC):
    """One simulation. `faults` replaces the faults that the seed draws."""

    STATES: ClassVar[tuple[str, ...]] = ()
    KINDS: ClassVar[tuple[Kind, ...]] = ()
    DISASTERS: ClassVar[tuple[Kind, ...]] = ()
    """Faults of the whole cluster. Half of the seeds draw a few of them, from a stream of their own."""
    STORM_MS: ClassVar[int] = 30_000

    def __init__(self, seed: int, *, faults: Sequence[Fault] | None = None, is_traced: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler, is_kept=is_traced)
        self.states = States(self.STATES)
        self.promises: dict[str, Promise] = {}
        self.checker = Checker(self.promises)
        self.history = History(self.checker.on)
        self.network = Network(self.scheduler, self.trace, self.chance("network"), self.draw_weather())
        self.faults = tuple(self.draw_faults() if faults is None else faults)

    def chance(self, name: str) -> Random:
        """The seed's random numbers for one purpose."""
        return stream(self.seed, name)

    def draw_weather(self) -> Weather:
        """Draw the delays and losses of the network."""
        return Weather.draw(self.chance("weather"))

    def draw_faults(self) -> list[Fault]:
        """Draw the faults of the run."""
        faults = draw_faults(self.KINDS, self.chance("faults"), until_ms=self.STORM_MS) if self.KINDS else []
        chance = self.chance("disasters")
        if self.DISASTERS and chance.random() < 0.5:
            faults += draw_faults(self.DISASTERS, chance, until_ms=self.STORM_MS, count=(1, DISASTERS_MAX))
        return in_order(faults)

    @abstractmethod
    def play(self) -> None:
        """Play to the end. A `Violation` ends the run, and so does any other error, which is a bug as well."""

    def causes(self) -> Mapping[str, Cause]:
        """The function that causes each kind of fault."""
        return {}

    def storm(self) -> Storm:
        """Schedule the faults, except those that come after the storm."""
        return Storm(self.scheduler, [it for it in self.faults if it.at_ms < self.STORM_MS], self.causes())

    def run(self) -> Outcome:
        """Play once, and return the result."""
        violation, invariant = None, None
        try:
            self.play()
        except Violation as broken:
            violation, invariant = f"{broken}, at {self.scheduler.now_ms} ms", broken.invariant
        except Exception as error:
            violation = f"the code failed at {self.scheduler.now_ms} ms: {_where(error)}"
        return Outcome(
            seed=self.seed,
            violation=violation,
            faults=self.faults,
            acks=self.history.acks,
            events=self.scheduler.events,
            virtual_ms=self.scheduler.now_ms,
            states=dict(self.states.counts),
            entries=self.trace.entries,
            invariant=invariant,
        )


def _where(error: Exception) -> str:
    """The error and the innermost lines of its traceback, without the machine's paths."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    steps = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__}: {error} ({steps})"
