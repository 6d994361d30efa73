"""Owns servers under test: a process of its own, started and awaited, asked what it costs, ended with the context.

A server says that it is ready by a line on its standard output, as `minibroker serve` does: `ready: HOST:PORT`. It
runs in another process than the client that measures it, so that its CPU time and its memory are its own.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.units import KIB, MB

READY = "ready: "
READY_S_MAX = 120.0
STOPPED_S_MAX = 60.0
COMPLAINT_CHARS = 2000
COMPILES_ALWAYS = "PYTHONDONTWRITEBYTECODE"

# Linux numbers the CPU clock of a process from its id: the bits of the id inverted, then which of three clocks.
_CPU_CLOCK = 2
_PROCESSES = Path("/proc")


class Child:
    """A server that runs: where it listens, and what it has used so far."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        """Start it and wait until it is ready; what it complains about goes to the file `log`."""
        self._log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
            )
        try:
            self.address = self._ready()
        except BaseException:
            self.kill()
            raise

    def _ready(self) -> str:
        # A server that says nothing for too long is killed, which ends its output, which ends the wait.
        assert self.process.stdout is not None
        late = threading.Timer(READY_S_MAX, self.process.kill)
        late.start()
        try:
            for line in self.process.stdout:
                if line.startswith(READY):
                    return line.removeprefix(READY).strip()
        finally:
            late.cancel()
        complaint = self._log.read_text(errors="replace")[-COMPLAINT_CHARS:]
        raise ChildProcessError(
            f"not ready within {READY_S_MAX:g} s, or dead before: {self.process.args!r}\n{complaint}"
        )

    @property
    def host(self) -> str:
        """The host part of the address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])

    # What it costs --------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        """CPU time of all its threads since it began."""
        return cpu_s(self.process.pid)

    def resident_mb(self) -> float:
        """The memory that it holds now."""
        return resident_mb(self.process.pid)

    def open_files(self) -> int:
        """How many file handles it has open, sockets included; 0 where the system does not tell."""
        handles = _PROCESSES / str(self.process.pid) / "fd"
        return len(os.listdir(handles)) if handles.is_dir() else 0

    # Its end --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask it to end, and wait; nothing happens if it has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOPPED_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process since it began."""
    if _PROCESSES.is_dir():
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    return cpu_text_s(_ask(pid, "time"))


def resident_mb(pid: int) -> float:
    """The memory that a process holds now."""
    return int(_ask(pid, "rss")) * KIB / MB


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


def environment(context: Context) -> dict[str, str]:
    """The environment of a process under test, in which Python keeps what it has compiled.

    If it was told not to, every start would compile the whole program, which nobody's second start does: then what it
    compiles goes into the folder under test.
    """
    own = dict(os.environ)
    if own.pop(COMPILES_ALWAYS, ""):
        own["PYTHONPYCACHEPREFIX"] = str(context.directory / "compiled")
    return own


def start(context: Context, command: Sequence[str]) -> Child:
    """Start a server that ends with the context at the latest."""
    child = Child(command, context.directory / "servers.log", environment(context))
    context.on_close(child.stop)
    return child


def serve_command(data: Path, *settings: str) -> list[str]:
    """The command that runs a broker on a data directory and any free port."""
    command = [sys.executable, "-m", "minibroker.cli", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    return command + [word for setting in settings for word in ("--set", setting)]


def serve(context: Context, *settings: str, name: str = "data") -> Child:
    """Start a broker with an empty data directory of its own."""
    return start(context, serve_command(context.directory / name, *settings))


def echo(context: Context) -> Child:
    """Start the bare server of `echo`, which sends every frame back."""
    return start(context, [sys.executable, "-m", "minibroker.bench.echo"])
