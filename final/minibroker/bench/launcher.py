"""Runs server processes, brokers or others: start, wait until ready, measure, pause, stop, restart.

A server reports that it is ready with a line on its standard output, as `minibroker serve` does: `ready: HOST:PORT`.
Every benchmark, lab, example and test that needs a running broker starts it here, always as a separate process, so that
the broker's CPU time and memory can be measured. `children` ties such a process to a context; `local` starts clusters.
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
SHOWN_CHARS = 2000

Command = Callable[[str], list[str]]
"""The command that runs a server on an address, HOST:PORT."""

_READY_LINE = re.compile(rb"^" + READY.encode() + rb"(.*)\n", re.MULTILINE)
# Linux derives the number of a process's CPU clock from the process id: its inverted bits, then 3 bits for the clock.
_CPU_CLOCK = 2
_PROCESSES = Path("/proc")
_numbers = itertools.count(1)


class Server:
    """A server process, which can be started again with the same command at the same address."""

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
        """Each process writes its stderr to a file of its own, whose path is `logs` followed by a number.

        A tied process ends when this process ends, for whatever reason: its stdin is a pipe whose other end only this
        process holds, and the program ends when the pipe closes (`--child`). Ctrl-C in a terminal does not reach the
        tied process.
        """
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None
        self.logs: list[Path] = []
        self._command_at = command
        self._log_stem = logs
        self._environment = environment
        self._is_tied = is_tied
        self._name = name
        self._stdout = b""

    # Start -----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the process without waiting for it."""
        assert not self.is_alive(), "the process runs already: stop it or kill it first"
        # If an earlier process ended by itself, its pipes are still open. `kill` closes them.
        self.kill()
        self._stdout = b""
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
        """Wait until the server is ready. If it chose a free port, keep the number of that port."""
        if not self.is_alive():
            raise self._ended_early()
        deadline = time.monotonic() + self.ready_s_max
        while (found := _READY_LINE.search(self._stdout)) is None:
            self._read_more(deadline)
        if self.port == 0:
            self.address = found[1].decode().strip()

    def _read_more(self, deadline: float) -> None:
        """Wait until the process prints more output."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(deadline - time.monotonic(), 0)):
                raise TimeoutError(f"{self.name} was not ready within {self.ready_s_max:g} s; {self._stderr_text()}")
        chunk = os.read(self.process.stdout.fileno(), 64 * KIB)
        if not chunk:
            # The process has closed its stdout. Its stderr is complete only after it has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(deadline - time.monotonic(), 0))
            raise self._ended_early()
        self._stdout += chunk

    def start(self) -> None:
        """Start the process, and wait until it is ready. If that fails, no process is left."""
        self.begin()
        try:
            self.await_ready()
        except BaseException:
            self.kill()
            raise

    def restart(self) -> None:
        """Start the server again at the same address, and wait until it is ready."""
        self.start()

    def _ended_early(self) -> ChildProcessError:
        return ChildProcessError(f"{self.name} ended before it was ready; {self._stderr_text()}")

    def _stderr_text(self) -> str:
        text = self.logs[-1].read_text(errors="replace") if self.logs else ""
        return f"its stderr:\n{text[-SHOWN_CHARS:]}"

    # Identity ---------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the server in messages: its given name, or else its command."""
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
        assert self.process is not None, f"{self.name} has no process: call start first"
        return self.process.pid

    def is_alive(self) -> bool:
        """Whether its process exists, paused or not."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """The stderr of all its processes since the first start."""
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    # Resources --------------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        """CPU time of all threads of the process since its start."""
        return cpu_s(self.pid)

    def resident_mb(self) -> float:
        """The memory that the process holds now."""
        return resident_bytes(self.pid) / MB

    def open_files(self) -> int:
        """The number of open files of the process, sockets included; 0 if the system does not report it."""
        handles = _PROCESSES / str(self.pid) / "fd"
        return len(os.listdir(handles)) if handles.is_dir() else 0

    # Faults, and the end ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """SIGSTOP: the process exists and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: the process continues as if no time had passed."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def await_end(self, seconds: float | None = None) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self.process is not None
        return self.process.wait(seconds or self.stopped_s_max)

    def stop(self) -> None:
        """Shut down with SIGTERM, if it runs. A process that does not end in time is killed, and that is an error."""
        self._signal(signal.SIGTERM)
        try:
            if self.process is not None:
                self.await_end()
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not stop within {self.stopped_s_max:g} s") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process with SIGKILL; do nothing if it has ended."""
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
    """Reserve a free port for a node, also while the node is down, until the stack is closed."""
    it = reserved.enter_context(socket.socket())
    # The socket is bound but never listens. So the node can bind the same port, and the system gives the port to no
    # other program.
    it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    it.bind((HOST, 0))
    port: int = it.getsockname()[1]
    if sys.platform != "linux":
        # On other systems two sockets cannot share a port, even with this option. So release the port: it is free now,
        # but not reserved.
        it.close()
    return port


# Resources of a process ----------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process since it began."""
    if _PROCESSES.is_dir():
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    return cpu_text_s(_ask(pid, "time"))


def resident_bytes(pid: int) -> int:
    """The memory that a process holds now."""
    return int(_ask(pid, "rss")) * KIB


def forget_peak(pid: int) -> None:
    """Begin a new measurement of the peak of a process's memory. Only Linux can do this; elsewhere nothing happens."""
    with contextlib.suppress(OSError):
        (_PROCESSES / str(pid) / "clear_refs").write_text("5")


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process has held since `forget_peak`. Where this is unknown, the memory that it holds."""
    status = _PROCESSES / str(pid) / "status"
    found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text() if status.exists() else "", re.MULTILINE)
    return int(found[1]) * KIB if found else resident_bytes(pid)


def _ask(pid: int, column: str) -> str:
    command = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def cpu_text_s(text: str) -> float:
    """Read a CPU time as `ps` writes it: [[days-]hours:]minutes:seconds, the seconds with a fraction or without."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a CPU time")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
