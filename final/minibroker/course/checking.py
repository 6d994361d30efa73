"""Running the tests that a task lists, against the learner's code, and judging the task by them.

pytest runs in a process of its own, so that it imports the learner's code fresh and its options are ours
alone; one run serves all tasks. `witness` writes down what each test did.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minibroker.course.errors import CourseError
from minibroker.course.exercises import Chapter, Task
from minibroker.course.house import House
from minibroker.course.witness import is_listed, total_beside

OnSign = Callable[[int, int], None]

DONE, NOT_YET, FAILING = "done", "not yet", "failing"
TEST_SECONDS_MAX = 60  # a learner's endless loop should not take the suite's full timeout
SIGN_SECONDS = 20  # how often a long run gives a sign of life
_RAN = (0, 1, 5)  # pytest's exit codes for: all passed, some failed, none found

# As the exception itself, as its repr inside another message, or as the line of source in a traceback.
_STRIPPED = re.compile(r"NotImplementedError(?:: |\(\\?['\"])((?:exercise|build) \d+\.B?\d+): ([\w.]+)")


@dataclass(frozen=True)
class Outcome:
    """What one test did, or one file that could not be collected."""

    test: str
    outcome: str
    line: str
    text: str

    @property
    def stripped(self) -> list[tuple[str, str]]:
        """The tasks (label and function) whose missing body shows in the failure."""
        return [] if self.outcome == "passed" else _STRIPPED.findall(self.text)

    @property
    def claim(self) -> str:
        """What the test claims: its name, as words; nothing for a file that could not be collected."""
        name, _, case = self.test.partition("::")[2].partition("[")
        words = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        return f"{words} ({case.removesuffix(']')})" if case else words

    @property
    def because(self) -> str:
        """Which claim does not hold, and how that shows."""
        return ": ".join(filter(None, [self.claim, self.line]))


@dataclass(frozen=True)
class Verdict:
    """How far one task is, why, and the test that shows it."""

    task: Task
    state: str
    because: str = ""
    test: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.because}" if self.because else self.state


def check(house: House, chapter: Chapter, tasks: Sequence[Task]) -> list[Verdict]:
    """Run the tests of these tasks against the learner's code and judge each task."""
    listed = [test for task in tasks for test in node_ids(house, chapter, task)]
    outcomes = run_tests(house, listed, mine=True)
    return [judge(task, node_ids(house, chapter, task), outcomes) for task in tasks]


def check_the_rest(house: House, chapter: Chapter, *, on_sign: OnSign) -> list[Outcome]:
    """Run all tests of the chapter that no task of the track lists, against the learner's code. It can take minutes."""
    listed = [test for task in chapter.tasks for test in node_ids(house, chapter, task)]
    return run_tests(house, listed, mine=True, instead=chapter.folder / "tests", on_sign=on_sign)


def node_ids(house: House, chapter: Chapter, task: Task) -> list[str]:
    """Return the task's tests as pytest names them when it runs in the repository's root."""
    return [f"{chapter.folder.relative_to(house.root).as_posix()}/{test}" for test in task.tests]


def run_tests(
    house: House,
    listed: Sequence[str],
    *,
    mine: bool,
    instead: Path | None = None,
    to_first_failure: bool = False,
    on_sign: OnSign = lambda _ran, _total: None,
) -> list[Outcome]:
    """Run the listed tests, or those in the folder `instead` that are not listed; return what each did.

    `on_sign` is called now and then, with how many have run so far, and of how many.
    """
    if importlib.util.find_spec("pytest") is None:
        raise CourseError("pytest is not installed: run `make setup-dev`")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "witness.jsonl"
        command = [sys.executable, "-m", "pytest", *_options(house, report)]
        command += ["--mine"] if mine else []
        command += ["--exitfirst"] if to_first_failure else []
        command += [f"--listed={test}" for test in listed]
        command += ["--unlisted", str(instead)] if instead else _limited(listed)
        ended = _run(house, command, lambda: on_sign(*_how_far(report)))
        if ended.returncode not in _RAN:
            raise CourseError(f"pytest could not run (exit {ended.returncode}): {_last_words(ended)}")
        return _read(report)


