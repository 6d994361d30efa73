"""A toy world: one server with a log in memory, and producers that retry. It is there to test the simulator.

The server is right, save for the bugs that can be planted in it: with `Forgetful` it acks before it writes, so a kill
at the wrong time loses what was acked; with `Stuttering` it knows no sequence numbers, so a retry is written twice.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, NamedTuple

from minibroker.simulation import world
from minibroker.simulation.faults import Cause, Fault, Kind
from minibroker.simulation.history import Acked, Invoked, Read, Value
from minibroker.simulation.links import Link
from minibroker.simulation.process import Process
from minibroker.simulation.trace import BAND, MARK

WRITE_MS = 3
TIMEOUT_MS = 200


class Spoken(NamedTuple):
    """A request to write a value, or the answer with its offset; a trace shows the text."""

    text: str
    value: Value
    offset: int = -1

    def __str__(self) -> str:
        return self.text


def write(value: Value) -> Spoken:
    return Spoken(f"write {value}", value)


def written(value: Value, offset: int) -> Spoken:
    return Spoken(f"{value} is at {offset}", value, offset)


class Server:
    """A log that survives a crash; values that are about to be written do not."""

    def __init__(self, world: "World") -> None:
        self.process = Process(world.scheduler, world.trace, "server")
        self.log: list[Value] = []
        self.world = world

    def serve(self, request: Spoken, reply: Callable[[Spoken], None]) -> None:
        if request.value in self.log:
            self.world.states.reach("retry")
            reply(written(request.value, self.log.index(request.value)))
        else:
            self.process.after(WRITE_MS, partial(self.write, request.value, reply))

    def write(self, value: Value, reply: Callable[[Spoken], None]) -> None:
        if value not in self.log:
            self.log.append(value)
            self.world.trace.happened("server", MARK, f"end {len(self.log)}")
        reply(written(value, self.log.index(value)))


class Forgetful(Server):
    def serve(self, request: Spoken, reply: Callable[[Spoken], None]) -> None:
        if request.value not in self.log:
            reply(written(request.value, len(self.log)))
        super().serve(request, reply if request.value in self.log else lambda _spoken: None)


class Stuttering(Server):
    def serve(self, request: Spoken, reply: Callable[[Spoken], None]) -> None:
        self.process.after(WRITE_MS, partial(self.write, request.value, reply))

    def write(self, value: Value, reply: Callable[[Spoken], None]) -> None:
        self.log.append(value)
        reply(written(value, len(self.log) - 1))


class Client:
    """Sends one value after the other, and retries each until it has an ack."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.process = Process(world.scheduler, world.trace, name)
        self.process.start()
        self.sequence = -1
        self.value = Value(name, -1)
        self.link: Link | None = None
        self.process.after(0, self.next)

    def next(self) -> None:
        if self.world.scheduler.now_ms >= self.world.STORM_MS:
            self.value = Value(self.process.name, -1)
            return
        self.sequence += 1
        self.value = Value(self.process.name, self.sequence)
        self.world.history.record(Invoked(self.world.scheduler.now_ms, self.value))
        self.send()

    def send(self) -> None:
        if self.link is None or not self.link.is_open:
            self.link = Link(
                self.world.network,
                self.process,
                self.world.server.process,
                serve=self.world.server.serve,
                on_answer=self.on_answer,
                on_broken=lambda: None,
            )
        self.link.send(write(self.value))
        self.process.after(TIMEOUT_MS, partial(self.on_timeout, self.value))

    def on_timeout(self, value: Value) -> None:
        if value == self.value and self.link is not None:
            self.link.break_off()
            self.send()

    def on_answer(self, answer: Spoken) -> None:
        if answer.value == self.value:
            self.world.history.record(Acked(self.world.scheduler.now_ms, answer.value, answer.offset))
            self.next()


class World(world.World):
    STATES: ClassVar[tuple[str, ...]] = ("retry", "restart")
    STORM_MS = 3_000
    KINDS: ClassVar[tuple[Kind, ...]] = (
        Kind("kill", lambda _chance: (), duration_ms=(10, 300)),
        Kind("pause", lambda _chance: (), duration_ms=(10, 300)),
        Kind("cut", lambda chance: (chance.choice(("a", "b")),), duration_ms=(10, 300)),
        Kind("break", lambda chance: (chance.choice(("a", "b")),)),
    )
    SERVER: ClassVar[type[Server]] = Server

    def causes(self) -> Mapping[str, Cause]:
        return {"kill": self.kill, "pause": self.pause, "cut": self.cut, "break": self.break_off}

    def kill(self, _fault: Fault) -> Callable[[], None] | None:
        if not self.server.process.is_alive:
            return None
        self.server.process.kill()
        for client in self.clients.values():
            if client.link is not None:
                client.link.break_off()
        return self.start

    def start(self) -> None:
        self.server.process.start()
        self.trace.happened("server", BAND, f"life {self.server.process.lives}")
        self.states.reach("restart")

    def pause(self, _fault: Fault) -> Callable[[], None]:
        self.server.process.pause()
        return self.server.process.resume

    def cut(self, fault: Fault) -> Callable[[], None]:
        return self.network.cut(str(fault.arguments[0]), "server")

    def break_off(self, fault: Fault) -> None:
        link = self.clients[str(fault.arguments[0])].link
        if link is not None:
            link.break_off()

    def play(self) -> None:
        self.server = self.SERVER(self)
        self.server.process.start()
        self.clients = {name: Client(self, name) for name in ("a", "b")}
        storm = self.storm()
        self.scheduler.run(self.STORM_MS)
        storm.heal()
        self.network.become_calm()
        self.scheduler.run(self.STORM_MS + 1_000)
        for offset, value in enumerate(self.server.log):
            self.history.record(Read(self.scheduler.now_ms, "reader", offset, value))
        self.checker.finish(dict(enumerate(self.server.log)))


class ForgetfulWorld(World):
    SERVER = Forgetful


class StutteringWorld(World):
    SERVER = Stuttering
