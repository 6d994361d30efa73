"""Messages between nodes, which may be delayed, lost, duplicated or reordered. A pure module.

Every message has its own delay, so a later one may overtake an earlier one. A message is any immutable value; the
network does not look into it. The sender of a lost message gets no error, and needs a timeout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from minibroker.simulation.process import Process
from minibroker.simulation.scheduler import Action, Scheduler
from minibroker.simulation.trace import Trace


@dataclass(frozen=True, slots=True)
class Weather:
    """The delays and losses of the network in one run."""

    delay_ms_min: int = 1
    delay_ms_max: int = 5
    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    """How often a message takes ten times the longest delay, so that others overtake it."""

    @classmethod
    def draw(cls, chance: Random) -> "Weather":
        """Draw delays and losses. One run in three loses no message, so that the effects of other faults show."""
        delay_ms_max = chance.choice((2, 5, 10, 20))
        if chance.random() < 1 / 3:
            return cls(delay_ms_max=delay_ms_max)
        return cls(
            delay_ms_max=delay_ms_max,
            drop=chance.choice((0.0, 0.01, 0.05)),
            duplicate=chance.choice((0.0, 0.01, 0.05)),
            late=chance.choice((0.0, 0.01, 0.05)),
        )


Direction = tuple[str, str]


class Network:
    """The network between all processes."""

    def __init__(self, scheduler: Scheduler, trace: Trace, chance: Random, weather: Weather) -> None:
        self.scheduler = scheduler
        self.trace = trace
        self.chance = chance
        self.weather = weather
        self.admits: Callable[[Process, object], bool] | None = None
        """Called with the sender and its request: may the request be served? If None, every request is served."""
        self._cuts: dict[Direction, int] = {}
        self._slow_ms: dict[Direction, int] = {}

    # Faults -----------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> Action:
        """Lose all messages in one direction until the returned action is called. Two cuts need two such calls."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1
        return partial(self._heal, (source, target))

    def _heal(self, direction: Direction) -> None:
        self._cuts[direction] -= 1
        if not self._cuts[direction]:
            del self._cuts[direction]

    def slow(self, source: str, target: str, delay_ms: int) -> Action:
        """Delay all messages in one direction by `delay_ms` more until the returned action is called."""
        direction = (source, target)
        self._slow_ms[direction] = self._slow_ms.get(direction, 0) + delay_ms

        def end() -> None:
            self._slow_ms[direction] -= delay_ms

        return end

    def is_cut(self, source: str, target: str) -> bool:
        """Whether a direction is cut."""
        return (source, target) in self._cuts

    def become_calm(self) -> None:
        """Stop losing messages. A cluster that does not recover after this has a bug."""
        self.weather = Weather(delay_ms_max=self.weather.delay_ms_max)

    # Messages ---------------------------------------------------------------------------------------------------------

    def send(self, source: Process, target: Process, message: object, deliver: Action) -> None:
        """Send a message; if it arrives, `deliver` runs in the target's process."""
        number = self.trace.sent(source.name, target.name, message)
        weather = self.weather
        if self._cuts and (source.name, target.name) in self._cuts:
            self.trace.lost(number, "the link is cut")
            return
        if weather.drop and self.chance.random() < weather.drop:
            self.trace.lost(number, "dropped")
            return
        self._deliver(source, target, number, deliver)
        if weather.duplicate and self.chance.random() < weather.duplicate:
            self._deliver(source, target, number, deliver)

    def ask(
        self,
        source: Process,
        target: Process,
        request: object,
        serve: Callable[[Callable[[Any], None]], None],
        then: Callable[[Any], None],
    ) -> None:
        """Send a request and deliver the answer: `serve(reply)` runs at the target, `then(answer)` at the source.

        Either message may be lost, and the request may arrive twice. Only the first answer counts, and only if the
        process that asked has not died since. The caller needs a timeout of its own.
        """
        hear = _once(source.in_this_life(then))

        def reply(answer: Any) -> None:
            self.send(target, source, answer, lambda: hear(answer))

        self.send(source, target, request, lambda: serve(reply) if self.is_admitted(source, request) else None)

    def is_admitted(self, source: Process, request: object) -> bool:
        """Whether a request may be served. If not, it gets no answer."""
        return self.admits is None or self.admits(source, request)

    def delay_ms(self, source: str, target: str) -> int:
        """The delay of the next message."""
        weather, chance = self.weather, self.chance
        span_ms = weather.delay_ms_max - weather.delay_ms_min
        delay_ms = weather.delay_ms_min + int(chance.random() * (span_ms + 1))
        if weather.late and chance.random() < weather.late:
            delay_ms += 10 * weather.delay_ms_max
        return delay_ms + self._slow_ms.get((source, target), 0) if self._slow_ms else delay_ms

    def _deliver(self, source: Process, target: Process, number: int, deliver: Action) -> None:
        def arrive() -> None:
            # A message that was under way when the link was cut is lost, too.
            if self._cuts and (source.name, target.name) in self._cuts:
                self.trace.lost(number, "the link is cut")
            elif not target.is_alive:
                self.trace.lost(number, f"{target.name} is down")
            else:
                self.trace.arrived(number)
                target.run(deliver)

        self.scheduler.after(self.delay_ms(source.name, target.name), arrive)


def _once(action: Callable[[Any], None]) -> Callable[[Any], None]:
    heard = False

    def first(answer: Any) -> None:
        nonlocal heard
        if not heard:
            heard = True
            action(answer)

    return first