def _run(house: House, command: list[str], on_sign: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    env = _environment(house, os.environ)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=house.root, env=env, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            said, complained = _listen(process, on_sign)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, said, complained)


def _listen(process: subprocess.Popen[str], on_sign: Callable[[], None]) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=SIGN_SECONDS)
        except subprocess.TimeoutExpired:
            on_sign()


def judge(task: Task, tests: Sequence[str], outcomes: Iterable[Outcome]) -> Verdict:
    """Say how far a task is: its own code missing counts before all else, then the first failure."""
    concerned = outcomes_of(tests, outcomes)
    failed = [outcome for outcome in concerned if outcome.outcome == "failed"]
    for outcome in failed:
        for label, function in outcome.stripped:
            if label == task.label:
                return Verdict(task, NOT_YET, f"NotImplementedError: {label}: {function}", outcome.test)
    for outcome in failed:
        for label, function in outcome.stripped:
            return Verdict(task, NOT_YET, f"needs {label} first: {function}", outcome.test)
    if failed:
        return Verdict(task, FAILING, failed[0].because, failed[0].test)
    return _unless_unseen(task, tests, concerned)


def _unless_unseen(task: Task, tests: Sequence[str], concerned: Sequence[Outcome]) -> Verdict:
    # No failure is not yet a success: each listed test must have been seen to pass.
    for test in tests:
        seen = [outcome for outcome in concerned if is_listed(outcome.test, [test])]
        if not any(outcome.outcome == "passed" for outcome in seen):
            because = f"{test} was skipped: {seen[0].line}" if seen else f"{test} did not run"
            return Verdict(task, FAILING, because, test)
    return Verdict(task, DONE)


def outcomes_of(tests: Sequence[str], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return what these tests did: their cases, and the files that should hold them but could not be read."""
    return [outcome for outcome in outcomes if _concerns(outcome, tests)]


def _concerns(outcome: Outcome, tests: Sequence[str]) -> bool:
    # A file or folder that could not be collected concerns every test inside it.
    inside = tuple(f"{outcome.test}{separator}" for separator in ("::", "/"))
    return is_listed(outcome.test, tests) or any(test.startswith(inside) for test in tests)


def _options(house: House, report: Path) -> list[str]:
    return [
        f"--rootdir={house.root}",
        "--quiet",
        "--continue-on-collection-errors",
        "-pno:cacheprovider",
        "-pminibroker.course.witness",
        f"--witness={report}",
    ]


def _limited(listed: Sequence[str]) -> list[str]:
    files = dict.fromkeys(test.partition("::")[0] for test in listed)
    return [f"--override-ini=timeout={TEST_SECONDS_MAX}", *files]


def _environment(house: House, environ: Mapping[str, str]) -> dict[str, str]:
    # The packages of this repository, and none that an outer run of pytest put before them.
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in inherited if entry and not (Path(entry) / "minibroker").is_dir()]
    return {
        **{key: value for key, value in environ.items() if key != "PYTEST_ADDOPTS"},
        "PYTHONPATH": os.pathsep.join([*map(str, house.roots()), *others]),
        "MINIBROKER_WORKSPACE": str(house.workspace),
    }


def _last_words(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def _how_far(report: Path) -> tuple[int, int]:
    total = total_beside(report)
    ran = report.read_bytes().count(b"\n") if report.exists() else 0
    return ran, int(total.read_text()) if total.exists() else 0


def _read(report: Path) -> list[Outcome]:
    if not report.exists():
        return []
    return [Outcome(**json.loads(line)) for line in report.read_text(encoding="utf-8").splitlines()]
