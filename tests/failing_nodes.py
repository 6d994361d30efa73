"""Nodes whose disk and clock fail when a test says so. The program that they run is `failing_disk.py`."""

import signal
import sys
from pathlib import Path

from clusters import QuorumCluster, QuorumNode

DISK_ERRORS = ("Input/output error", "No space left on device")


class FailingNode(QuorumNode):
    """A node whose faults are files beside its data."""

    @property
    def mark(self) -> Path:
        """While this file exists, flushes of the files whose path contains its text fail."""
        return self.data.with_suffix(".fails")

    @property
    def full(self) -> Path:
        """While this file exists, the disk is full."""
        return Path(f"{self.mark}.full")

    @property
    def clock(self) -> Path:
        """While this file exists, the time of day is wrong by the number of seconds in it."""
        return Path(f"{self.mark}.clock")

    @property
    def asked(self) -> list[str]:
        """The files whose flush failed, one entry for each attempt."""
        found = Path(f"{self.mark}.asked")
        return found.read_text().splitlines() if found.exists() else []

    def mend(self) -> None:
        """End all faults. A node that has ended because of one is not started."""
        for path in (self.mark, Path(f"{self.mark}.asked"), self.full, self.clock):
            path.unlink(missing_ok=True)

    def command(self, listen: str) -> list[str]:
        program = str(Path(__file__).with_name("failing_disk.py"))
        command = super().command(listen)
        return [sys.executable, program, str(self.mark), *command[command.index("serve") :]]

    def unexpected_end(self) -> str:
        """The last words of a node that has ended by itself, although its disk did not fail; otherwise nothing."""
        code = None if self.process is None else self.process.poll()
        words = self.last_words()[-1:] if code is not None and code > 0 else []
        return "".join(it for it in words if not any(reason in it for reason in DISK_ERRORS))

    def last_words(self) -> list[str]:
        return self.logs[-1].read_text().splitlines()

    def dump_stacks(self) -> None:
        """Let the node write to its log what its threads and tasks do."""
        self._signal(signal.SIGUSR1)

    def restart(self) -> None:
        self.mend()
        super().restart()


class FailingCluster(QuorumCluster):
    """Three such nodes."""

    kind = FailingNode
    nodes: dict[int, FailingNode]  # type: ignore[assignment]
