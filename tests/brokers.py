"""A real broker process for tests: started, awaited, watched, killed, stopped, started again.

`MINIBROKER_TEST_BOOTSTRAP=HOST:PORT` puts a broker that runs already in the place of the shared one; tests that need
settings of their own are then skipped. `MINIBROKER_TEST_SERVE=PROGRAM` puts another program in the place of
`minibroker`, called with the same arguments: `PROGRAM serve --data DIR --listen HOST:PORT --set k=v`. So the suite
can be proved against another broker.
"""

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

BOOTSTRAP = os.environ.get("MINIBROKER_TEST_BOOTSTRAP", "")
SERVE = os.environ.get("MINIBROKER_TEST_SERVE", "")
IS_OURS = not (BOOTSTRAP or SERVE)
READY_S_MAX = 20 if IS_OURS else 90
STOPPED_S_MAX = 20
# A Java process that was told to stop says 128 + 15; ours says that all went well.
STOPPED_CODES = (0,) if IS_OURS else (0, 128 + signal.SIGTERM)
# Retention and compaction on a schedule that a test can wait for.
QUICK_UPKEEP = ("log.retention.check.interval.ms=200", "log.cleaner.backoff.ms=200")

T = TypeVar("T")
_numbers = itertools.count()


def eventually(attempt: Callable[[], T], what: str, *, seconds: float = 20) -> T:
    """The first true value of an attempt, tried again until the deadline."""
    deadline = time.monotonic() + seconds
    while not (value := attempt()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}; last seen: {value!r}")
        time.sleep(0.01)
    return value


def unique(prefix: str) -> str:
    """A topic name that no other test has, in this run, in a parallel one or in the one before."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}-{time.time_ns():x}"


@dataclass
class Broker:
    """One broker: where it listens, and its process unless somebody else runs it."""

    address: str
    process: subprocess.Popen[bytes] | None = None
    data: Path = Path()
    settings: tuple[str, ...] = ()
    open_files_max: int | None = None
    logs: list[Path] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self.process is not None, "this broker is run by somebody else"
        return self.process.pid

    def resident_bytes(self) -> int:
        """Memory that the process holds now; 0 where that cannot be asked."""
        status = Path(f"/proc/{self.pid}/status") if self.process else Path()
        lines = status.read_text().splitlines() if status.is_file() else []
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def is_alive(self) -> bool:
        return self.process is None or self.process.poll() is None

    def log(self) -> str:
        """What the process has written to stderr since its first start."""
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    def complaints(self) -> str:
        """The first traceback in the log: a client never causes one."""
        log = self.log() if IS_OURS else ""
        found = log.find("Traceback (most recent call last)")
        return log[found : found + 4000] if found >= 0 else ""

    def stop(self) -> None:
        """A controlled shutdown, which succeeds and has nothing to complain about."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOPPED_S_MAX)
        finally:
            self.kill()
        assert code in STOPPED_CODES, f"stopped with exit code {code}:\n{self.log()[-4000:]}"
        assert not self.complaints(), self.complaints()

    def kill(self) -> None:
        """kill -9; nothing happens if the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Starts it again on the data and the port that it had."""
        assert not (self.process and self.is_alive()), "stop it or kill it first"
        again = start_broker(self.data, *self.settings, listen=self.address, open_files_max=self.open_files_max)
        self.process = again.process
        self.logs += again.logs


def start_broker(data: Path, *settings: str, listen: str = "127.0.0.1:0", open_files_max: int | None = None) -> Broker:
    """Starts a broker on a directory of its own and waits until it says that it is ready."""
    program = shlex.split(SERVE) or [sys.executable, "-m", "minibroker.cli"]
    command = [*program, "serve", "--data", str(data), "--listen", listen]
    for setting in settings:
        command += ["--set", setting]
    if open_files_max is not None:
        command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(open_files_max), *command]
    data.parent.mkdir(parents=True, exist_ok=True)
    number = next(_numbers)
    out, log = (data.parent / f"{data.name}-{number}.{kind}" for kind in ("out", "log"))
    with out.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    broker = Broker("", process, data, settings, open_files_max, [log])
    try:
        broker.address = eventually(lambda: _ready(broker, out), f"ready: {shlex.join(command)}", seconds=READY_S_MAX)
    except BaseException:
        broker.kill()
        raise
    return broker


def _ready(broker: Broker, out: Path) -> str:
    for line in out.read_text().splitlines(keepends=True):
        if line.startswith("ready: ") and line.endswith("\n"):
            return line.removeprefix("ready: ").strip()
    assert broker.is_alive(), f"it died at the start:\n{broker.log()[-4000:]}"
    return ""


StartBroker = Callable[..., Broker]
"""What the fixture `start` gives: `start("auto.create.topics.enable=false")`."""
