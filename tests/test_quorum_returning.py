"""All nodes stop, and some come back: a replica that has every acknowledged record leads (KIP-966), and none is lost.

The nodes are processes; the producer is librdkafka, with acks=all.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from brokers import IS_OURS, eventually, unique
from cases import case
from clients_stock import Message, bounds, confluent_read, confluent_write
from clusters import LAG_MS_MAX, Node, QuorumCluster

from minibroker.clients.admin import reassign_partitions
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition

EVERYBODY = (1, 2, 3)
REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
# The number that must be in sync is in the files of the nodes, and no topic has its own.
SETTINGS = (
    f"replica.lag.time.max.ms={LAG_MS_MAX}",
    "replica.fetch.backoff.ms=100",
    "default.replication.factor=3",
    "min.insync.replicas=2",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[QuorumCluster]:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    with QuorumCluster(tmp_path, *SETTINGS) as cluster:
        yield cluster


class Ledger:
    """Writes numbered records to the partitions of a topic, and reads all of them back."""

    def __init__(self, cluster: QuorumCluster) -> None:
        self.cluster = cluster
        self.topic = cluster.create(unique("returning"), REPLICAS)
        self.count = 0

    def write(self, records: int = 20) -> None:
        messages = [Message(b"%d" % it) for it in range(self.count, self.count + records)]
        for partition in range(3):
            confluent_write(self.cluster.bootstrap, self.topic, messages, partition=partition, acks="all")
        self.count += records

    def check(self) -> None:
        for partition in range(3):
            assert bounds(self.cluster.bootstrap, self.topic, partition) == (0, self.count)
            found = confluent_read(self.cluster.bootstrap, self.topic, self.count, partition=partition)
            assert [it.value for it in found] == [b"%d" % it for it in range(self.count)]


def together(cluster: QuorumCluster, end: Callable[[Node], None]) -> None:
    with ThreadPoolExecutor(len(EVERYBODY)) as threads:
        list(threads.map(end, cluster.nodes.values()))


def one_by_one(cluster: QuorumCluster, *numbers: int) -> None:
    """Stop nodes in this order. Each but the last hands over while there is a quorum."""
    for number in numbers:
        cluster[number].stop()


def come_back(cluster: QuorumCluster, ledger: Ledger, numbers: list[int]) -> None:
    for number in numbers:
        cluster[number].begin()
    begun_s = time.monotonic()
    for number in numbers:
        cluster[number].await_ready()
    ledger.write()
    print(f"nodes {numbers} acknowledged writes {time.monotonic() - begun_s:.1f} s after they were started")


def test_any_two_of_three_nodes_go_on_after_all_were_stopped_or_killed(cluster: QuorumCluster) -> None:
    ledger = Ledger(cluster)
    ledger.write()
    for name, end in (("stopped", Node.stop), ("killed", Node.kill)):
        for absent in EVERYBODY:
            with case(f"all are {name}, node {absent} stays away"):
                together(cluster, end)
                come_back(cluster, ledger, [it for it in EVERYBODY if it != absent])
                ledger.check()
                cluster[absent].restart()
                for partition in range(3):
                    cluster.await_isr(ledger.topic, *EVERYBODY, partition=partition)
    with case("all are killed after each has lost a replica to a move"):
        kept = {TopicPartition(ledger.topic, it): replicas[:2] for it, replicas in enumerate(REPLICAS)}
        together(cluster, Node.stop)
        come_back(cluster, ledger, list(EVERYBODY))
        with Client(cluster.bootstrap) as client:
            reassign_partitions(client, kept)
            for it, replicas in kept.items():
                cluster.await_isr(ledger.topic, *replicas, partition=it.partition)
        together(cluster, Node.kill)
        come_back(cluster, ledger, list(EVERYBODY))
    ledger.check()


def test_the_node_that_stopped_last_is_not_needed(cluster: QuorumCluster) -> None:
    """It led everything in the end, and was the only one in sync. The second to stop had every record, too."""
    ledger = Ledger(cluster)
    for first, second, last in ((1, 2, 3), (3, 1, 2)):
        with case(f"{first}, {second} and {last} stop in this order"):
            ledger.write()
            one_by_one(cluster, first, second)
            # The last node alone has no quorum. It waits for one in vain.
            cluster[last].kill()
            come_back(cluster, ledger, [first, second])
            ledger.check()
            cluster[last].restart()
            for partition in range(3):
                cluster.await_isr(ledger.topic, *EVERYBODY, partition=partition)
    ledger.check()


def run(cluster: QuorumCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line against the cluster."""
    command = [sys.executable, "-m", "minibroker.cli", *words, "--bootstrap-server", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


def lose_power(cluster: QuorumCluster) -> None:
    """Kill all nodes. None can prove afterwards that it still has all its records."""
    for node in cluster.nodes.values():
        node.kill()
        (node.data / "broker-epoch").unlink()


def test_an_unclean_election_takes_the_longest_log_and_says_before_what_is_lost(cluster: QuorumCluster) -> None:
    topic = cluster.create(unique("unclean"), [[1, 2, 3]])
    confluent_write(cluster.bootstrap, topic, [Message(b"%d" % it) for it in range(20)], acks="all")
    # Node 1, the first replica, misses the last records.
    cluster[1].kill()
    cluster.await_isr(topic, 2, 3)
    confluent_write(cluster.bootstrap, topic, [Message(b"%d" % it) for it in range(20, 40)], acks="all")
    lose_power(cluster)
    cluster.start()
    elect = ("topics", "elect-leaders", topic, "--unclean")
    # Nodes 2 and 3 have equal logs. Of these the last leader is taken, and that depends on which one registered last.
    promise = "{}-0: node {} would lead, whose log ends at offset 40; no other replica has more records\n"
    promises = {promise.format(topic, node_id): node_id for node_id in (2, 3)}

    def announced() -> str:
        said = run(cluster, *elect, "--dry-run").stdout
        return said if said in promises else ""

    said = eventually(announced, "all say where their logs end")
    leader_id = promises[said]
    status = run(cluster, "cluster", "status").stdout
    assert f"{topic}-0 has no leader: no replica is known to have all the records" in status
    assert f"node {leader_id} would lead, whose log ends at offset 40" in status
    refused = run(cluster, *elect)
    assert refused.returncode == 1
    assert "confirm it with --yes" in refused.stderr
    done = run(cluster, *elect, "--yes")
    assert (done.returncode, done.stdout) == (0, f"{said}{topic}-0: node {leader_id} leads\n"), done.stderr
    cluster.await_isr(topic, *EVERYBODY)
    assert bounds(cluster.bootstrap, topic) == (0, 40)


def test_eligible_replicas_are_shown(cluster: QuorumCluster) -> None:
    topic = cluster.create(unique("shown"), [[1, 2, 3]], min_insync_replicas=3)
    cluster[3].stop()
    cluster.await_isr(topic, 1, 2)
    shown = eventually(lambda: run(cluster, "topics", "describe", topic).stdout, "the topic is described")
    assert shown.splitlines()[-1] == "not in sync, but eligible to lead without a loss: 0 (node 3)"
    (described,) = json.loads(run(cluster, "topics", "describe", topic, "--format", "json").stdout)
    assert described["partitions"][0]["eligible_leader_replicas"] == [3]
    cluster[3].restart()
    cluster.await_isr(topic, *EVERYBODY)
    assert "eligible" not in run(cluster, "topics", "describe", topic).stdout
