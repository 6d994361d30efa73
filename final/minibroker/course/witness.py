"""A pytest plugin that writes down what each test did, one JSON object a line, for `checking` to read.

It also limits a run to listed tests. Naming them on pytest's command line would do, were it not that one
file which cannot be imported (the learner is in the middle of a line) then keeps the tests of all others
from running.
"""

import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the options that `checking` passes."""
    group = parser.getgroup("course", "the course's own runs")
    group.addoption("--witness", metavar="FILE", help="append what each test did to this file")
    group.addoption("--listed", metavar="ID", action="append", default=[], help="run this test; may be repeated")
    group.addoption("--unlisted", action="store_true", help="run all tests but the listed ones")


def pytest_configure(config: "pytest.Config") -> None:
    """Start writing, in the one process that sees all results."""
    path = config.getoption("--witness")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Witness(Path(path)))
    _leave_out_the_search_for_the_smallest_example()


def pytest_collection_modifyitems(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    """Keep the listed tests, or with --unlisted all others."""
    listed, unlisted = config.getoption("--listed"), config.getoption("--unlisted")
    if listed:
        chosen = [item for item in items if is_listed(item.nodeid, listed) != unlisted]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def is_listed(node_id: str, listed: Sequence[str]) -> bool:
    """Tell whether a test is one of the listed, or a case of one."""
    return any(node_id == test or node_id.startswith((f"{test}[", f"{test}::")) for test in listed)


def _leave_out_the_search_for_the_smallest_example() -> None:
    # That a test fails is all that is asked here; Hypothesis takes seconds to find out how simply it can.
    if importlib.util.find_spec("hypothesis") is None:
        return
    hypothesis = importlib.import_module("hypothesis")
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("course", phases=phases, database=None, deadline=None)
    hypothesis.settings.load_profile("course")


def total_beside(report: Path) -> Path:
    """Return the file in which it says how many tests there are to run."""
    return report.with_suffix(".total")


class Witness:
    """Writes one line per outcome; a test that fails twice (in its call and its teardown) has two."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_collection_finish(self, session: "pytest.Session") -> None:
        """Write down how many tests there are, as a whole or not at all: somebody may be looking."""
        beside = self.path.with_suffix(".new")
        beside.write_text(str(len(session.items)))
        beside.replace(total_beside(self.path))

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Write down a test's outcome."""
        if report.when == "call" or not report.passed:
            self._write(report)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        """Write down a file that could not be read."""
        if report.failed:
            self._write(report)

    def _write(self, report: "pytest.TestReport | pytest.CollectReport") -> None:
        captured = [f"{title}\n{content}" for title, content in report.sections]
        outcome = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "line": "" if report.passed else _first_line(report),
            "text": "\n".join([report.longreprtext, *captured]),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def _message_line(lines: Sequence[str]) -> str:
    # `pytest.raises(match=…)` writes what it expected and what it got on two lines of their own.
    count = 3 if lines[0].endswith("Regex pattern did not match.") else 1
    # What an assertion says is said to people; that it was one, they can tell.
    return " ".join(line.strip() for line in lines[:count]).removeprefix("AssertionError: ")


def _first_line(report: "pytest.TestReport | pytest.CollectReport") -> str:
    """Return the line that tells most: the message of the exception."""
    if isinstance(report.longrepr, tuple):  # A skip: file, row, reason.
        return report.longrepr[2].strip()
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash:
        return _message_line(str(crash.message).strip().split("\n"))
    # What went wrong while a file was imported stands behind an E, the exception itself last.
    lines = [line for line in report.longreprtext.split("\n") if line.strip()]
    marked = [line[1:] for line in lines if line.startswith("E ")]
    return (marked or lines or ["?"])[-1].strip()
