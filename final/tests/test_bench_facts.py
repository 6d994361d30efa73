"""Claims about facts: figures of a benchmark that are not timed."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from cases import case

from minibroker.bench import BarChart, BarRow, Benchmark, Case, Fact, Spread, peak_memory_mb
from minibroker.bench.benchmark import Found, Outcome, run
from minibroker.bench.context import open_context
from minibroker.bench.report import outcome_text, write_outcome

CASE = Case("work", lambda: None, operations_count=1)


@pytest.fixture(autouse=True)
def _full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBROKER_QUICK", raising=False)


def outcome_of(tmp_path: Path, *facts: Fact) -> Outcome:
    with open_context(directory=tmp_path, repeats=1) as context:
        return run(Found("memory", lambda _context: Benchmark("Memory", [CASE], facts=facts)), context)


def test_a_fact_is_checked_against_its_bound(tmp_path: Path) -> None:
    for value, bounds, is_met in [
        (100, {"at_most": 100}, True),
        (101, {"at_most": 100}, False),
        (100, {"at_least": 100}, True),
        (99, {"at_least": 100}, False),
        (10**9, {}, True),
    ]:
        with case(value, bounds, is_met):
            outcome = outcome_of(tmp_path, Fact("resident memory", "MB", partial(float, value), **bounds))
            assert outcome.is_missed != is_met
            assert ("MISSED" in outcome_text(outcome)) != is_met


def test_a_quick_run_enforces_no_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    assert not outcome_of(tmp_path, Fact("resident memory", "MB", lambda: 101, at_most=100)).is_missed


def test_facts_are_printed_and_kept(tmp_path: Path) -> None:
    facts = Fact("resident memory", "MB", lambda: 41.5, at_most=100), Fact("segments", "files", lambda: 8)
    outcome = outcome_of(tmp_path, *facts)
    text = outcome_text(outcome)
    assert "resident memory: MB ≤ 100" in text
    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("resident", "segments"))] == [
        "met",
        "8.00",
    ]
    written = json.loads(write_outcome(tmp_path, outcome)[0].read_text())["facts"]
    assert [(fact["name"], fact["value"], fact["at_most"], fact["met"]) for fact in written] == [
        ("resident memory", 41.5, 100, True),
        ("segments", 8, None, True),
    ]


def test_a_fact_of_many_rounds_has_quartiles_and_its_median_decides(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, Fact("p99", "ms", lambda: Spread(9, 8, 12), at_most=10))
    assert not outcome.is_missed
    assert "8.00–12.0" in outcome_text(outcome)
    (written,) = json.loads(write_outcome(tmp_path, outcome)[0].read_text())["facts"]
    assert (written["value"], written["measured"]) == (9, {"median": 9, "low": 8, "high": 12})


def test_a_benchmark_may_have_facts_only(tmp_path: Path) -> None:
    chart = BarChart("Pause", "ms", [BarRow("pause", 5)])
    only = Benchmark("Pause", facts=[Fact("pause", "ms", lambda: 5)], figure=lambda _results: chart)
    with open_context(directory=tmp_path, repeats=1) as context:
        outcome = run(Found("pause", lambda _context: only), context)
    assert re.search(r"^pause: ms +5.00$", outcome_text(outcome), re.MULTILINE)
    assert write_outcome(tmp_path, outcome)[1].read_text() == chart.svg()


def test_long_cases_are_repeated_less_often_and_may_bring_their_own_time(tmp_path: Path) -> None:
    timed = Case("work", lambda: None, operations_count=1, wall_s=lambda: 2.0)
    with open_context(directory=tmp_path, repeats=5) as context:
        found = Found("long", lambda _context: Benchmark("Long", [timed], repeats_max=2))
        assert [it.wall_s for it in run(found, context).results["work"].samples] == [2.0, 2.0]


def test_a_fact_is_found_once_and_after_the_cases_have_run(tmp_path: Path) -> None:
    order: list[str] = []

    def find() -> float:
        order.append("fact")
        return 1.0

    case, fact = Case("work", lambda: order.append("case"), operations_count=1), Fact("found", "", find)
    with open_context(directory=tmp_path, repeats=2) as context:
        run(Found("order", lambda _context: Benchmark("Order", [case], facts=[fact])), context)
    assert order == ["case", "case", "case", "fact"]


def test_peak_memory_does_not_fall_when_memory_is_freed() -> None:
    before = peak_memory_mb()
    held = bytearray(int(before + 50) * 10**6)
    held[::4096] = bytes(len(held[::4096]))
    during = peak_memory_mb()
    del held
    assert during >= before + 50
    assert peak_memory_mb() > during - 1  # the kernel counts pages a few at a time
