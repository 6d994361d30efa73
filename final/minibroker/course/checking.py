"""Runs the tests that a task lists against the learner's code, and judges the task by their outcomes.

pytest runs in a process of its own, so that it imports the learner's code anew and gets only the options that are set
here. One run serves all tasks. `recorder` records what each test did.
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
from minibroker.course.recorder import is_listed, total_beside
from minibroker.course.repository import Repository

OnProgress = Callable[[int, int], None]

DONE, NOT_YET, FAILING = "done", "not yet", "failing"
TEST_SECONDS_MAX = 60  # a learner's endless loop should not take the suite's full timeout
PROGRESS_SECONDS = 20  # how often a long run reports its progress
_RAN = (0, 1, 5)  # pytest's exit codes for: all passed, some failed, none found

# Matches the exception itself, its repr inside another message, and the line of source in a traceback.
_STRIPPED = re.compile(r"NotImplementedError(?:: |\(\\?['\"])((?:exercise|build) \d+\.B?\d+): ([\w.]+)")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test, or of one file that could not be imported.

    If the learner's code made the import fail, `place` and `source` show the line. `compared` has the kind of
    the values whose comparison failed, the value of the learner's code, and the expected value. A test that `timed_out`
    was the last one that ran.
    """

    test: str
    outcome: str
    line: str
    text: str
    place: str = ""
    source: str = ""
    compared: Sequence[str] = ()
    timed_out: bool = False

    @property
    def stripped(self) -> list[tuple[str, str]]:
        """The label and the function of each task whose missing body the failure mentions."""
        return [] if self.outcome == "passed" else _STRIPPED.findall(self.text)

    @property
    def claim(self) -> str:
        """The test's name as words, which states its claim; empty for a file that could not be imported."""
        name, _, case = self.test.partition("::")[2].partition("[")
        words = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        return f"{words} ({case.removesuffix(']')})" if case else words

    @property
    def because(self) -> str:
        """The claim that does not hold, and the message of the failure."""
        return ": ".join(filter(None, [self.claim, self.line]))


@dataclass(frozen=True)
class Verdict:
    """The state of one task, the reason, and the test that shows it.

    If the learner's code cannot be imported, `place` and `source` show the line. `needs` is the function of another
    task that must be written first, with that task's label.
    """

    task: Task
    state: str
    because: str = ""
    test: str = ""
    place: str = ""
    source: str = ""
    failure: Outcome | None = None
    share: str = ""  # how many of the task's tests fail
    needs: str = ""

    def __str__(self) -> str:
        return f"{self.state}{self.share}: {self.because}" if self.because else self.state


def check(
    repository: Repository, chapter: Chapter, tasks: Sequence[Task], *, unfinished: bool = False
) -> list[Verdict]:
    """Run the tests of these tasks against the learner's code and judge each task.

    Other chapters that are not done are replaced by the reference, unless `unfinished` is set.
    """
    listed = [test for task in tasks for test in node_ids(repository, chapter, task)]
    outcomes = run_tests(repository, listed, mine=True, unfinished=unfinished)
    return [judge(task, node_ids(repository, chapter, task), outcomes) for task in tasks]


def check_the_rest(
    repository: Repository, chapter: Chapter, *, unfinished: bool = False, on_progress: OnProgress
) -> list[Outcome]:
    """Run all tests of the chapter that no task of the track lists, against the learner's code. It can take minutes."""
    listed = [test for task in chapter.tasks for test in node_ids(repository, chapter, task)]
    folder = chapter.folder / "tests"
    return run_tests(repository, listed, mine=True, unfinished=unfinished, instead=folder, on_progress=on_progress)


def node_ids(repository: Repository, chapter: Chapter, task: Task) -> list[str]:
    """Return the task's tests as pytest names them when it runs in the repository's root."""
    return [f"{chapter.folder.relative_to(repository.root).as_posix()}/{test}" for test in task.tests]


def run_tests(
    repository: Repository,
    listed: Sequence[str],
    *,
    mine: bool,
    unfinished: bool = False,
    instead: Path | None = None,
    to_first_failure: bool = False,
    on_progress: OnProgress = lambda _ran, _total: None,
) -> list[Outcome]:
    """Run the listed tests, or, if `instead` is given, all tests in that folder that are not listed.

    `on_progress` is called every PROGRESS_SECONDS, with the number of tests that have run and the number of all tests.
    """
    if importlib.util.find_spec("pytest") is None:
        raise CourseError("pytest is not installed: run `make setup-dev`")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "record.jsonl"
        command = [sys.executable, "-m", "pytest", *_options(repository, report)]
        command += ["--mine"] if mine else []
        command += ["--unfinished"] if unfinished else []
        command += ["--exitfirst"] if to_first_failure else []
        command += [f"--listed={test}" for test in listed]
        command += ["--unlisted", str(instead)] if instead else _limited(listed)
        ended = _run(repository, command, lambda: on_progress(*_progress(report)))
        if ended.returncode not in _RAN:
            raise CourseError(f"pytest could not run (exit {ended.returncode}): {_last_line(ended)}")
        return _read(report)


