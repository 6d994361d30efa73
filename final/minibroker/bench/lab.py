"""Labs: experiments that learners run on their own machine, each with a table, its meaning, and one figure.

A chapter keeps its labs in files `chapters/NN-topic/labs/lab_*.py`. Each such file has a list:

```python
LABS = [Lab("disk", "01", "sequential against random I/O, and the price of a flush", run_disk)]
```

So labs are found in a clone of the repository, and an installed wheel has none. A module that several labs share is in
the folder of the first of them.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minibroker.bench.context import Context, is_quick, open_context, quick_note
from minibroker.bench.measure import Progress, Results, no_progress
from minibroker.bench.plot import Figure
from minibroker.bench.report import Table, environment, machine_text, results_document, write_files
from minibroker.bench.scripts import import_script


@dataclass(frozen=True)
class Findings:
    """The results of a lab: a table, its meaning in plain English, and a figure."""

    table: Table
    reading: Sequence[str]
    figure: Figure
    results: Results


@dataclass(frozen=True)
class Lab:
    """An experiment: its name, its chapter, its purpose, and its function."""

    name: str
    chapter: str
    shows: str
    run: Callable[[Context], Findings]


def find_labs(clone: Path) -> dict[str, Lab]:
    """Load the labs of all chapters of a clone of the repository, in the order of the course."""
    found: dict[str, Lab] = {}
    for path in sorted(clone.glob("chapters/*/labs/lab_*.py")):
        for lab in import_script(path).LABS:
            if lab.name in found:
                raise ValueError(f"two labs are called {lab.name!r}; one of them is in {path.relative_to(clone)}")
            found[lab.name] = lab
    return dict(sorted(found.items(), key=lambda item: (item[1].chapter, item[0])))


def run_lab(lab: Lab, *, directory: Path | None = None, progress: Progress = no_progress) -> Findings:
    """Run a lab in a temporary folder of the disk under test."""
    with open_context(directory=directory, progress=progress) as context:
        return lab.run(context)


def findings_text(lab: Lab, findings: Findings) -> str:
    """Return the findings as text: the table, then its meaning."""
    title = f"{lab.name} (chapter {lab.chapter}): {lab.shows}"
    reading = [textwrap.fill(paragraph, width=100) for paragraph in findings.reading]
    parts = [f"{title}\n{'─' * len(title)}", findings.table.text(), *reading, machine_text()]
    return "\n\n".join(filter(None, (*parts, quick_note()))) + "\n"


def findings_document(lab: Lab, findings: Findings) -> dict[str, object]:
    """Return the findings as a JSON document."""
    return {
        "name": lab.name,
        "chapter": lab.chapter,
        "shows": lab.shows,
        "note": quick_note(),
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
