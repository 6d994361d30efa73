"""The output of a run: a table for people, a JSON document for programs, a figure for the site.

The JSON keeps every repeat, so that a reader can compute other figures. It describes only the kind of machine: a file
that may be published contains no host name and no path.
"""

import json
import os
import platform
import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minibroker.bench.bars import FoundFact, Verdict
from minibroker.bench.benchmark import Outcome, figure_of
from minibroker.bench.context import QUICK_NOTE
from minibroker.bench.measure import METRICS, Result, Results, Spread, limit_of
from minibroker.bench.plot import Figure
from minibroker.bench.units import KIB, MB, number_text

PROCESS_STATUS = Path("/proc/self/status")

SPEED_METRICS = ("mb_per_s", "ops_per_s")
TABLE_METRICS = ("us_per_op", "cpu_s_per_gb", "ratio")


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; numbers are aligned to the right, words to the left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Align the columns with spaces; an empty column is left out."""
        kept = [number for number in range(len(self.columns)) if any(row[number] for row in self.rows)]
        lines = [[row[number] for number in kept] for row in (self.columns, *self.rows)]
        columns = [_aligned(column) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(len(cell) for cell in column)
    is_numbers = all(cell[0] in "-0123456789" for cell in column[1:] if cell)
    return [cell.rjust(width) if is_numbers else cell.ljust(width) for cell in column]


def results_table(results: Results, more: Sequence[str] = ()) -> Table:
    """Return the figures of each case: median, ± half the distance of the quartiles, and the ratio to its limit.

    `more` names metrics in addition to those of every table.
    """
    metrics = [name for name in METRICS if name in TABLE_METRICS or name in more]
    speeds, others = ([METRICS[name].label for name in names] for names in (SPEED_METRICS, metrics))
    return Table(["case", *speeds, "±", *others, "of"], [_row(result, results, metrics) for result in results.values()])


def _row(result: Result, results: Results, metrics: Sequence[str]) -> list[str]:
    limit = limit_of(result, results)
    speeds, others = (
        [_median_text(result.spread(name, limit)) for name in names] for names in (SPEED_METRICS, metrics)
    )
    return [result.case.name, *speeds, f"{result.speed.percent:.0f} %", *others, result.case.limit]


def _median_text(spread: Spread | None) -> str:
    return "" if spread is None else number_text(spread.median)


def bars_table(verdicts: Sequence[Verdict], facts: Sequence[FoundFact] = ()) -> Table:
    """Return the bars and facts: the promise, the measurement, the verdict."""
    rows = [
        [
            verdict.promise,
            number_text(measured.median),
            f"{number_text(measured.low)}–{number_text(measured.high)}",
            verdict.text,
        ]
        for verdict in verdicts
        for measured in [verdict.measured]
    ]
    rows += [[found.promise, number_text(found.value), found.quartiles_text, found.text] for found in facts]
    return Table(["bar", "measured", "quartiles", "verdict"], rows)


def outcome_text(outcome: Outcome) -> str:
    """Return a benchmark as text: its table, its bars, and the method."""
    title = f"{outcome.name}: {outcome.benchmark.title}"
    parts = [f"{title}\n{'─' * len(title)}"]
    if outcome.results:
        parts.append(results_table(outcome.results, outcome.benchmark.columns).text())
    if outcome.verdicts or outcome.facts:
        parts.append(bars_table(outcome.verdicts, outcome.facts).text())
    if outcome.benchmark.note:
        parts.append(outcome.benchmark.note)
    method = f"{_repeats_text(outcome.results)}{machine_text()}"
    if any(result.case.limit for result in outcome.results.values()):
        method += "\nA ratio is the median of the rounds' ratios: it can differ from the ratio of the two medians."
    parts.append(method + (f"\n{QUICK_NOTE}; bars are not enforced" if outcome.quick else ""))
    return "\n\n".join(parts) + "\n"


def _repeats_text(results: Results) -> str:
    for result in results.values():
        count = len(result.samples)
        return f"Medians of {count} interleaved repeats, ± half the distance between quartiles. "
    return ""


def machine_text() -> str:
    """Describe the machine in a sentence."""
    facts = environment()
    peak = f"peak memory {number_text(peak_memory_mb())} MB"
    return f"{facts['python']}, {facts['platform']}, {facts['cores']} cores, {peak}."


def environment() -> dict[str, str | int]:
    """Describe the interpreter and the kind of machine, without identifying the machine."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }


