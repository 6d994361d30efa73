"""The fixture of the tests with groups on one node: name it with `pytest_plugins = ["groups_fixtures"]`.

Each module has a broker of its own, as in `clients_fixtures`. Import nothing from here: pytest must be the first to
import it.
"""

from collections.abc import Iterator

import pytest
from brokers import BOOTSTRAP, Broker, ForeignBroker, start_broker
from groups_crews import QUICK_GROUPS


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose groups notice everything within a moment; each test takes groups and topics of its own."""
    if BOOTSTRAP:
        yield ForeignBroker(BOOTSTRAP)
        return
    broker = start_broker(tmp_path_factory.mktemp("groups") / "data", *QUICK_GROUPS)
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()
