"""The fixture of the tests with several nodes: name it with `pytest_plugins = ["clusters_fixtures"]`.

A plugin and not imports, so that one cluster serves all the modules that one process runs. Import nothing from here:
pytest wants to be the first that does.
"""

from collections.abc import Iterator

import pytest
from brokers import IS_OURS
from clusters import LAG_MS_MAX, Cluster, QuorumCluster

SETTINGS = (
    f"replica.lag.time.max.ms={LAG_MS_MAX}",
    "replica.fetch.backoff.ms=100",
    "default.replication.factor=3",
)


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with Cluster(tmp_path_factory.mktemp("cluster"), *SETTINGS, is_proxied=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three nodes that tests share; each finds them alive, and with all links open, and takes topics of its own."""
    shared_cluster.repair()
    yield shared_cluster
    for number, node in shared_cluster.nodes.items():
        assert not node.complaints(), f"node {number}: {node.complaints()}"


@pytest.fixture(scope="session")
def shared_quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumCluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with QuorumCluster(tmp_path_factory.mktemp("quorum"), *SETTINGS, is_proxied=True) as cluster:
        yield cluster


@pytest.fixture
def quorum(shared_quorum: QuorumCluster) -> Iterator[QuorumCluster]:
    """Three nodes that vote; tests share them as they share `cluster`."""
    shared_quorum.repair()
    yield shared_quorum
    for number, node in shared_quorum.nodes.items():
        assert not node.complaints(), f"node {number}: {node.complaints()}"