def peak_memory_mb() -> float:
    """Return the peak memory of this process since its start."""
    if PROCESS_STATUS.exists():
        # In a child process, `getrusage` starts from the peak of the parent; VmHWM is the process's own peak.
        found = re.search(r"VmHWM:\s+(\d+) kB", PROCESS_STATUS.read_text())
        if found:
            return int(found[1]) * KIB / MB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return (peak if sys.platform == "darwin" else peak * KIB) / MB


def results_document(results: Results) -> list[dict[str, object]]:
    """Return results as a JSON document: each case, each repeat, and the figures derived from them."""
    return [_case_document(result, results) for result in results.values()]


def _case_document(result: Result, results: Results) -> dict[str, object]:
    case, limit = result.case, limit_of(result, results)
    spreads = {name: result.spread(name, limit) for name in METRICS}
    return {
        "name": case.name,
        "bytes_count": case.bytes_count,
        "operations_count": case.operations_count,
        "limit": case.limit,
        "wall_s": _spread_document(result.wall_s),
        "cpu_s": _spread_document(result.cpu_s),
        **{name: _spread_document(spread) for name, spread in spreads.items() if spread},
        "samples": [{"wall_s": round(wall_s, 9), "cpu_s": round(cpu_s, 9)} for wall_s, cpu_s in result.samples],
    }


def _spread_document(spread: Spread) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in spread._asdict().items()}


def _verdict_document(verdict: Verdict) -> dict[str, object]:
    return {
        "promise": verdict.promise,
        "case": verdict.bar.case,
        "metric": verdict.bar.metric,
        "against": verdict.against,
        "at_least": verdict.bar.at_least,
        "at_most": verdict.bar.at_most,
        "measured": _spread_document(verdict.measured),
        "met": verdict.is_met,
    }


def _fact_document(found: FoundFact) -> dict[str, object]:
    return {
        "name": found.fact.name,
        "unit": found.fact.unit,
        "value": float(f"{found.value:.6g}"),
        **({"measured": _spread_document(found.found)} if isinstance(found.found, Spread) else {}),
        "at_least": found.fact.at_least,
        "at_most": found.fact.at_most,
        "met": found.is_met,
    }


def outcome_document(outcome: Outcome) -> dict[str, object]:
    """Return a benchmark as a JSON document."""
    return {
        "name": outcome.name,
        "title": outcome.benchmark.title,
        "about": outcome.benchmark.note,
        "note": QUICK_NOTE if outcome.quick else "",
        "quick": outcome.quick,
        "environment": environment(),
        "peak_memory_mb": round(peak_memory_mb(), 1),
        "cases": results_document(outcome.results),
        "bars": [_verdict_document(verdict) for verdict in outcome.verdicts],
        "facts": [_fact_document(found) for found in outcome.facts],
    }


def document_text(document: dict[str, object]) -> str:
    """Write a document as JSON that people can read in a diff."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_files(folder: Path, name: str, document: dict[str, object], figure: Figure) -> list[Path]:
    """Write NAME.json and NAME.svg; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.json", folder / f"{name}.svg"]
    for path, content in zip(paths, (document_text(document), figure.svg()), strict=True):
        path.write_text(content, encoding="utf-8")
    return paths


def write_outcome(folder: Path, outcome: Outcome) -> list[Path]:
    """Write the document and the figure of a benchmark."""
    return write_files(folder, outcome.name, outcome_document(outcome), figure_of(outcome))
