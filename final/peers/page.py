"""Prints the table of all rows of `make bench-peers`, made from the documents that the benchmarks have written.

    python page.py FOLDER [PAGE]

With PAGE, the table replaces the one on that page, between two comments. A row that was not run again keeps the figures
of its last run.
"""

import json
import sys
from pathlib import Path
from typing import Any

from minibroker.bench.report import Table
from minibroker.bench.units import number_text, tick_text

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
ORDER = ("produce", "latency", "consume", "three", "sustained", "recovery", "connections", "partition-count")
COLUMNS = ("row", "figure", "measured", "quartiles", "bar", "")


def documents(folder: Path) -> list[dict[str, Any]]:
    """The documents of all rows, in the order of the table."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    first = {name: number for number, name in enumerate(ORDER)}
    return sorted(
        found, key=lambda it: min((n for name, n in first.items() if it["name"].startswith(name)), default=99)
    )


def rows_of(document: dict[str, Any]) -> list[list[str]]:
    """The bars of one document: the figure, what was measured, the bound, and whether it is met."""
    bars = [
        [document["name"], it["promise"].partition(" ≥ ")[0].partition(" ≤ ")[0], *_measured(it["measured"], it)]
        for it in document["bars"]
    ]
    facts = [
        [document["name"], f"{it['name']}: {it['unit']}", *_measured(it.get("measured", it["value"]), it)]
        for it in document["facts"]
        if it["at_least"] is not None or it["at_most"] is not None
    ]
    return bars + facts


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


def markdown(rows: list[list[str]]) -> str:
    """The table as a page has it."""
    lines = [f"| {' | '.join(cells)} |" for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    return "\n".join(lines)


def with_table(page: str, rows: list[list[str]]) -> str:
    """The page with this table instead of its own."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}"


def main(folder: Path, page: Path | None = None) -> None:
    """Print the table, and write it into the page."""
    rows = table_of(folder)
    print(Table([*COLUMNS[:-1], "verdict"], rows).text() if rows else "no row was run")
    if page is not None:
        page.write_text(with_table(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
