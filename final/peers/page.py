"""Prints the table of all rows of `make bench-peers`, made from the documents that the benchmarks have written.

    python page.py FOLDER [PAGE …]

The figures on each PAGE are replaced, between comments: the whole table (`table`), the figures of every row (`rows`),
or a few figures beside Kafka's (`summary`), whichever the page has. A row that was not run again keeps the figures of
its last run.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minibroker.bench import kafka
from minibroker.bench.measure import METRICS
from minibroker.bench.plot import OURS
from minibroker.bench.report import Table
from minibroker.bench.units import number_text, tick_text

REGION = "<!-- {}: begin -->", "<!-- {}: end -->"
ORDER = ("produce", "latency", "consume", "three", "sustained", "recovery", "connections", "partition")
COLUMNS = ("row", "figure", "measured", "quartiles", "bar", "verdict")
SHOWN = ("mb_per_s", "ops_per_s", "cpu_s_per_gb", "cpu_us_per_op")
SUMMARY = (
    ("produce records of 1 KB, acks=1", "produce-1kb", "{}", ("mb_per_s", "cpu_s_per_gb")),
    ("consume them, from the page cache", "consume", "warm, {}", ("mb_per_s", "cpu_s_per_gb")),
    ("one record of 100 B at a time, median", "latency", "p50, {}, 1 in flight", ()),
    ("three nodes, acks=all", "three-flood", "acks=all, {}", ("mb_per_s", "cpu_s_per_gb")),
    ("three nodes, idempotent producer", "three-flood", "idempotent, {}", ("mb_per_s", "cpu_s_per_gb")),
    ("three nodes, one record at a time, median", "three-one", "p50, {}", ()),
    ("three nodes, 20,000 records of 1 KB a second, p99", "three-steady", "p99, {}", ()),
    ("memory after a load on one node", "produce-1kb", "resident memory, {}", ()),
)
"""The rows of the short table: what was done, the document, the name of a case or a fact, and the metrics of a case."""


def documents(folder: Path) -> list[dict[str, Any]]:
    """The documents of all rows, in the order of the table."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    first = {name: number for number, name in enumerate(ORDER)}
    return sorted(
        found, key=lambda it: min((n for name, n in first.items() if it["name"].startswith(name)), default=99)
    )


def rows_of(document: dict[str, Any]) -> list[list[str]]:
    """The bars of one document: the figure, what was measured, the bound, and whether it is met."""
    bars = [[document["name"], figure_of(it["promise"]), *_measured(it["measured"], it)] for it in document["bars"]]
    facts = [
        [document["name"], f"{it['name']}: {it['unit']}", *_measured(it.get("measured", it["value"]), it)]
        for it in document["facts"]
        if it["at_least"] is not None or it["at_most"] is not None
    ]
    return bars + facts


def figure_of(promise: str) -> str:
    """The figure of a promise, without its bound."""
    return re.sub(r" [≥≤] [\d.,]+", "", promise)


def _measured(measured: Any, bounded: dict[str, Any]) -> list[str]:
    is_spread = isinstance(measured, dict)
    value = measured["median"] if is_spread else measured
    quartiles = f"{number_text(measured['low'])}–{number_text(measured['high'])}" if is_spread else ""
    least, most = bounded["at_least"], bounded["at_most"]
    bound = f"≥ {tick_text(least)}" if least is not None else f"≤ {tick_text(most)}"
    return [number_text(value), quartiles, bound, "met" if bounded["met"] else "**missed**"]


def table_of(folder: Path) -> list[list[str]]:
    """All rows."""
    return [row for document in documents(folder) for row in rows_of(document)]


# The page -------------------------------------------------------------------------------------------------------------


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as a page has it."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return "\n".join(lines)


def section_of(document: dict[str, Any], folder: str) -> str:
    """One row: its figure, what each broker did, and the settings."""
    labels = [METRICS[name].label for name in SHOWN]
    cases = [
        [it["name"], *(number_text(it[name]["median"]) if name in it else "" for name in SHOWN)]
        for it in document["cases"]
    ]
    facts = [
        [it["name"], *_measured(it.get("measured", it["value"]), it | {"at_most": 0})[:2], it["unit"]]
        for it in document["facts"]
        if it["at_least"] is None and it["at_most"] is None
    ]
    parts = [
        f"### {document['name']}",
        f"![{document['title']}]({folder}/{document['name']}.svg)",
        markdown(["", *labels], cases) if cases else "",
        markdown(["", "median", "quartiles", "unit"], facts) if facts else "",
        document["about"],
    ]
    return "\n\n".join(filter(None, parts))


def summary_of(folder: Path) -> str:
    """A few figures of ours beside Kafka's."""
    found = {it["name"]: it for it in documents(folder)}
    rows = [
        [label, *(_figure(found[name], pattern.format(broker), metrics) for broker in (OURS, kafka.NAME))]
        for label, name, pattern, metrics in SUMMARY
    ]
    return markdown(["", OURS, kafka.NAME], rows)


def _figure(document: dict[str, Any], name: str, metrics: Sequence[str]) -> str:
    of_case = next((it for it in document["cases"] if metrics and it["name"] == name), None)
    if of_case is not None:
        return ", ".join(f"{number_text(of_case[it]['median'])} {METRICS[it].label}" for it in metrics)
    fact = next(it for it in document["facts"] if it["name"] == name)
    return f"{number_text(fact['value'])} {fact['unit']}"


def with_region(page: str, name: str, content: Callable[[], str]) -> str:
    """The page with this content between two comments, if it has them."""
    begin, end = (it.format(name) for it in REGION)
    before, found, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{content()}\n{end}{after}" if found else page


def with_figures(page: str, folder: Path) -> str:
    """The page with the figures of a folder."""
    sections = [section_of(document, folder.name) for document in documents(folder)]
    page = with_region(page, "table", lambda: markdown(COLUMNS, table_of(folder)))
    page = with_region(page, "rows", lambda: "\n\n".join(["", *sections, ""]))
    return with_region(page, "summary", lambda: summary_of(folder))


def main(folder: Path, *pages: Path) -> None:
    """Print the table, and write it into the pages."""
    rows = table_of(folder)
    print(Table(COLUMNS, rows).text() if rows else "no row was run")
    for page in pages:
        page.write_text(with_figures(page.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
