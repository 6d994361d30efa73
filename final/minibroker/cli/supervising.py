"""Runs the nodes of `minibroker up`. Each node is a child process, which is restarted when it dies.

A child stops when it gets SIGTERM, and also when this process ends for any reason: its stdin is a pipe whose other end
only this process holds. A child is not in the terminal's process group, so only this process receives Ctrl-C.
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
from minibroker.cli.tables import counted
from minibroker.metadata.config_keys import BROKER_CONFIGS
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.errors import InvalidConfig
from minibroker.partitions.identity import META_PROPERTIES

VOTERS = 3
"""The maximum number of voters; all further nodes are observers.

More voters are slower to agree, and four voters tolerate no more failures than three.
"""
GRACE_S = 15.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 10.0
PORT_MAX = 65535
_REPLICATION_FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


# The plan -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The nodes: their directory, their ports, and the settings that all of them get."""

    data: str
    ports: Sequence[int]
    settings: Mapping[str, str]

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each node."""
        return [f"{HOST}:{port}" for port in self.ports]

    @property
    def voters(self) -> int:
        """How many of the nodes are voters: 1 or 3. Two voters would tolerate no failure."""
        return voters_of(len(self.ports))

    def directory(self, number: int) -> str:
        """The data directory of one node."""
        return directory_of(self.data, number)

    def settings_of(self, number: int) -> dict[str, str]:
        """The settings of one node."""
        voters = ",".join(f"{it}@{address}" for it, address in enumerate(self.addresses[: self.voters], start=1))
        return {
            **self.settings,
            "node.id": str(number),
            "log.dirs": self.directory(number),
            "listeners": f"PLAINTEXT://{self.addresses[number - 1]}",
            "controller.quorum.voters": voters,
        }


def voters_of(count: int) -> int:
    """How many of `count` nodes are voters."""
    return 1 if count < VOTERS else VOTERS


def directory_of(data: str, number: int) -> str:
    """The data directory of one node."""
    return os.path.join(data, f"node{number}")


def settings_for(count: int) -> dict[str, str]:
    """The replication settings: three replicas, two in sync for acks=all, or fewer if there are fewer nodes."""
    declare_every_key()
    copies = str(min(count, 3))
    settings = {name: copies for name in _REPLICATION_FACTORS if name in BROKER_CONFIGS}
    return settings | ({"min.insync.replicas": "2"} if count >= 3 else {})


def check_voters(data: str, count: int) -> None:
    """Refuse to change the voters of an existing cluster, because a second majority could form."""
    known = [
        number for number in range(1, VOTERS + 1) if os.path.exists(f"{directory_of(data, number)}/{META_PROPERTIES}")
    ]
    if not known or (VOTERS in known) == (voters_of(count) == VOTERS):
        return
    was = "three nodes or more" if VOTERS in known else counted(max(known), "node")
    hint = f"-n {VOTERS}" if VOTERS in known else f"-n {max(known)}"
    raise click.ClickException(
        f"{data} holds a cluster of {was}, and its voters cannot change: give {hint}, or another --data"
    )


def plan_of(count: int, data: str, ports: Sequence[int], pairs: Sequence[str]) -> Plan:
    """Make the plan, and report wrong settings before any process is started."""
    plan = Plan(data, ports, settings_for(count) | settings_of(pairs, "--set"))
    check_voters(data, count)
    for own in ("node.id", "log.dirs", "log.dir", "listeners", "controller.quorum.voters", "process.roles"):
        if own in plan.settings:
            raise click.UsageError(
                f"--set {own} is not possible, because it differs from node to node: use `minibroker serve`."
            )
    try:
        NodeConfig(plan.settings_of(1))
    except InvalidConfig as error:
        raise click.ClickException(str(error)) from error
    return plan


def ports_of(count: int, port: int, reserved: contextlib.ExitStack) -> list[int]:
    """Consecutive ports from `port` on; for port 0, free ports, which stay reserved while a node is down."""
    if port:
        if port + count - 1 > PORT_MAX:
            raise click.UsageError(f"{count} ports from {port} on do not fit: {PORT_MAX} is the last port.")
        return list(range(port, port + count))
    return [reserve_port(reserved) for _ in range(count)]


# The nodes at work ----------------------------------------------------------------------------------------------------


class StartFailed(click.ClickException):
    """A node ended before it was ready for the first time."""


def run(*, count: int, data: str, port: int, is_restarting: bool, pairs: Sequence[str]) -> None:
    """Run the cluster until Ctrl-C or SIGTERM."""
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
        self._is_announced = False
        self._is_asked_to_stop = False

    async def run(self) -> None:
        """Start all nodes, and return when all have ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        tasks = [asyncio.create_task(it.keep(is_restarting=self._is_restarting)) for it in self._nodes]
        try:
            # If one node cannot be started, its task fails, and all nodes are stopped.
            await asyncio.gather(*tasks)
        finally:
            self._stopped.set()
            await asyncio.wait(tasks)
        if not self._is_asked_to_stop:
            raise click.ClickException("all nodes have ended: their messages are above")

    def _on_signal(self) -> None:
        """Shut down all nodes at the first signal; kill them at the second."""
        if self._is_asked_to_stop:
            for node in self._nodes:
                node.kill()
        self._is_asked_to_stop = True
        self._stopped.set()

    def _on_ready(self) -> None:
        if self._is_announced or not all(it.is_ready for it in self._nodes):
            return
        self._is_announced = True
        first = self._plan.addresses[0]
        click.echo(f"data is in {self._plan.data}; stop with Ctrl-C", err=True)
        click.echo(f"try: minibroker cluster status --bootstrap-server {first}", err=True)
        click.echo(f"{READY}{','.join(self._plan.addresses)}")
        sys.stdout.flush()


