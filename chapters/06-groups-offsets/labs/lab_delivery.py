"""The lab `delivery` of chapter 06: what each way to commit loses and repeats when the worker is killed.

The programs are the examples of this chapter, written for confluent-kafka. Each runs as a user would run it, against
one broker, and kills its own worker in the worst place. The lab reads the counts that they print.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minibroker.bench import BarChart, BarRow, Context, Findings, Lab, Table, children, scaled
from minibroker.bench.context import quick_note

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = ("at_most_once", "at_least_once", "auto_commit", "idempotent_consumer", "offsets_in_sqlite", "exactly_once")
LOST, DUPLICATED = "lost", "duplicated"
_RAN_S_MAX = 120
_LINE = re.compile(r"^(?P<name>.+): (?P<orders>\d+) orders, lost (?P<lost>\d+), duplicated (?P<duplicated>\d+)$", re.M)


class Counted(NamedTuple):
    """What one program lost and did twice, over all its crashes."""

    name: str
    orders: int
    lost: int
    duplicated: int


def run_delivery(context: Context) -> Findings:
    """Start a broker, and run every program against it."""
    # The first member of a group need not wait for others here: there is one worker.
    broker = children.serve(context, "group.initial.rebalance.delay.ms=0")
    found: list[Counted] = []
    for number, name in enumerate(PROGRAMS, start=1):
        context.progress(number, len(PROGRAMS), name)
        found += run_program(name, broker.address, scaled(full=100, quick=10))
    return Findings(table(found), reading(found), figure(found), {})


def run_program(name: str, address: str, orders: int) -> list[Counted]:
    """Run an example, and return its counts."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), address, "--orders", str(orders)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_RAN_S_MAX, check=False)
    found = counted(ran.stdout)
    if ran.returncode or not found:
        raise ChildProcessError(f"{name}.py ended with {ran.returncode}; its stderr:\n{ran.stderr}")
    return found


def counted(printed: str) -> list[Counted]:
    """Read the lines that an example prints. A program that is killed after several steps has a line for each."""
    found: dict[str, list[list[int]]] = {}
    for it in _LINE.finditer(printed):
        name, _killed, _step = it["name"].partition(", killed ")
        found.setdefault(name, []).append([*map(int, it.group("orders", LOST, DUPLICATED))])
    return [Counted(name, *map(sum, zip(*lines, strict=True))) for name, lines in found.items()]


def table(found: Sequence[Counted]) -> Table:
    """The table of all programs."""
    rows = [[each.name, f"{each.orders:,}", f"{each.lost:,}", f"{each.duplicated:,}"] for each in found]
    return Table(["program", "orders", LOST, DUPLICATED], rows)


def figure(found: Sequence[Counted]) -> BarChart:
    """Draw the lost and the duplicated orders of each program."""
    rows = [
        BarRow(each.name, count, series=series, group=f"{series} orders")
        for series in (LOST, DUPLICATED)
        for each in found
        for count in [each.lost if series == LOST else each.duplicated]
    ]
    return BarChart("The worker is killed once, in the worst place", "orders", rows, note=quick_note())


def reading(found: Sequence[Counted]) -> list[str]:
    """Explain the figures."""
    by = {each.name: each for each in found}
    early, late = by["auto-commit, crash during long work"], by["auto-commit, crash before the timer"]
    return [
        f"A commit before the work loses the order in hand ({by['at most once'].lost:,}); a commit after it does that "
        f"order again ({by['at least once'].duplicated:,}). One order is the price because each order is committed; "
        f"with one commit for each hundred orders it would be up to a hundred.",
        f"Auto-commit does both. The timer commits the position of `poll`, not the end of the work: a crash before the "
        f"timer repeated {late.duplicated:,} orders, and a crash during an order that took longer than the timer lost "
        f"{early.lost:,}.",
        f"Two programs with a database lost and repeated nothing. The idempotent consumer read an order twice and "
        f"noticed it ({by['idempotent consumer'].duplicated:,} done twice). The other one keeps its position in the "
        f"database of its results, in one transaction ({by['offsets in SQLite'].duplicated:,}); its group has no "
        f"committed offset at all.",
        f"The last three copy orders to another topic, five at a time. Without a transaction a crash loses five "
        f"({by['commit, then copy'].lost:,}) or copies five again ({by['copy, then commit'].duplicated:,}). In a "
        f"transaction the records and the group's position count together: killed after each of its steps, the copy "
        f"lost {by['exactly once'].lost:,} of {by['exactly once'].orders:,} orders, and repeated "
        f"{by['exactly once'].duplicated:,}.",
    ]


LABS = [Lab("delivery", "06", "what each way to commit loses and repeats when the worker is killed", run_delivery)]