def _run(
    repository: Repository, command: list[str], on_progress: Callable[[], None]
) -> subprocess.CompletedProcess[str]:
    env = _environment(repository, os.environ)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=repository.root, env=env, text=True, stdout=pipe, stderr=pipe) as process:
        try:
            stdout, stderr = _wait(process, on_progress)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _wait(process: subprocess.Popen[str], on_progress: Callable[[], None]) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            on_progress()


def judge(task: Task, tests: Sequence[str], outcomes: Iterable[Outcome]) -> Verdict:
    """Judge a task. The reason is its own missing code, else another task's missing code, else the first failure."""
    outcomes = list(outcomes)
    concerned = outcomes_of(tests, outcomes)
    failed = [outcome for outcome in concerned if outcome.outcome == "failed"]
    for outcome in failed:
        for label, function in outcome.stripped:
            if label == task.label:
                return Verdict(task, NOT_YET, f"NotImplementedError: {label}: {function}", outcome.test)
    for outcome in failed:
        for label, function in outcome.stripped:
            because, needs = f"needs {label} first: {function}", f"{function} ({label})"
            return Verdict(task, NOT_YET, because, outcome.test, needs=needs)
    if failed:
        first = failed[0]
        count = sum(bool(outcomes_of([test], failed)) for test in tests)
        share = f" ({count} of {len(tests)} tests)" if first.claim and len(tests) > 1 else ""
        return Verdict(task, FAILING, first.because, first.test, first.place, first.source, first, share)
    verdict = _done_if_all_passed(task, tests, concerned)
    if verdict.state != DONE and any(outcome.timed_out for outcome in outcomes):
        return Verdict(task, NOT_YET, "the check stopped at a test that did not end")
    return verdict


def _done_if_all_passed(task: Task, tests: Sequence[str], concerned: Sequence[Outcome]) -> Verdict:
    # A run without failures is not enough: each listed test must have run and passed.
    for test in tests:
        seen = [outcome for outcome in concerned if is_listed(outcome.test, [test])]
        if not any(outcome.outcome == "passed" for outcome in seen):
            because = f"{test} was skipped: {seen[0].line}" if seen else f"{test} did not run"
            return Verdict(task, FAILING, because, test)
    return Verdict(task, DONE)


def outcomes_of(tests: Sequence[str], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of these tests, of their cases, and of their files that could not be imported."""
    return [outcome for outcome in outcomes if _concerns(outcome, tests)]


def _concerns(outcome: Outcome, tests: Sequence[str]) -> bool:
    # A file or folder that could not be collected concerns every test inside it.
    inside = tuple(f"{outcome.test}{separator}" for separator in ("::", "/"))
    return is_listed(outcome.test, tests) or any(test.startswith(inside) for test in tests)


def _options(repository: Repository, report: Path) -> list[str]:
    return [
        f"--rootdir={repository.root}",
        "--quiet",
        "--continue-on-collection-errors",
        "-pno:cacheprovider",
        # The run uses one process, so it does not need xdist, whose import takes a third of the start-up time.
        "-pno:xdist",
        "-pminibroker.course.recorder",
        f"--record={report}",
    ]


def _limited(listed: Sequence[str]) -> list[str]:
    files = dict.fromkeys(test.partition("::")[0] for test in listed)
    return [f"--override-ini=timeout={TEST_SECONDS_MAX}", *files]


def _environment(repository: Repository, environ: Mapping[str, str]) -> dict[str, str]:
    # PYTHONPATH begins with the packages of this repository. Other folders with a `minibroker` package, which an outer
    # run of pytest may have added, are left out.
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in inherited if entry and not (Path(entry) / "minibroker").is_dir()]
    return {
        **{key: value for key, value in environ.items() if key != "PYTEST_ADDOPTS"},
        "PYTHONPATH": os.pathsep.join([*map(str, repository.roots()), *others]),
        "MINIBROKER_WORKSPACE": str(repository.workspace),
    }


def _last_line(ended: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def _progress(report: Path) -> tuple[int, int]:
    total = total_beside(report)
    ran = report.read_bytes().count(b"\n") if report.exists() else 0
    return ran, int(total.read_text()) if total.exists() else 0


def _read(report: Path) -> list[Outcome]:
    if not report.exists():
        return []
    return [Outcome(**json.loads(line)) for line in report.read_text(encoding="utf-8").splitlines()]
