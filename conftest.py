"""What holds for the whole suite: with `--mine`, what workspace/ holds is tested instead of the reference.

It must hold however pytest is started: `python -m pytest` inside a chapter's folder puts that folder, the
reference, first on the path. So the order is set here, before any other conftest is read, and checked once
all tests are imported.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from minibroker.course import whose
from minibroker.course.house import House, workspace_of
from minibroker.course.workspace import complaints

ROOT = Path(__file__).parent
WORKSPACE = workspace_of(ROOT)
SHOWN = WORKSPACE.relative_to(ROOT) if WORKSPACE.is_relative_to(ROOT) else WORKSPACE


# What takes long is begun first: at the end, no core waits for another that has just begun it.
LONG = ("tests/test_lessons_commands.py", "tests/test_exercises_proof.py", "tests/test_house_")

# A job in the background has Ctrl-C ignored, and its children inherit that. Tests that send it must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start Python hundreds of times. Where bytecode is not kept, each time the whole broker is compiled anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A deadline would fail a test because the machine was busy; under CI the same examples come up every time.
hypothesis.settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--mine", action="store_true", help="test your own code: what workspace/ holds comes first")
    parser.addoption(
        "--rewrite", action="store_true", help="record transcripts anew; read the difference before commit"
    )
    # The conftests of the chapters are read before options are: for them the order must stand now.
    config = pluginmanager.get_plugin("pytestconfig")
    assert isinstance(config, pytest.Config)
    if _will_be_mine(config):
        whose.put_first(WORKSPACE)


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--mine"):
        return
    if not whose.packages(WORKSPACE):
        raise pytest.UsageError(f"--mine: nothing is in {SHOWN}/ yet: run `minibroker course start 1`")
    whose.put_first(WORKSPACE)
    _refuse_strangers()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Thousands of tests live until the end, and every look for garbage, as before each repeat of a benchmark, would
    # walk over all of them.
    gc.collect()
    gc.freeze()
    if session.config.getoption("--mine"):
        _refuse_strangers()


def pytest_report_header(config: pytest.Config) -> list[str]:
    # A copy made from an older repository fails in ways that its learner did not cause, so the header says so first.
    old = complaints(House(ROOT, WORKSPACE)) if config.getoption("--mine") else []
    return [*whose.report(WORKSPACE, str(SHOWN)), *(f"warning: {complaint}" for complaint in old)]


def _will_be_mine(config: pytest.Config) -> bool:
    arguments = [*config.invocation_params.args, *os.environ.get("PYTEST_ADDOPTS", "").split()]
    return "--mine" in arguments or getattr(config.option, "mine", False)


def _refuse_strangers() -> None:
    strangers = whose.strangers(WORKSPACE)
    if strangers:
        raise pytest.UsageError(
            f"--mine: {', '.join(strangers)} was imported from elsewhere, so your code would not be tested"
        )


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with the one recorded in a file; with `--rewrite` it is recorded anew."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--rewrite"):
            path.write_text(text)
        assert text == path.read_text()

    return compare


@pytest.fixture(autouse=True)
def _no_consumer_left_open() -> Iterator[None]:
    """A consumer of librdkafka's that a failing test leaves behind would block the process that collects it."""
    stock = sys.modules.get("clients_stock")
    first = len(stock.CONSUMERS) if stock is not None else 0
    yield
    stock = sys.modules.get("clients_stock")
    if stock is not None:
        stock.close_consumers(first)
