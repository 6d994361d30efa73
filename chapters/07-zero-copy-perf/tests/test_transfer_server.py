"""The fast connection keeps every promise of chapter 03's connection."""

import pytest
import test_partitions_server
from test_partitions_server import *  # noqa: F403

from minibroker.transfer.connection import fast_connection
from minibroker.transfer.sending import Transfer


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_partitions_server, "CONNECT", fast_connection(Transfer.COPY))
