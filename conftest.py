"""Settings of the whole suite. With `--mine`, the learner's packages in workspace/ are tested instead of the reference.

Whose code is tested must not depend on how pytest is started: `python -m pytest` inside a chapter's folder puts that
folder, the reference, first on the path. So the order is set here, before any other conftest is read, and checked once
all tests are imported.

A copy of a chapter that is not done is used only if tests of that chapter are run, or with `--unfinished`. Otherwise
the reference serves, because a later chapter needs all of an earlier one.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from minibroker.course import import_order
from minibroker.course.choosing import Choice, chapters_of, choose
from minibroker.course.errors import CourseError
from minibroker.course.repository import Repository, workspace_of
from minibroker.course.workspace import complaints

ROOT = Path(__file__).parent
WORKSPACE = workspace_of(ROOT)
REPOSITORY = Repository(ROOT, WORKSPACE)
SHOWN = REPOSITORY.show(WORKSPACE)

# Long tests start first, so that at the end no core waits for another that has just started one.
LONG = (
    "tests/test_lessons_commands.py",
    "tests/test_repository_",
    "tests/test_quorum_",
    "tests/test_groups_",
    "tests/test_cluster_",
    "tests/test_exercises_proof.py",
    "tests/test_survival.py",
    "tests/test_transactions_",
    "final/tests/test_cli_",
)

# A background job ignores Ctrl-C, and its children inherit that. Tests that send it need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start Python hundreds of times. Without stored bytecode each start would compile the whole broker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A deadline would fail a test because the machine was busy; under CI the same examples come up every time.
hypothesis.settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--mine", action="store_true", help="test your own code: packages in workspace/ come first")
    parser.addoption(
        "--unfinished", action="store_true", help="with --mine: also use your copies of chapters that are not done"
    )
    parser.addoption(
        "--rewrite", action="store_true", help="record transcripts anew; read the difference before commit"
    )
    # pytest reads the chapters' conftests before it parses options, so the order must be set now.
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    if _is_given("--mine", config):
        # pytest_configure reports the same error as one line.
        with contextlib.suppress(CourseError):
            _use_own_code(config)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--mine"):
        # A learner's code is tested with whole starts. A small clone that tests make has no such module.
        if (ROOT / "tests" / "prefork.py").exists():
            config.add_cleanup(importlib.import_module("prefork").install())
        return
    try:
        choice = _use_own_code(config)
    except CourseError as error:
        raise pytest.UsageError(f"--mine: {error}") from error
    if not choice.mine and not choice.unused:
        raise pytest.UsageError(f"--mine: nothing is in {SHOWN}/ yet: run `minibroker course start 1`")
    if not choice.mine:
        package, reason = next(iter(choice.unused.items()))
        raise pytest.UsageError(
            f"--mine: no test would use your code: minibroker.{package} is the reference, {reason}; "
            "add --unfinished to use your copy as it is"
        )
    _refuse_modules_from_elsewhere(choice)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    # Every worker of xdist imports all tests. In a new clone there is no bytecode yet. So each worker begins with other
    # files, and reads the bytecode that the others have written meanwhile.
    report = yield
    number, workers = _place_among_workers(collector.config)
    if isinstance(collector, pytest.Session | pytest.Dir) and report.passed:
        first = len(report.result) * number // workers
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def _place_among_workers(config: pytest.Config) -> tuple[int, int]:
    """The number of this worker of xdist, from 0, and how many there are; without xdist there is one."""
    given = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return int(given["workerid"].removeprefix("gw")), given["workercount"]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    _number, workers = _place_among_workers(config)
    if workers > 1:
        # All workers must have the tests in one order.
        items.sort(key=lambda item: item.path)
    yield
    # Each worker gets one part of the list, and begins with the first test of its part. An idle worker takes tests from
    # the end of another part.
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    # The tests with a Spark session are in one worker, so that one JVM starts.
    parts[0] += [item for item in items if _uses_spark(item)]
    rest = [item for item in items if not _uses_spark(item) and not item.nodeid.startswith(LONG)]
    for number, group in enumerate(_long_groups(items)):
        parts[1 + number % (workers - 1) if workers > 1 else 0] += group
    for number, part in enumerate(parts, 1):
        missing = max(len(items) * number // workers - len(items) * (number - 1) // workers - len(part), 0)
        part += rest[:missing] if number < workers else rest
        del rest[:missing]
    items[:] = [item for part in parts for item in part]


def _uses_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _long_groups(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The long tests in the order of LONG. The tests of a file stay together if they share brokers."""
    groups: dict[tuple[int, str], list[pytest.Item]] = {}
    for item in items:
        for order, prefix in enumerate(LONG):
            if item.nodeid.startswith(prefix):
                name = item.nodeid if prefix.endswith(("_commands.py", "_proof.py")) else item.nodeid.partition("::")[0]
                groups.setdefault((order, name), []).append(item)
    return (group for _key, group in sorted(groups.items(), key=lambda it: it[0][0]))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Thousands of tests live until the end. Every garbage collection, as before each repeat of a benchmark, would walk
    # over all of them.
    gc.collect()
    gc.freeze()
    if session.config.getoption("--mine"):
        _refuse_modules_from_elsewhere(_choice(session.config))


