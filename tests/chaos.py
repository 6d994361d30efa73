"""Three nodes, and a fault every few seconds: `python tests/chaos.py --cycles 20 [--seed N]`.

Links between nodes are cut in two ways. A proxy in front of each node knows the sender, and closes connections or lets
single requests vanish. Where the machine allows it, the kernel cuts the links in the second half of the cycles: then no
connection is closed, packets vanish in one direction or both, and only timeouts tell. `--links` chooses one of the two.

An idempotent producer writes to every partition without a pause, and a consumer reads along. Beside it a group of each
kind reads and commits, with two members. In each cycle one fault, drawn by the seed, hits the leader of a partition,
the controller, or a node that is not the controller. It lasts until writes go on, or for some seconds; then it is
healed, and all replicas must be in sync again. At the end everything is read back: every acknowledged record is there
once, in order and at its offset, and the consumer has seen the same. The groups have skipped nothing, no committed
offset has gone back, and what they read twice is what they had read and not committed when a partition changed hands.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from brokers import unique
from clients_stock import confluent_consumer
from clusters import QuorumCluster, Sender, Tally
from confluent_kafka import TopicPartition
from groups_crews import QUICK_GROUPS, Background, Crew, History, crews_of_each_kind
from namespaces import RemoteCluster, enter, why_not
from proxy import Verdict

from minibroker.bench.outages import PROMISES, Outages, longest_gap_ms
from minibroker.bench.watching import until

REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
SETTINGS = (
    "replica.lag.time.max.ms=2000",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    *QUICK_GROUPS,
)
# Longer than a session, and longer than a leader leads without a majority.
LASTS_S = 4.0
_ACKS = 20
_READ_S_MAX = 60.0

Begin = Callable[[QuorumCluster, int, random.Random], None]


def _pause(cluster: QuorumCluster, victim: int, _chance: random.Random) -> None:
    cluster[victim].pause()
    time.sleep(LASTS_S)


def _cut_one_way(cluster: QuorumCluster, victim: int, chance: random.Random) -> None:
    other = chance.choice([it for it in cluster.nodes if it != victim])
    sender, to = chance.sample([victim, other], 2)
    cluster.cut(sender, to, chance.choice([Verdict.CUT, Verdict.DROP]))
    time.sleep(LASTS_S)


def _cut_off(cluster: QuorumCluster, victim: int, chance: random.Random) -> None:
    cluster.cut_off(victim, chance.choice([Verdict.CUT, Verdict.DROP]))
    time.sleep(LASTS_S)


FAULTS: dict[str, Begin] = {
    "kill": lambda cluster, victim, _chance: cluster[victim].kill(),
    "pause": _pause,
    "stop": lambda cluster, victim, _chance: cluster[victim].stop(),
    "cut one way": _cut_one_way,
    "cut off": _cut_off,
}
TARGETS = ("leader", "controller", "follower")


class Reader:
    """A consumer of all partitions, which must see every offset once and in order."""

    def __init__(self, cluster: QuorumCluster, topic: str) -> None:
        self.seen: list[list[bytes]] = [[] for _ in REPLICAS]
        self.complaints: list[str] = []
        self._consumer = confluent_consumer(cluster.bootstrap, **{"log_level": 0, "socket.timeout.ms": 5000})
        self._consumer.assign([TopicPartition(topic, it, 0) for it in range(len(REPLICAS))])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                if message.error():
                    self.complaints.append(str(message.error()))
                    continue
                seen = self.seen[message.partition() or 0]
                if message.offset() != len(seen):
                    self.complaints.append(f"{message.partition()}: offset {message.offset()} after {len(seen) - 1}")
                seen.append(bytes(message.value() or b""))


@dataclass
class Report:
    """The result of a run."""

    lasted_ms: list[int] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    complaints: list[str] = field(default_factory=list)
    groups: dict[str, History] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        return self.tally.is_well and not self.complaints and all(it.is_well for it in self.groups.values())

    def text(self) -> str:
        outages = Outages("a cycle's longest pause", tuple(self.lasted_ms))
        lines = [outages.text(), *(outages.budget_text(it) for it in PROMISES), *self.complaints[:20]]
        lines += [f"group {kind}: {history.text()}" for kind, history in self.groups.items()]
        return "\n".join([*lines, f"chaos: {len(self.lasted_ms)} cycles: {self.tally.text()}; {self._groups_text()}"])

    def _groups_text(self) -> str:
        histories = self.groups.values()
        skipped, redelivered = sum(it.skipped for it in histories), sum(it.redelivered for it in histories)
        bounded = f"{redelivered} redelivered (at most {sum(it.redelivered_max for it in histories)})"
        return f"groups: {skipped} skipped, {bounded}, {sum(len(it.gone_back) for it in histories)} offsets gone back"


class Chaos:
    """The cycles."""

    def __init__(self, cluster: QuorumCluster, *, seed: int, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._say = say
        self.report = Report()

    def run(self, cycles: int) -> Report:
        topic = self._cluster.create(unique("chaos"), REPLICAS, min_insync_replicas=2)
        # A client with long timeouts would wait longer for a dead node than the cluster needs.
        producing = Sender(self._cluster, topic, partitions=3, pause_s=0.005, timeout_ms=1000)
        grouped = crews_of_each_kind(self._cluster.bootstrap, [topic], unique, is_orderly=False)
        with grouped as crews, Reader(self._cluster, topic) as reader, producing as sender:
            for crew in crews.values():
                crew.hire(2)
            with Background(crews.values()):
                sender.await_acks(_ACKS)
                for number in range(cycles):
                    self._cycle(f"{number + 1}/{cycles}", topic, sender)
                sender.finish()
                self._await_groups(crews, {(topic, it): sender.sent for it in range(len(REPLICAS))})
            self._check(sender, reader)
            self._check_groups(crews)
        return self.report

    def _victim(self, topic: str) -> tuple[str, int]:
        target = self._chance.choice(TARGETS)
        partition = self._chance.randrange(len(REPLICAS))
        if target == "leader":
            return f"leader of {partition}", self._cluster.leader(topic, partition)
        controller = self._cluster.controller()
        others = [it for it in self._cluster.nodes if it != controller]
        return target, controller if target == "controller" else self._chance.choice(others)

    def _cycle(self, number: str, topic: str, sender: Sender) -> None:
        name = self._chance.choice(list(FAULTS))
        target, victim = self._victim(topic)
        begun_s = time.monotonic()
        FAULTS[name](self._cluster, victim, self._chance)
        sender.await_acks(_ACKS)
        self._cluster.repair()
        for partition in range(len(REPLICAS)):
            self._cluster.await_isr(topic, 1, 2, 3, partition=partition)
        sender.await_acks(_ACKS)
        ended_s = time.monotonic()
        lasted_ms = max(longest_gap_ms(it, begun_s=begun_s, ended_s=ended_s) for it in sender.acked_s)
        self.report.lasted_ms.append(lasted_ms)
        took = f"longest pause {lasted_ms} ms, all in sync after {ended_s - begun_s:.1f} s"
        self._say(f"{number}: {name}, node {victim} ({target}): {took}")

    def _await_groups(self, crews: dict[str, Crew], everything: dict[tuple[str, int], int]) -> None:
        """Wait until every group has read and committed everything."""
        for kind, crew in crews.items():
            try:
                until(partial(crew.history.has_read, everything), "it has read all", seconds=_READ_S_MAX)
            except TimeoutError as late:
                self.report.complaints.append(f"group {kind}: {late}")

    def _check_groups(self, crews: dict[str, Crew]) -> None:
        for kind, crew in crews.items():
            crew.history.check_committed(crew.committed())
            self.report.groups[kind] = crew.history

    def _check(self, sender: Sender, reader: Reader) -> None:
        self.report.tally, found = sender.tally()
        self.report.complaints += reader.complaints
        for partition, values in enumerate(reader.seen):
            if values != found[partition][: len(values)]:
                self.report.complaints.append(f"{partition}: the consumer has seen something else than there is")
        for number, node in self._cluster.nodes.items():
            if node.complaints():
                self.report.complaints.append(f"node {number}: {node.complaints()}")


def run(path: Path, *, cycles: int, seed: int, say: Callable[[str], None], is_remote: bool = False) -> Report:
    """Run some cycles on a cluster of their own; return the result."""
    with RemoteCluster(path, *SETTINGS) if is_remote else QuorumCluster(path, *SETTINGS, is_proxied=True) as cluster:
        return Chaos(cluster, seed=seed, say=say).run(cycles)


def shares(cycles: int, links: str) -> dict[str, int]:
    """How many cycles run with which links. Links that this machine does not allow are left out, with a message."""
    if links == "proxy":
        return {"proxy": cycles}
    reason = why_not()
    if reason is not None:
        print(f"chaos: links are not cut in the kernel: {reason}", flush=True)
        return {"proxy": cycles} if links == "both" else {}
    return {"kernel": cycles} if links == "kernel" else {"proxy": cycles - cycles // 2, "kernel": cycles // 2}


def main() -> None:
    parser = argparse.ArgumentParser(description="Nodes die, pause and lose links under load.")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--links", choices=("both", "proxy", "kernel"), default="both", help="what cuts them")
    options = parser.parse_args()
    is_well = True
    for links, cycles in shares(options.cycles, options.links).items():
        is_remote = links == "kernel"
        if is_remote:
            enter()
        print(f"chaos: {cycles} cycles, links are cut by the {links}", flush=True)
        with tempfile.TemporaryDirectory() as path:
            report = run(Path(path), cycles=cycles, seed=options.seed, say=_say, is_remote=is_remote)
        print(report.text(), flush=True)
        is_well = is_well and report.is_well
    sys.exit(not is_well)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
