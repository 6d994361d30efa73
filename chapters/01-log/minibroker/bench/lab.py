"""Owns labs: experiments that learners run on their own machine, each with a table, a reading of it, and one figure.

Any room may have a module `labs.py` with a list of them:

```python
LABS = [Lab("disk", "01", "sequential against random I/O, and the price of a flush", run_disk)]
```

Labs are found by looking at the folders of the namespace package, and only the modules called `labs` are imported.
As with any import, the first folder on the path that holds a room wins: a learner's copy of a room brings its labs.
"""

import importlib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import minibroker
from minibroker.bench.context import QUICK_NOTE, Context, is_quick, open_context
from minibroker.bench.measure import Progress, Results, no_progress
from minibroker.bench.plot import Figure
from minibroker.bench.report import Table, environment, machine_text, results_document, write_files


@dataclass(frozen=True)
class Findings:
    """What a lab found: the figures, and what they mean in plain English, computed from them."""

    table: Table
    reading: Sequence[str]
    figure: Figure
    results: Results


@dataclass(frozen=True)
class Lab:
    """An experiment: its name, the chapter it belongs to, what it shows, and the function that does it."""

    name: str
    chapter: str
    shows: str
    run: Callable[[Context], Findings]


def rooms_with_labs(roots: Iterable[str]) -> list[str]:
    """List the rooms that have a `labs.py`, without importing anything."""
    labs_of: dict[str, bool] = {}
    for root in roots:
        for folder in sorted(Path(root).glob("*/")):
            # A room further down the path is hidden by the first of its name, labs or not.
            labs_of.setdefault(folder.name, (folder / "labs.py").is_file())
    return sorted(room for room, has_labs in labs_of.items() if has_labs)


def find_labs() -> dict[str, Lab]:
    """Import the labs of all rooms, in the order of the course."""
    found: dict[str, Lab] = {}
    for room in rooms_with_labs(minibroker.__path__):
        for lab in importlib.import_module(f"minibroker.{room}.labs").LABS:
            if lab.name in found:
                raise ValueError(f"two labs are called {lab.name!r}; one of them is in minibroker.{room}.labs")
            found[lab.name] = lab
    return dict(sorted(found.items(), key=lambda item: (item[1].chapter, item[0])))


def run_lab(lab: Lab, *, directory: Path | None = None, progress: Progress = no_progress) -> Findings:
    """Run a lab in a temporary folder of the disk under test."""
    with open_context(directory=directory, progress=progress) as context:
        return lab.run(context)


def findings_text(lab: Lab, findings: Findings) -> str:
    """Print what a lab found: the table, then what it means."""
    title = f"{lab.name} (chapter {lab.chapter}): {lab.shows}"
    reading = [textwrap.fill(paragraph, width=100) for paragraph in findings.reading]
    parts = [f"{title}\n{'─' * len(title)}", findings.table.text(), *reading, machine_text()]
    return "\n\n".join(parts + ([QUICK_NOTE] if is_quick() else [])) + "\n"


def findings_document(lab: Lab, findings: Findings) -> dict[str, object]:
    """Spell out what a lab found for a program."""
    return {
        "name": lab.name,
        "chapter": lab.chapter,
        "shows": lab.shows,
        "note": QUICK_NOTE if is_quick() else "",
        "quick": is_quick(),
        "environment": environment(),
        "table": {
            "columns": list(findings.table.columns),
            "rows": [list(row) for row in findings.table.rows],
        },
        "reading": list(findings.reading),
        "cases": results_document(findings.results),
    }


def write_findings(folder: Path, lab: Lab, findings: Findings) -> list[Path]:
    """Write the document and the figure of a lab."""
    return write_files(folder, lab.name, findings_document(lab, findings), findings.figure)
