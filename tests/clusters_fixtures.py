"""The fixture of the tests with several nodes: name it with `pytest_plugins = ["clusters_fixtures"]`.

Each module has a cluster of its own. Three nodes with the topics of many modules would take a fifth of a core until the
end of the run, while they do nothing but fetch from each other. Import nothing from here: pytest must be the first to
import it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from brokers import IS_OURS
from clusters import LAG_MS_MAX, Cluster, QuorumCluster

C = TypeVar("C", Cluster, QuorumCluster)
SETTINGS = (
    f"replica.lag.time.max.ms={LAG_MS_MAX}",
    "replica.fetch.backoff.ms=100",
    "default.replication.factor=3",
)


def shared(kind: type[C]) -> Any:
    """A fixture: three nodes of a kind, with links that can be cut, for the tests of a module."""

    def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[C]:
        yield from started(kind, tmp_path_factory.mktemp(kind.__name__))

    return pytest.fixture(scope="module")(start)


shared_cluster = shared(Cluster)
shared_quorum = shared(QuorumCluster)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes that tests share; each test finds them alive with all links open, and creates its own topics."""
    yield from repaired(shared_cluster)


@pytest.fixture
def quorum(shared_quorum: QuorumCluster) -> Iterator[QuorumCluster]:
    """Three voters; tests share them as they share `cluster`."""
    yield from repaired(shared_quorum)


def started(kind: type[C], folder: Path) -> Iterator[C]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with kind(folder, *SETTINGS, is_proxied=True) as cluster:
        yield cluster


def repaired(cluster: C) -> Iterator[C]:
    cluster.repair()
    yield cluster
    for number, node in cluster.nodes.items():
        assert not node.complaints(), f"node {number}: {node.complaints()}"
