"""The fixtures of the tests with stock clients: name them with `pytest_plugins = ["clients_fixtures"]`.

Each module has a broker of its own. One for the whole run would collect the topics of all modules, and its upkeep would
look at them all, several times a second, until the end. Import nothing from here: pytest must be the first to import
it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import BOOTSTRAP, QUICK_UPKEEP, SERVE, Broker, ForeignBroker, StartBroker, start_broker

# The first member of a group does not wait three seconds for others. Members of the new protocol hear of a change
# within a second, and one that could not leave is gone after twelve.
QUICK_MEMBERS = (
    "group.initial.rebalance.delay.ms=0",
    "group.consumer.min.heartbeat.interval.ms=1000",
    "group.consumer.heartbeat.interval.ms=1000",
    "group.consumer.min.session.timeout.ms=6000",
    "group.consumer.session.timeout.ms=12000",
)

# A transaction that is too old is aborted within a moment.
QUICK_TRANSACTIONS = ("transaction.abort.timed.out.transaction.cleanup.interval.ms=200",)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that the tests of a module share; each takes topics of its own."""
    if BOOTSTRAP:
        yield ForeignBroker(BOOTSTRAP)
        return
    shared = start_broker(
        tmp_path_factory.mktemp("shared") / "data", *QUICK_UPKEEP, *QUICK_MEMBERS, *QUICK_TRANSACTIONS
    )
    try:
        yield shared
        assert shared.is_alive(), f"the shared broker died:\n{shared.log()[-4000:]}"
        shared.stop()
    finally:
        shared.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers with settings of their own: `start("auto.create.topics.enable=false")`."""
    if BOOTSTRAP and not SERVE:
        pytest.skip("needs a broker with settings of its own")
    started: list[Broker] = []

    def start_one(*settings: str, open_files_max: int | None = None) -> Broker:
        data = tmp_path / f"data{len(started)}"
        started.append(start_broker(data, *settings, open_files_max=open_files_max))
        return started[-1]

    try:
        yield start_one
        for one in started:
            if one.is_alive():
                one.stop()
    finally:
        for one in started:
            one.kill()
