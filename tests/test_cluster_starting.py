"""Nodes start in any order and stop cleanly while others are down or stuck; a node that must not go on says why."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from brokers import IS_OURS, eventually, unique
from clients_stock import Message, bounds, confluent_write
from clusters import LAG_MS_MAX, Cluster, Node

SETTINGS = (f"replica.lag.time.max.ms={LAG_MS_MAX}", "replica.fetch.backoff.ms=100")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that are not started yet."""
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with closing(Cluster(tmp_path, *SETTINGS)) as cluster:
        yield cluster


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes that are not started yet."""
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with closing(Cluster(tmp_path, *SETTINGS, size=2)) as cluster:
        yield cluster


def await_words(node: Node, words: str) -> None:
    eventually(lambda: words in node.log(), f"node {node.number} says: {words}")


def last_words(node: Node) -> str:
    """The last line of a node that ended by itself, without a traceback."""
    assert node.await_end() == 1
    assert not node.complaints(), node.complaints()
    return node.logs[-1].read_text().splitlines()[-1]


def test_nodes_start_in_any_order_and_stop_while_others_are_stuck(nodes: Cluster) -> None:
    # A node that starts before the controller waits, says so, and can be stopped.
    nodes[2].begin()
    nodes[3].begin()
    for node in (nodes[2], nodes[3]):
        await_words(node, "waiting for node 1, the controller")
    nodes[3].stop()
    nodes[1].restart()
    nodes[2].await_ready()
    nodes[3].restart()
    topic = nodes.create(unique("order"), [[2, 3, 1], [3, 2, 1]], min_insync_replicas=1)
    for partition in (0, 1):
        confluent_write(nodes.bootstrap, topic, [Message(b"value")], partition=partition, acks="all")
    # A follower and a leader stop within seconds, though other nodes do not answer their requests.
    nodes[1].pause()
    nodes[3].pause()
    nodes[2].stop()
    nodes[3].resume()
    nodes[3].stop()
    nodes[1].resume()
    # All acknowledged records are there after the restart.
    nodes[3].restart()
    nodes[2].restart()
    for partition in (0, 1):
        nodes.await_isr(topic, 1, 2, 3, partition=partition)
        assert bounds(nodes.bootstrap, topic, partition) == (0, 1)
    nodes.stop()


def test_a_node_that_does_not_belong_here_says_so_in_one_line(pair: Cluster, tmp_path: Path) -> None:
    pair.start()
    pair[2].stop()
    # The directory of another node, and of another cluster.
    with closing(Node(4, pair[2].data, pair[2].settings)) as stranger:
        stranger.begin()
        assert "belongs to node 2, but this is node 4" in last_words(stranger)
    text = (pair[2].data / "meta.properties").read_text()
    (pair[2].data / "meta.properties").write_text(text.replace("cluster.id=", "cluster.id=x"))
    pair[2].begin()
    assert "belongs to cluster x" in last_words(pair[2])
    (pair[2].data / "meta.properties").write_text(text)
    # A wrong address of the controller.
    with closing(Node(5, tmp_path / "node5", [f"controller.quorum.voters=7@{pair[1].address}"])) as lost:
        lost.begin()
        assert "belongs to a cluster with the nodes [1, 2], but without node 7" in last_words(lost)


def test_a_node_with_another_secret_says_so_on_both_sides_and_joins_with_the_right_one(
    pair: Cluster, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("another secret of more than 32 bytes")
    other.chmod(0o600)
    right = pair[2].settings
    pair[2].settings = (*right, f"minibroker.cluster.secret.file={other}")
    pair[1].restart()
    pair[2].begin()
    await_words(pair[2], "node 2 could not log in at node 1: its secret differs: compare the files of ")
    await_words(pair[1], "node 2 could not log in at node 1, from 127.0.0.1:")
    pair[2].kill()
    # It tried again and again, and said so once, and once more because it waits for the controller.
    assert pair[2].log().count("its secret differs") == 2
    assert pair[1].log().count("its secret differs") == 1
    # A secret that others can read ends the node.
    other.chmod(0o644)
    pair[2].begin()
    assert last_words(pair[2]) == f"the secret of the cluster, {other}, is open to other users: `chmod 600 {other}`"
    pair[2].settings = right
    pair[2].restart()
    pair.stop()


def test_of_two_processes_with_one_node_id_the_older_one_ends(pair: Cluster, tmp_path: Path) -> None:
    """Otherwise both would lead the same partitions."""
    pair.start()
    topic = pair.create(unique("double"), [[2, 1]])
    with closing(Node(2, tmp_path / "another2", pair[2].settings)) as double:
        double.restart()
        assert "has registered as node 2" in last_words(pair[2])
        # The new process has none of the records that the old one acknowledged: another node leads, and it follows.
        pair.await_isr(topic, 1, 2, at=[1])
        state = pair.state(topic, at=1)
        assert state is not None
        assert (state.leader, state.leader_epoch) == (1, 1)
        double.stop()


def test_no_node_follows_a_controller_with_an_older_copy_of_its_data(pair: Cluster, tmp_path: Path) -> None:
    pair.start()
    pair[1].stop()
    shutil.copytree(pair[1].data, tmp_path / "copy")
    pair[1].restart()
    pair.create(unique("forgotten"), [[2, 1]])
    pair[1].kill()
    shutil.rmtree(pair[1].data)
    shutil.copytree(tmp_path / "copy", pair[1].data)
    pair[1].restart()
    for _start in range(2):
        assert "the log of node 1, the controller, contradicts it" in last_words(pair[2])
        pair[2].begin()
