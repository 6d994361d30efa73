"""Owns processes that serve: a broker or another program is started, awaited, watched, paused, ended, started again.

A server says that it is ready by a line on its standard output, as `minibroker serve` does: `ready: HOST:PORT`. Every
benchmark, lab, example and test that needs a running broker starts it here, always as another process, so that its CPU
time and its memory are its own. `children` ties such a process to a context, and `local` makes a cluster of several.
"""

import contextlib
import itertools
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from minibroker.bench.units import KIB, MB

HOST = "127.0.0.1"
ANY_PORT = f"{HOST}:0"
READY = "ready: "
COMPLAINT_CHARS = 2000

Command = Callable[[str], list[str]]
"""The command that runs a server on an address, HOST:PORT."""

_READY_LINE = re.compile(rb"^" + READY.encode() + rb"(.*)\n", re.MULTILINE)
# Linux numbers the CPU clock of a process from its id: the bits of the id inverted, then which of three clocks.
_CPU_CLOCK = 2
_PROCESSES = Path("/proc")
_numbers = itertools.count(1)


class Server:
    """One process that serves, and after its end the next one, with the same command and at the same address."""

    ready_s_max = 120.0
    stopped_s_max = 60.0

    def __init__(
        self,
        command: Command,
        logs: Path,
        *,
        address: str = ANY_PORT,
        environment: Mapping[str, str] | None = None,
        is_tied: bool = False,
        name: str = "",
    ) -> None:
        """What each process complains about goes to a file of its own beside `logs`, whose name begins the same.

        A process that is tied ends with this one, however this one ends: its stdin is a pipe that only this process
        holds the other end of, and Ctrl-C in a terminal does not reach it. The program must know that (`--child`).
        """
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None
        self.logs: list[Path] = []
        self._command_at = command
        self._log_stem = logs
        self._environment = environment
        self._is_tied = is_tied
        self._name = name
        self._said = b""

    # Its beginning ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the process, and do not wait for it."""
        assert not self.is_alive(), "stop it or kill it first"
        # A process that ended by itself has left its pipes.
        self.kill()
        self._said = b""
        self._log_stem.parent.mkdir(parents=True, exist_ok=True)
        self.logs.append(self._log_stem.with_name(f"{self._log_stem.name}-{next(_numbers)}.log"))
        with self.logs[-1].open("wb") as stderr:
            self.process = subprocess.Popen(
                self._command_at(self.address),
                stdin=subprocess.PIPE if self._is_tied else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                process_group=0 if self._is_tied else None,
            )

    def await_ready(self) -> None:
        """Wait until it serves clients; of a server on any free port, note which one it has."""
        if not self.is_alive():
            raise self._ended_early()
        deadline = time.monotonic() + self.ready_s_max
        while (found := _READY_LINE.search(self._said)) is None:
            self._hear(deadline)
        if self.port == 0:
            self.address = found[1].decode().strip()

    def _hear(self, deadline: float) -> None:
        """Wait until it says something more."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(deadline - time.monotonic(), 0)):
                raise TimeoutError(f"{self.name} is not ready within {self.ready_s_max:g} s; {self._complaint()}")
        heard = os.read(self.process.stdout.fileno(), 64 * KIB)
        if not heard:
            # Its output has ended; its last words are complete when the process has, too.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(deadline - time.monotonic(), 0))
            raise self._ended_early()
        self._said += heard

    def start(self) -> None:
        """Start the process, and wait until it serves; if it does not, no process is left."""
        self.begin()
        try:
            self.await_ready()
        except BaseException:
            self.kill()
            raise

    def restart(self) -> None:
        """Start it again, at the address that it had, and wait until it serves."""
        self.start()

    def _ended_early(self) -> ChildProcessError:
        return ChildProcessError(f"{self.name} ended before it was ready; {self._complaint()}")

    def _complaint(self) -> str:
        text = self.logs[-1].read_text(errors="replace") if self.logs else ""
        return f"it said:\n{text[-COMPLAINT_CHARS:]}"

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What messages call it: its own name, or its command."""
        return self._name or f"`{shlex.join(self._command_at(self.address))}`"

    @property
    def host(self) -> str:
        """The host part of the address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self.process is not None, f"{self.name} was not started here"
        return self.process.pid

    def is_alive(self) -> bool:
        """Whether its process is there, paused or not."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """What its processes have written to stderr since the first start."""
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    # What it costs ----------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        """CPU time of all its threads since it began."""
        return cpu_s(self.pid)

    def resident_mb(self) -> float:
        """The memory that it holds now."""
        return resident_bytes(self.pid) / MB

    def open_files(self) -> int:
        """How many file handles it has open, sockets included; 0 where the system does not tell."""
        handles = _PROCESSES / str(self.pid) / "fd"
        return len(os.listdir(handles)) if handles.is_dir() else 0

    # Faults, and its end ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def await_end(self, seconds: float | None = None) -> int:
        """The exit code of a process that ends by itself, or was told to."""
        assert self.process is not None
        return self.process.wait(seconds or self.stopped_s_max)

    def stop(self) -> None:
        """A controlled shutdown. Nothing happens if it has ended; one that does not end is killed: an error."""
        self._signal(signal.SIGTERM)
        try:
            if self.process is not None:
                self.await_end()
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not stop within {self.stopped_s_max:g} s") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9; nothing happens if the process is gone."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def serve_command(*settings: str, data: Path | None = None, listen: str = "", is_child: bool = False) -> list[str]:
    """The command that runs a broker; each setting is NAME=VALUE."""
    command = [sys.executable, "-m", "minibroker.cli", "serve", *(["--child"] if is_child else [])]
    command += ["--data", str(data)] if data else []
    command += ["--listen", listen] if listen else []
    return command + [word for setting in settings for word in ("--set", setting)]


def reserve_port(reserved: contextlib.ExitStack) -> int:
    """A free port, which is kept for a node while the node is down, until the stack is closed."""
    it = reserved.enter_context(socket.socket())
    # Bound and never listening: a node may bind it as well, and no other program gets it.
    it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    it.bind((HOST, 0))
    port: int = it.getsockname()[1]
    if sys.platform != "linux":
        # Elsewhere two sockets cannot have one port, even so.
        it.close()
    return port


# What a process costs -------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process since it began."""
    if _PROCESSES.is_dir():
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    return cpu_text_s(_ask(pid, "time"))


def resident_bytes(pid: int) -> int:
    """The memory that a process holds now."""
    return int(_ask(pid, "rss")) * KIB


def _ask(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cpu_text_s(text: str) -> float:
    """Read a CPU time as `ps` writes it: [[days-]hours:]minutes:seconds, the seconds with a fraction or without."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no CPU time")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
