"""How long writes stop when a node goes: `python tests/failover.py --rounds 20 [--only NAME] [--out FILE]`.

Three nodes with the settings that people get, and topics whose three partitions are led by one node each. In every
round one node goes, and what counts is the longest time without an acknowledgement of a partition that it led. It is
seen by an impatient prober, which shows how long the cluster needs, and by an idempotent producer of librdkafka, which
has pauses of its own. For who decides there is also the time until something is decided again.
"""

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from brokers import eventually, unique
from clients_stock import admin
from clusters import Node, QuorumCluster, Sender
from confluent_kafka import ElectionType, TopicPartition

from minibroker.bench.outages import Outages, longest_gap_ms
from minibroker.client.admin import NewTopic, create_topics
from minibroker.client.blocking import Client
from minibroker.client.errors import ClientError
from minibroker.log.batch import BatchBuilder
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TARGET_MS = 3000
STOP_TARGET_MS = 500
_SETTLED_ACKS = 20
_PROBE_MS = 250


class Fault(NamedTuple):
    """What is done to a node, how it is undone, and whether that node decides."""

    name: str
    begin: Callable[[Node], None]
    end: Callable[[Node], None]
    decides: bool
    target_ms: int = TARGET_MS


FAULTS = (
    Fault("leader killed", Node.kill, Node.restart, decides=False),
    Fault("leader paused", Node.pause, Node.resume, decides=False),
    Fault("leader stopped", Node.stop, Node.restart, decides=False, target_ms=STOP_TARGET_MS),
    Fault("leader and controller killed", Node.kill, Node.restart, decides=True),
    Fault("leader and controller paused", Node.pause, Node.resume, decides=True),
    Fault("leader and controller stopped", Node.stop, Node.restart, decides=True, target_ms=STOP_TARGET_MS),
)
_ROUND = ([1, 2, 3], [2, 3, 1], [3, 1, 2])


def spread(cluster: QuorumCluster, topic: str) -> None:
    """Gives each node the partition that it is the first replica of; waits until all are in sync."""
    for partition in range(len(_ROUND)):
        cluster.await_isr(topic, 1, 2, 3, partition=partition)
    client = admin(cluster.bootstrap)
    client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, it) for it in range(len(_ROUND))]).result(20)
    for partition, replicas in enumerate(_ROUND):
        eventually(
            lambda p=partition, r=replicas: all(  # type: ignore[misc]
                (state := cluster.state(topic, p, at=it)) and state.leader == r[0] for it in (1, 2, 3)
            ),
            "every node leads one",
        )


def decided_again_ms(cluster: QuorumCluster, left: list[int], begun_s: float) -> int:
    """How long it takes until one of those who are left has created a topic."""
    while True:
        for number in left:
            try:
                with Client(cluster[number].address, timeout_ms=500) as client:
                    create_topics(client, [NewTopic(unique("decided"), 1, 1)], timeout_ms=500)
                return round((time.monotonic() - begun_s) * 1000)
            except ClientError:
                time.sleep(0.02)


