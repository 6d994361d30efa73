"""Runs the nodes of `minibroker up`: each a child process, watched, started again, and never left behind.

A child ends when it is told to, and when this process ends, however that ends: its stdin is a pipe that only this
process holds the other end of. It is no member of the terminal's process group, so Ctrl-C is heard here alone.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from minibroker.bench.launcher import HOST, READY, reserve_port, serve_command
from minibroker.broker.keys import declare_every_key
from minibroker.cli.options import settings_of
from minibroker.metadata.config_keys import BROKER_CONFIGS
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.partitions.identity import META_PROPERTIES

VOTERS = 3
"""More nodes than this only follow: a majority of many is slower, and no node more may be lost at a time than now."""
GRACE_S = 15.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 10.0
PORT_MAX = 65535
_REPLICATION_FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


# What the nodes are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The nodes: where each is, and what all are told."""

    data: str
    ports: Sequence[int]
    settings: Mapping[str, str]

    @property
    def addresses(self) -> list[str]:
        """Where they are found."""
        return [f"{HOST}:{port}" for port in self.ports]

    @property
    def voters(self) -> int:
        """How many of them vote: with two, either could stop the other."""
        return voters_of(len(self.ports))

    def directory(self, number: int) -> str:
        """The data of one node."""
        return directory_of(self.data, number)

    def settings_of(self, number: int) -> dict[str, str]:
        """What one node is told."""
        voters = ",".join(f"{it}@{address}" for it, address in enumerate(self.addresses[: self.voters], start=1))
        return {
            **self.settings,
            "node.id": str(number),
            "log.dirs": self.directory(number),
            "listeners": f"PLAINTEXT://{self.addresses[number - 1]}",
            "controller.quorum.voters": voters,
        }


def voters_of(count: int) -> int:
    """How many of so many nodes vote."""
    return 1 if count < VOTERS else VOTERS


def directory_of(data: str, number: int) -> str:
    """The data of one node."""
    return os.path.join(data, f"node{number}")


def settings_for(count: int) -> dict[str, str]:
    """What keeps every record safe, as far as so many nodes can."""
    declare_every_key()
    copies = str(min(count, 3))
    settings = {name: copies for name in _REPLICATION_FACTORS if name in BROKER_CONFIGS}
    return settings | ({"min.insync.replicas": "2"} if count >= 3 else {})


def check_voters(data: str, count: int) -> None:
    """Refuse to change who votes in a cluster that exists: a second majority could come to be."""
    known = [
        number for number in range(1, VOTERS + 1) if os.path.exists(f"{directory_of(data, number)}/{META_PROPERTIES}")
    ]
    if not known or (VOTERS in known) == (voters_of(count) == VOTERS):
        return
    was = "three nodes or more" if VOTERS in known else f"{max(known)} of two nodes at most"
    hint = f"-n {VOTERS}" if VOTERS in known else f"-n {max(known)}"
    raise click.ClickException(
        f"{data} holds a cluster of {was}, and who votes in it does not change: give {hint}, or another --data"
    )


def plan_of(count: int, data: str, ports: Sequence[int], pairs: Sequence[str]) -> Plan:
    """Put it together, and find out what is wrong with it before any process is started."""
    plan = Plan(data, ports, settings_for(count) | settings_of(pairs, "--set"))
    check_voters(data, count)
    for own in ("node.id", "log.dirs", "log.dir", "listeners", "controller.quorum.voters", "process.roles"):
        if own in plan.settings:
            raise click.UsageError(f"--set {own} is not possible: each node has its own; see `minibroker serve`.")
    try:
        NodeConfig(plan.settings_of(1))
    except InvalidConfig as error:
        raise click.ClickException(str(error)) from error
    return plan


def ports_of(count: int, port: int, reserved: contextlib.ExitStack) -> list[int]:
    """So many ports in a row; or free ones, which are kept for us while the nodes are down."""
    if port:
        if port + count - 1 > PORT_MAX:
            raise click.UsageError(f"{count} ports from {port} on end behind {PORT_MAX}.")
        return list(range(port, port + count))
    return [reserve_port(reserved) for _ in range(count)]


# The nodes at work ----------------------------------------------------------------------------------------------------


