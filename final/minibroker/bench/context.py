"""The context of a benchmark or a lab: a folder on the disk under test, the number of repeats, the clean-up.

`MINIBROKER_QUICK=1` selects a quick run: sizes and repeats shrink so that tests can run every command in a second
or two. The figures of a quick run mean nothing, and a note on them says so.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from minibroker.bench.measure import (
    REPEATS,
    Case,
    Clock,
    Progress,
    Results,
    measure,
    no_progress,
    process_clock,
)

REPEATS_QUICK = 1
QUICK_NOTE = "quick run: sizes shrunk, figures not comparable"

# A folder for large files that the operating system promises to keep on a disk; /tmp is often memory.
DISK_FOLDER = Path("/var/tmp")

Value = TypeVar("Value")


def is_quick() -> bool:
    """Tell whether the environment variable selects a quick run."""
    return os.environ.get("MINIBROKER_QUICK", "") not in ("", "0")


def quick_note() -> str:
    """The note on the figures of a quick run; empty in a full run."""
    return QUICK_NOTE if is_quick() else ""


def scaled(full: Value, quick: Value) -> Value:
    """Choose `full` for a full run, or `quick` for a quick run, which only shows that the code runs."""
    return quick if is_quick() else full


@dataclass(frozen=True)
class Context:
    """The resources of a benchmark or a lab; files go to `directory`, which is removed at the end."""

    directory: Path
    repeats: int = REPEATS
    clock: Clock = process_clock
    progress: Progress = no_progress
    cleanup: ExitStack = field(default_factory=ExitStack)

    def on_close(self, callback: Callable[..., object], *arguments: object) -> None:
        """Register a call for the end of the context, such as closing a file; the last one is called first."""
        self.cleanup.callback(callback, *arguments)

    def measure(self, cases: Sequence[Case], *, repeats_max: int = 0) -> Results:
        """Measure cases with the clock and the repeats of this run, but with no more than `repeats_max` repeats."""
        repeats = min(self.repeats, repeats_max or self.repeats)
        return measure(cases, repeats=repeats, clock=self.clock, progress=self.progress)


def scratch_folder(chosen: Path | None) -> Path | None:
    """Return the parent of the temporary folder: the chosen one, or one on a disk. None means TMPDIR or /tmp."""
    if chosen or os.environ.get("TMPDIR"):
        return chosen
    return DISK_FOLDER if os.access(DISK_FOLDER, os.W_OK) else None


@contextmanager
def open_context(
    *,
    directory: Path | None = None,
    repeats: int | None = None,
    clock: Clock = process_clock,
    progress: Progress = no_progress,
) -> Iterator[Context]:
    """Make a context whose folder is removed and whose resources are closed at the end, also after Ctrl-C."""
    repeats = repeats or scaled(REPEATS, REPEATS_QUICK)
    with (
        tempfile.TemporaryDirectory(prefix="minibroker-bench-", dir=scratch_folder(directory)) as folder,
        ExitStack() as cleanup,
    ):
        yield Context(Path(folder), repeats, clock, progress, cleanup)
