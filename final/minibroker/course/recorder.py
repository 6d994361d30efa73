"""A pytest plugin that records what each test did, one JSON object per line, for `checking` to read.

The plugin also limits a run to listed tests. If the tests were named on pytest's command line instead, one file that
cannot be imported, such as one with an unfinished line, would keep the tests of all other files from running.
"""

import importlib
import importlib.util
import json
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from minibroker.course.repository import workspace_of

if TYPE_CHECKING:
    import pytest

BYTES, TEXT = "bytes", "text"  # the kinds of values whose difference is explained
_BYTES = (bytes, bytearray, memoryview)


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Add the options that `checking` passes."""
    group = parser.getgroup("course", "the course's own runs")
    group.addoption("--record", metavar="FILE", help="append what each test did to this file")
    group.addoption("--listed", metavar="ID", action="append", default=[], help="run this test; may be repeated")
    group.addoption("--unlisted", action="store_true", help="run all tests except the listed ones")


def pytest_configure(config: "pytest.Config") -> None:
    """Start recording, but not in the worker processes of pytest-xdist, which see only a part of the results."""
    path = config.getoption("--record")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path), config.rootpath))
    _skip_the_search_for_the_smallest_example()


def pytest_collection_modifyitems(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    """Keep the listed tests, or with --unlisted all others."""
    listed, unlisted = config.getoption("--listed"), config.getoption("--unlisted")
    if listed:
        chosen = [item for item in items if is_listed(item.nodeid, listed) != unlisted]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def is_listed(node_id: str, listed: Sequence[str]) -> bool:
    """Tell whether a test is one of the listed tests, or a case of one of them."""
    return any(node_id == test or node_id.startswith((f"{test}[", f"{test}::")) for test in listed)


def _skip_the_search_for_the_smallest_example() -> None:
    # Hypothesis takes seconds to find the smallest failing example. A check only asks whether a test fails, so skip
    # that search.
    if importlib.util.find_spec("hypothesis") is None:
        return
    hypothesis = importlib.import_module("hypothesis")
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("course", phases=phases, database=None, deadline=None)
    hypothesis.settings.load_profile("course")


def total_beside(report: Path) -> Path:
    """Return the path of the file that holds the number of tests to run."""
    return report.with_suffix(".total")


class Recorder:
    """Writes one line per outcome; a test that fails twice (in its call and its teardown) has two lines."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.root = root
        self.import_failures: dict[str, dict[str, str]] = {}
        self.compared: list[str] = []
        self.timed_out = False

    def pytest_collection_finish(self, session: "pytest.Session") -> None:
        """Record the number of tests. The file appears in one step, because `checking` may read it at any time."""
        beside = self.path.with_suffix(".new")
        beside.write_text(str(len(session.items)))
        beside.replace(total_beside(self.path))

    def pytest_timeout_set_timer(self, item: "pytest.Item", settings: Any) -> bool:
        """Stop the run at the first test that takes too long: the next ones may meet the same endless loop.

        The error of pytest-timeout does not stop it: Hypothesis catches that error and tries its example once more.
        """

        def stop(_signal: int, frame: FrameType | None) -> None:
            self.timed_out = True
            self._write_timeout(item.nodeid, settings.timeout, frame)
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        item.cancel_timeout = lambda: signal.setitimer(signal.ITIMER_REAL, 0)  # type: ignore[attr-defined]
        return True

    def pytest_sessionfinish(self, session: "pytest.Session") -> None:
        """Let a run that a timeout has stopped count as failed, and not as interrupted by a person."""
        if self.timed_out:
            session.exitstatus = 1

    def pytest_runtest_logstart(self) -> None:
        """Forget the comparison of the test before."""
        self.compared = []

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        """Keep both sides of a comparison that failed. By custom, the left side is what the tested code returned."""
        if op == "==" and isinstance(left, str) and isinstance(right, str) and "\n" in right:
            self.compared = [TEXT, left, right]
        elif op == "==" and isinstance(left, _BYTES) and isinstance(right, _BYTES):
            self.compared = [BYTES, bytes(left).hex(), bytes(right).hex()]

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        """Record a test's outcome."""
        if report.when == "call" or not report.passed:
            self._write(report)

    def pytest_exception_interact(
        self, call: "pytest.CallInfo[object]", report: "pytest.TestReport | pytest.CollectReport"
    ) -> None:
        """Keep the place of an error that stopped an import; pytest calls this before it reports the file."""
        if report.when == "collect" and call.excinfo:
            error = call.excinfo.value
            # pytest wraps a SyntaxError and an ImportError in an error of its own.
            self.import_failures[report.nodeid] = _describe(error.__cause__ or error, self.root)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        """Record a file that could not be imported."""
        if report.failed:
            self._write(report)

    def _write(self, report: "pytest.TestReport | pytest.CollectReport") -> None:
        captured = [f"{title}\n{content}" for title, content in report.sections]
        outcome: dict[str, object] = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "line": "" if report.passed else _first_line(report),
            "text": "\n".join([report.longreprtext, *captured]),
            "compared": self.compared if report.failed else [],
            **self.import_failures.get(report.nodeid, {}),
        }
        self._write_line(outcome)

    def _write_timeout(self, test: str, seconds: float, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame)
        blamed = _frame_to_blame(stack, self.root)
        place = f"{_shorten(blamed.filename, self.root)}, line {blamed.lineno}"
        line = f"it had not ended after {seconds:g} s; it was in {place}: `{blamed.line}`"
        text = "".join(traceback.format_list(stack))
        self._write_line({"test": test, "outcome": "failed", "line": line, "text": text, "timed_out": True})

    def _write_line(self, outcome: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def _describe(error: BaseException, root: Path) -> dict[str, str]:
    """Return the error as one line with file and row; for the learner's code, also the place and the source line."""
    name = type(error).__name__
    if isinstance(error, SyntaxError):
        message, file, row, source = error.msg, error.filename or "?", error.lineno, error.text or ""
    else:
        frame = _frame_to_blame(traceback.extract_tb(error.__traceback__), root)
        message, file, row, source = str(error), frame.filename, frame.lineno, frame.line or ""
    place = f"{_shorten(file, root)}, line {row}"
    described = {"line": f"{name} in {place}: {_shorten(message, root)}"}
    # If a test cannot import a name, the place is a line of the test, which the learner need not correct.
    is_learners = Path(file).is_relative_to(workspace_of(root))
    return described | ({"place": place, "source": source.strip()} if is_learners else {})


def _frame_to_blame(frames: Sequence[traceback.FrameSummary], root: Path) -> traceback.FrameSummary:
    """Return the innermost frame in the learner's code, or else in the repository, or else the innermost one."""
    for folder in (workspace_of(root), root):
        inside = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        if inside:
            return inside[-1]
    return frames[-1]


def _shorten(text: str, root: Path) -> str:
    return text.replace(f"{root}/", "")


def _message_line(lines: Sequence[str]) -> str:
    # `pytest.raises(match=…)` writes the expected and the actual message on two further lines.
    count = 3 if lines[0].endswith("Regex pattern did not match.") else 1
    # The message of an assertion is clear without the exception's name.
    return " ".join(line.strip() for line in lines[:count]).removeprefix("AssertionError: ")


def _first_line(report: "pytest.TestReport | pytest.CollectReport") -> str:
    """Return the most useful line: the message of the exception."""
    if isinstance(report.longrepr, tuple):  # A skipped test has a tuple of file, row and reason.
        return report.longrepr[2].strip()
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash:
        return _message_line(str(crash.message).strip().split("\n"))
    # The lines of an error during an import are marked with an E; the last of them is the exception itself.
    lines = [line for line in report.longreprtext.split("\n") if line.strip()]
    marked = [line[1:] for line in lines if line.startswith("E ")]
    return (marked or lines or ["?"])[-1].strip()
