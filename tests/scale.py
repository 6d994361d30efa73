"""Many partitions on three nodes, how long things take and what they cost: `python tests/scale.py --partitions 1000`.

Creating them, what the nodes do while nobody writes, one node killed, the same node back, and all started anew.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from brokers import eventually, unique
from clients_stock import READ_S_MAX, admin
from clusters import QuorumCluster
from confluent_kafka.admin import NewTopic

from minibroker.client.blocking import Client
from minibroker.client.errors import ClientError
from minibroker.wire.tables.metadata import MetadataResponsePartition

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 180


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def partitions_at(cluster: QuorumCluster, topic: str, number: int) -> list[MetadataResponsePartition]:
    """What a node says of the partitions; nothing if it does not answer."""
    try:
        with Client(cluster[number].address, timeout_ms=10_000) as client:
            return list(client.metadata([topic]).topics[0].partitions)
    except ClientError:
        return []


class Scale:
    """One topic with many partitions, and what can be asked of it."""

    def __init__(self, cluster: QuorumCluster, partitions: int) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.topic = unique("scale")

    def is_all(self, number: int, rule: Callable[[MetadataResponsePartition], bool]) -> bool:
        found = partitions_at(self.cluster, self.topic, number)
        return len(found) == self.partitions and all(map(rule, found))

    def timed(self, what: str, work: Callable[[], object], rule: Callable[[MetadataResponsePartition], bool]) -> None:
        """Does something, and prints how long it takes until every node that is there sees every partition so."""
        begun = time.monotonic()
        work()
        for number in self.cluster.living():
            eventually(lambda n=number: self.is_all(n, rule), what, seconds=_PATIENCE_S)  # type: ignore[misc]
        print(f"{what:60} {time.monotonic() - begun:8.2f} s", flush=True)

    def create(self) -> None:
        client = admin(self.cluster.bootstrap)
        new = NewTopic(self.topic, num_partitions=self.partitions, replication_factor=3)
        client.create_topics([new], operation_timeout=READ_S_MAX)[self.topic].result(_PATIENCE_S)
        # Nodes open logs in between other things.
        for number in self.cluster.nodes:
            eventually(lambda n=number: self._opened(n) == self.partitions, "all logs", seconds=_PATIENCE_S)  # type: ignore[misc]

    def _opened(self, number: int) -> int:
        return len(list(self.cluster[number].data.glob(f"{self.topic}-*/*.timeindex")))

    def idle(self, seconds: float) -> None:
        """What the nodes use while nobody writes."""
        nodes = [node for node in self.cluster.nodes.values() if node.is_alive()]
        before = [cpu_s(node.pid) for node in nodes]
        time.sleep(seconds)
        used = [(cpu_s(node.pid) - it) / seconds for node, it in zip(nodes, before, strict=True)]
        shares = ", ".join(f"{it:.1%}" for it in used)
        memory = ", ".join(f"{node.resident_bytes() / 1e6:.0f} MB" for node in nodes)
        print(f"{'idle: processor and memory of each node':60} {shares}; {memory}", flush=True)


def run(cluster: QuorumCluster, partitions: int, idle_s: float) -> None:
    scale = Scale(cluster, partitions)
    scale.idle(idle_s)
    scale.timed(f"{partitions} x 3 replicas created and in sync", scale.create, lambda it: len(it.isr_nodes) == 3)
    scale.idle(idle_s)
    victim = cluster.controller() % 3 + 1
    led = sum(it.leader_id == victim for it in partitions_at(cluster, scale.topic, cluster.controller()))
    scale.timed(
        f"a node killed: its {led} partitions have other leaders",
        cluster[victim].kill,
        lambda it: it.leader_id not in (victim, -1),
    )
    scale.timed("the same node back and in sync", cluster[victim].restart, lambda it: len(it.isr_nodes) == 3)
    scale.timed("a node stopped in order", cluster[victim].stop, lambda it: it.leader_id not in (victim, -1))
    cluster.stop()
    scale.timed("all started and in sync", cluster.start, lambda it: len(it.isr_nodes) == 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many partitions on three nodes.")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch idle nodes for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path, QuorumCluster(Path(path), "default.replication.factor=3") as cluster:
        run(cluster, options.partitions, options.idle)


if __name__ == "__main__":
    main()