class _Node:
    """Runs one node as a child process, and starts a new process when it dies."""

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
        """Run the process; restart it when it dies, with a growing pause if it keeps dying."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_S_MIN
        while not self._stopped.is_set():
            begun = loop.time()
            code = await self._run_once()
            if self._stopped.is_set():
                return
            if not self._was_ready:
                raise StartFailed(f"node {self.number} could not start ({_ending(code)}): its messages are above")
            if loop.time() - begun > STEADY_S:
                backoff_s = BACKOFF_S_MIN
            if not is_restarting:
                self._say(f"ended ({_ending(code)})")
                return
            self._say(f"ended ({_ending(code)}): restarting in {backoff_s:g} s")
            await _wait_for(self._stopped, backoff_s)
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
        reading = [
            asyncio.create_task(it) for it in (self._read_stdout(process.stdout), self._read_stderr(process.stderr))
        ]
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
        """Send SIGTERM; kill the process if it does not stop in time."""
        process.terminate()
        await asyncio.wait((ended,), timeout=GRACE_S)
        if not ended.done():
            self._say(f"did not stop within {GRACE_S:g} s: killed")
            process.kill()
            await ended

    async def _read_stdout(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            if line.startswith(READY):
                if self._was_ready:
                    self._say("is ready again")
                self.is_ready = self._was_ready = True
                self._on_ready()
            else:
                self._say(line)

    async def _read_stderr(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            self._say(line)

    def _say(self, line: str) -> None:
        click.echo(f"node {self.number}: {line}", err=True)

    def kill(self) -> None:
        """Kill the process, if it is running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a stream; a line may have any length."""
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _wait_for(stopped: asyncio.Event, seconds: float) -> None:
    """Wait for the event, for at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), seconds)


def _ending(code: int) -> str:
    """How a process ended, with the exit code that a shell shows."""
    if code >= 0:
        return f"exit code {code}"
    return f"exit code {128 - code}, killed by {signal.Signals(-code).name}"