class StartFailed(click.ClickException):
    """A node could not even be started once."""


def run(*, count: int, data: str, port: int, is_restarting: bool, pairs: Sequence[str]) -> None:
    """Run the cluster until it is told to stop."""
    with contextlib.ExitStack() as reserved:
        plan = plan_of(count, data, ports_of(count, port, reserved), pairs)
        asyncio.run(Supervisor(plan, is_restarting=is_restarting).run())


class Supervisor:
    """Keeps the nodes of a plan running."""

    def __init__(self, plan: Plan, *, is_restarting: bool) -> None:
        self._plan = plan
        self._is_restarting = is_restarting
        self._stopped = asyncio.Event()
        self._nodes = [_Node(number, plan, self._stopped, self._on_ready) for number in range(1, len(plan.ports) + 1)]
        self._is_told = False
        self._is_asked_to_stop = False

    async def run(self) -> None:
        """Start all, and return when all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        tasks = [asyncio.create_task(it.keep(is_restarting=self._is_restarting)) for it in self._nodes]
        try:
            # One that cannot be started ends all.
            await asyncio.gather(*tasks)
        finally:
            self._stopped.set()
            await asyncio.wait(tasks)
        if not self._is_asked_to_stop:
            raise click.ClickException("no node is left: what they said is above")

    def _on_signal(self) -> None:
        """The first time all stop in order; who cannot wait for that says it again."""
        if self._is_asked_to_stop:
            for node in self._nodes:
                node.kill()
        self._is_asked_to_stop = True
        self._stopped.set()

    def _on_ready(self) -> None:
        if self._is_told or not all(it.is_ready for it in self._nodes):
            return
        self._is_told = True
        first = self._plan.addresses[0]
        click.echo(f"data is in {self._plan.data}; stop with Ctrl-C", err=True)
        click.echo(f"try: minibroker cluster status --bootstrap-server {first}", err=True)
        click.echo(f"{READY}{','.join(self._plan.addresses)}")
        sys.stdout.flush()


class _Node:
    """One child process, again and again."""

    def __init__(self, number: int, plan: Plan, stopped: asyncio.Event, on_ready: Callable[[], None]) -> None:
        self.number = number
        self.is_ready = False
        self._was_ready = False
        pairs = (f"{name}={value}" for name, value in plan.settings_of(number).items())
        self._command = serve_command(*pairs, is_child=True)
        self._stopped = stopped
        self._on_ready = on_ready
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self, *, is_restarting: bool) -> None:
        """Run the process; run it again when it dies, later and later if it keeps dying."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_S_MIN
        while not self._stopped.is_set():
            begun = loop.time()
            code = await self._run_once()
            if self._stopped.is_set():
                return
            if not self._was_ready:
                raise StartFailed(f"node {self.number} could not start ({_ending(code)}): what it said is above")
            if loop.time() - begun > STEADY_S:
                backoff_s = BACKOFF_S_MIN
            if not is_restarting:
                self._say(f"ended ({_ending(code)})")
                return
            self._say(f"ended ({_ending(code)}): started again in {backoff_s:g} s")
            await _unless(self._stopped, backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _run_once(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = [asyncio.create_task(it) for it in (self._listen(process.stdout), self._pass_on(process.stderr))]
        ended = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            await self._end(process, ended)
        self.is_ready = False
        await asyncio.wait(reading)
        return ended.result()

    async def _end(self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """Tell it to stop; if it does not in time, it is stuck."""
        process.terminate()
        await asyncio.wait((ended,), timeout=GRACE_S)
        if not ended.done():
            self._say(f"did not stop within {GRACE_S:g} s: killed")
            process.kill()
            await ended

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            if line.startswith(READY):
                if self._was_ready:
                    self._say("is ready again")
                self.is_ready = self._was_ready = True
                self._on_ready()
            else:
                self._say(line)

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            self._say(line)

    def _say(self, line: str) -> None:
        click.echo(f"node {self.number}: {line}", err=True)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a stream, however long."""
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _unless(stopped: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), seconds)


def _ending(code: int) -> str:
    """How a process ended, in the words of a shell."""
    if code >= 0:
        return f"exit code {code}"
    return f"exit code {128 - code}, killed by {signal.Signals(-code).name}"