class Prober:
    """Writes one record after the other, each to whom any node names as the leader; it waits for nobody for long."""

    def __init__(self, cluster: QuorumCluster, topic: str, partition: int) -> None:
        self.acked_s: list[float] = []
        self._where = (topic, partition)
        self._clients = [Client(node.address, timeout_ms=_PROBE_MS) for node in cluster.nodes.values()]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Prober":
        self._thread.start()
        self.await_acks()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _run(self) -> None:
        for client in itertools.cycle(self._clients):
            while not self._is_over.wait(0.005) and self._is_acked(client):
                self.acked_s.append(time.monotonic())
            if self._is_over.is_set():
                return

    def _is_acked(self, client: Client) -> bool:
        topic, partition = self._where
        batch = BatchBuilder()
        batch.append(timestamp=0, key=None, value=b"probe")
        data = PartitionProduceData(index=partition, records=bytes(batch.build()))
        request = ProduceRequest(
            acks=-1, timeout_ms=_PROBE_MS, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        try:
            client.core.routes.doubt(topic)
            leader_id = client.leader(topic, partition)
            response = client.send(request, node_id=leader_id, timeout_ms=_PROBE_MS)
            return bool(response.responses[0].partition_responses[0].error_code == ErrorCode.NONE)
        except ClientError:
            return False

    def await_acks(self) -> None:
        goal = len(self.acked_s) + _SETTLED_ACKS
        eventually(lambda: len(self.acked_s) >= goal, "probes are acknowledged", seconds=40)


class Round(NamedTuple):
    """What one fault has cost."""

    cluster_ms: int
    client_ms: int
    decided_ms: int


def one_round(cluster: QuorumCluster, topics: tuple[str, str], sender: Sender, fault: Fault) -> Round:
    controller = cluster.controller()
    victim = controller if fault.decides else controller % 3 + 1
    sender.await_acks(_SETTLED_ACKS)
    with Prober(cluster, topics[1], victim - 1) as prober:
        begun_s = time.monotonic()
        fault.begin(cluster[victim])
        left = [it for it in cluster.nodes if it != victim]
        decided_ms = decided_again_ms(cluster, left, begun_s) if fault.decides else 0
        sender.await_acks(_SETTLED_ACKS)
        prober.await_acks()
        ended_s = time.monotonic()
        fault.end(cluster[victim])
    for topic in topics:
        spread(cluster, topic)
    cluster_ms = longest_gap_ms(prober.acked_s, begun_s=begun_s, ended_s=ended_s)
    client_ms = longest_gap_ms(sender.acked_s[victim - 1], begun_s=begun_s, ended_s=ended_s)
    return Round(cluster_ms, client_ms, decided_ms)


def measure(cluster: QuorumCluster, fault: Fault, rounds: int, say: Callable[[str], None]) -> list[Outages]:
    """All rounds of one fault, with one producer; whatever it wrote is there at the end."""
    topics = (unique("failover"), unique("probe"))
    for topic in topics:
        cluster.create(topic, _ROUND, min_insync_replicas=2)
        spread(cluster, topic)
    found = []
    # A client that waits long for who does not answer would wait longer than the cluster needs.
    with Sender(cluster, topics[0], partitions=3, timeout_ms=1000) as sender:
        for number in range(rounds):
            found.append(one_round(cluster, topics, sender, fault))
            say(f"{fault.name} {number + 1}/{rounds}: {found[-1]}")
        sender.finish()
    sender.check()
    outages = [
        Outages(fault.name, tuple(it.cluster_ms for it in found)),
        Outages(f"{fault.name}, librdkafka", tuple(it.client_ms for it in found)),
    ]
    if fault.decides:
        outages.append(Outages(f"{fault.name}, decided", tuple(it.decided_ms for it in found)))
    return outages


def main() -> None:
    parser = argparse.ArgumentParser(description="How long writes stop when a node goes.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=[it.name for it in FAULTS])
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the nodes")
    options = parser.parse_args()
    found: list[Outages] = []
    settings = ("default.replication.factor=3", "min.insync.replicas=2", *options.set)
    with tempfile.TemporaryDirectory() as path, QuorumCluster(Path(path), *settings) as cluster:
        for fault in FAULTS:
            if options.only in (None, fault.name):
                outages = measure(cluster, fault, options.rounds, say=lambda line: print(line, flush=True))
                found += outages
                verdict = "within" if outages[0].at(99) <= fault.target_ms else "BEYOND"
                print("\n".join(it.text() for it in outages), f"  {verdict} {fault.target_ms} ms", flush=True)
    print("\n".join(it.text() for it in found))
    if options.out:
        options.out.write_text(json.dumps([it.document() for it in found], indent=1))


if __name__ == "__main__":
    main()