def pytest_report_header(config: pytest.Config) -> list[str]:
    # A copy made from an older repository fails in ways that its learner did not cause, so the header says so first.
    try:
        choice = _choice(config)
        old = complaints(REPOSITORY) if config.getoption("--mine") else []
    except CourseError as error:
        return [f"warning: {error}"]
    return [*import_order.report(choice, WORKSPACE, SHOWN), *(f"warning: {complaint}" for complaint in old)]


def _is_given(option: str, config: pytest.Config) -> bool:
    arguments = [*config.invocation_params.args, *os.environ.get("PYTEST_ADDOPTS", "").split()]
    return option in arguments or bool(getattr(config.option, option.removeprefix("--"), False))


def _use_own_code(config: pytest.Config) -> Choice:
    choice = _choice(config)
    import_order.put_first(WORKSPACE, before=choice.reference)
    return choice


def _choice(config: pytest.Config) -> Choice:
    return choose(REPOSITORY, _tested_chapters(config), unfinished=_is_given("--unfinished", config))


def _tested_chapters(config: pytest.Config) -> set[int]:
    """Return the chapters whose tests the command line names; without a path, those below the current folder."""
    # xdist gives its workers other arguments than the command line has, but the same options.
    if hasattr(config.option, "tested_chapters"):
        return set(config.option.tested_chapters)
    current = config.invocation_params.dir
    words = [str(word).partition("::")[0] for word in config.invocation_params.args]
    paths = [current / word for word in words if word and not word.startswith("-") and (current / word).exists()]
    config.option.tested_chapters = sorted(chapters_of(REPOSITORY, paths or [current]))
    return set(config.option.tested_chapters)


def _refuse_modules_from_elsewhere(choice: Choice) -> None:
    modules = import_order.imported_from_elsewhere(WORKSPACE, choice.mine)
    if modules:
        raise pytest.UsageError(
            f"--mine: {', '.join(modules)} was imported from elsewhere, so your code would not be tested"
        )


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the one recorded in a file; with `--rewrite`, record it again."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--rewrite"):
            path.write_text(text)
        assert text == path.read_text()

    return compare


@pytest.fixture(autouse=True)
def _no_consumer_left_open() -> Iterator[None]:
    """Closes the librdkafka consumers that a failing test leaves open; they would block their garbage collection."""
    stock = sys.modules.get("clients_stock")
    first = len(stock.CONSUMERS) if stock is not None else 0
    yield
    stock = sys.modules.get("clients_stock")
    if stock is not None:
        stock.close_consumers(first)
