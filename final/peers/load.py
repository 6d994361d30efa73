"""Runs `load.c`, the client of all comparisons: compiled once, then one process for each broker and kind of load.

The program is linked with the librdkafka that the package confluent-kafka contains, so nothing else has to be
installed but a C compiler.
"""

import importlib.util
import shutil
import subprocess
import zlib
from pathlib import Path

from minibroker.bench import Context, Skipped, Spread, launcher

SOURCE = Path(__file__).with_name("load.c")
BUILT = Path(__file__).parents[2] / "build"

Report = dict[str, int]
"""What the program has measured; times are in microseconds."""


def librdkafka() -> Path | None:
    """The shared library of librdkafka in the package confluent-kafka."""
    spec = importlib.util.find_spec("confluent_kafka")
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    folders = (package.with_name("confluent_kafka.libs"), package / ".dylibs")
    return next((it for folder in folders for it in sorted(folder.glob("librdkafka*"))), None)


def program() -> Path:
    """Compile the program, unless it was compiled before."""
    compiler, library = shutil.which("cc"), librdkafka()
    if compiler is None or library is None:
        raise Skipped("its client needs a C compiler (cc) and the package confluent-kafka with its librdkafka")
    found = BUILT / f"load-{zlib.crc32(SOURCE.read_bytes() + bytes(library)):08x}"
    if not found.exists():
        BUILT.mkdir(exist_ok=True)
        unfinished = found.with_suffix(".unfinished")
        link = [str(library), f"-Wl,-rpath,{library.parent}", "-lpthread"]
        command = [compiler, "-O2", "-Wall", "-o", str(unfinished), str(SOURCE), *link]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{compiler} could not compile {SOURCE.name}: {done.stderr}")
        unfinished.rename(found)
    return found


class Load:
    """A running load program, which stays connected between two commands."""

    def __init__(self, context: Context, *settings: str) -> None:
        command = [str(program()), "log_level=0", *settings]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        context.on_close(self._close)

    def run(self, *words: str | int) -> Report:
        """Run one command; every record must have been accepted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the load program ended during: {' '.join(map(str, words))}")
        report = {name: int(value) for name, value in (pair.split("=") for pair in line.split())}
        assert not report.get("refused"), f"{report['refused']} records were refused"
        return report

    def cpu_s(self) -> float:
        """The CPU time of the program; with a mock broker, that of both."""
        return launcher.cpu_s(self._process.pid)

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Rounds:
    """The reports of all rounds of a case. Those before the measured rounds are warm-up, and do not count."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.warmups = 1

    def last_s(self) -> float:
        """The seconds that the client has measured in the last round."""
        return self.reports[-1]["wall_us"] / 1e6

    def values(self, name: str) -> list[float]:
        """One figure of every measured round."""
        return [float(it[name]) for it in self.reports[self.warmups :] or self.reports]

    def ms(self, name: str) -> Spread:
        """A time in milliseconds, over the rounds."""
        return Spread.of([it / 1000 for it in self.values(name)])

    def us(self, name: str) -> Spread:
        """A time in microseconds, over the rounds."""
        return Spread.of(self.values(name))

    def ratio(self, other: "Rounds", name: str) -> Spread:
        """A figure divided by the same figure of the other's round."""
        pairs = zip(self.values(name), other.values(name), strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])

    def spread_percent(self, name: str) -> float:
        """The distance of the quartiles of a figure, as a percentage of its median."""
        return 2 * self.us(name).percent

    def per_s(self, count: int) -> Spread:
        """How many of `count` records were acknowledged in a second, over the rounds."""
        return Spread.of([count * 1e6 / it for it in self.values("wall_us")])
