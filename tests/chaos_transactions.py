"""A copy in transactions while nodes, links and copiers fail: `python tests/chaos_transactions.py --rounds 20`.

Each round copies the same 100,000 records to a new topic, 750 in a transaction, with two copiers in one group
(`chaos_copier`). In the middle of it, one scenario of `chaos_scenarios` or one of the scenarios below strikes. It hits
the leaders, the controller, the coordinators of the group and of the transactions, or the copiers. Then all faults are
healed. The copy must become complete without the help of a human, and readers of committed records must find exactly
the records of the source, each once, in order. The last stable offset must reach the high watermark, because no
transaction may stay open.

Half of the rounds use our client, half confluent-kafka.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import chaos_copier
from brokers import unique
from chaos import SETTINGS, ProxiedCluster, Say, plan
from chaos_scenarios import LASTS_S, REPLICAS, SCENARIOS, WAIT_S_MAX, Scene
from clients_stock import Message, confluent_write
from clusters import Cluster, Tally
from confluent_kafka import KafkaException
from proxy import Verdict
from transactions_stock import read_all, stable_and_end

from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients import group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.coordination import GROUP, TRANSACTION, Coordinator

QUICK_TRANSACTIONS = (
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
    "transaction.state.log.num.partitions=6",
    "offsets.topic.num.partitions=6",
)
COPIERS = 2
_CLIENTS = 0  # in place of a node: what the proxies take for a sender that is no node


class Copier:
    """A process that copies, and is started again when it ends."""

    def __init__(self, number: int, log: Path, arguments: Sequence[str]) -> None:
        self.number = number
        self.starts = 0
        self._log = log
        self._command = [sys.executable, chaos_copier.__file__, *arguments]
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            with self._log.open("ab") as log, self._lock:
                self._process = subprocess.Popen(self._command, stderr=log, stdin=subprocess.DEVNULL)
                self.starts += 1
            self._process.wait()
            self._is_over.wait(0.2)

    def send(self, number: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                os.kill(self._process.pid, number)

    def close(self) -> None:
        self._is_over.set()
        self.send(signal.SIGKILL)
        self._thread.join()


@dataclass
class Copying:
    """One copy: its topics, its group, its copiers, and the ends of the source."""

    cluster: Cluster
    source: str
    target: str
    group: str
    ends: Sequence[int]
    copiers: list[Copier] = field(default_factory=list)
    _copied: int = 0

    def copied(self) -> int:
        """How many records are copied, by the group's position; the last answer if the cluster does not answer."""
        with contextlib.suppress(ClientError, OSError), Client(self.cluster.bootstrap, timeout_ms=2000) as client:
            self._copied = sum(group_admin.committed_offsets(client, self.group, is_stable=False).values())
        return self._copied

    def await_copied(self, count: int) -> None:
        """Wait as long as the copy goes on: how fast it is depends on the machine."""
        while (copied := self.copied()) < count:
            until(
                lambda copied=copied: self.copied() > copied,  # type: ignore[misc]
                f"more than {copied} records are copied",
                seconds=WAIT_S_MAX,
                every_s=0.1,
            )

    def coordinator(self, key_type: int) -> int | None:
        """The node that coordinates the group, or the transactions of the first copier."""
        key = self.group if key_type == GROUP else f"{self.group}-0"
        with contextlib.suppress(ClientError, OSError), Client(self.cluster.bootstrap, timeout_ms=2000) as client:
            return client.run(Coordinator(client.core, key, key_type).find())
        return None


@dataclass
class CopyScene(Scene):
    """A cluster and a copy. A node to hit may also be one of its coordinators."""

    copying: Copying = field(kw_only=True)

    def await_acks(self) -> None:
        """Wait until the copy goes on, or is complete."""
        before = self.copying.copied()
        self.copying.await_copied(min(before + chaos_copier.RECORDS, sum(self.copying.ends)))

    def victim(self) -> tuple[int, str]:
        kinds = {"coordinator of the group": GROUP, "coordinator of transactions": TRANSACTION}
        kind = self.chance.choice([*kinds, "", ""])
        number = self.copying.coordinator(kinds[kind]) if kind else None
        return super().victim() if number is None else (number, f"node {number} ({kind})")

    def copier(self) -> Copier:
        return self.chance.choice(self.copying.copiers)


def copier_killed(scene: CopyScene) -> str:
    """A copier is killed three times, and each time starts again at once."""
    copier = scene.copier()
    for _ in range(3):
        scene.wait(1.0)
        copier.send(signal.SIGKILL)
    return f"copier {copier.number}"


def copier_paused(scene: CopyScene) -> str:
    """A copier is paused past its session, and goes on as if nothing had happened: a zombie."""
    copier = scene.copier()
    copier.send(signal.SIGSTOP)
    time.sleep(LASTS_S)
    copier.send(signal.SIGCONT)
    return f"copier {copier.number}"


def copiers_cut(scene: CopyScene) -> str:
    """The clients do not reach one node, or their answers are lost, while the nodes reach each other."""
    victim, words = scene.victim()
    scene.cluster.cut(_CLIENTS, victim, scene.chance.choice([Verdict.CUT, Verdict.DROP]))
    time.sleep(LASTS_S)
    scene.cluster.heal()
    return words


def copier_and_node_killed(scene: CopyScene) -> str:
    """A copier and a node are killed together."""
    number, words = scene.victim()
    copier = scene.copier()
    scene.cluster[number].kill()
    copier.send(signal.SIGKILL)
    return f"{words} and copier {copier.number}"


ROUNDS: dict[str, Callable[[CopyScene], str]] = {
    **{name: SCENARIOS[name] for name in ("kill", "stop", "pause", "killed-while-starting", "two-killed")},
    **{name: SCENARIOS[name] for name in ("all-killed", "cut-one-way", "cut-off")},
    **{it.__name__.replace("_", "-"): it for it in (copier_killed, copier_paused, copiers_cut, copier_and_node_killed)},
}


@dataclass
class Summary:
    """The result of all rounds."""

    rounds: int = 0
    tally: Tally = field(default_factory=Tally)
    complaints: list[str] = field(default_factory=list)
    humans: int = 0
    """How often the copy did not become complete by itself."""

    @property
    def is_well(self) -> bool:
        return self.tally.is_well and not (self.complaints or self.humans)

    def text(self) -> str:
        counts = f"{self.tally.lost} lost, {self.tally.twice} twice, {self.tally.out_of_order} out of order"
        total = f"{self.rounds} rounds: {self.tally.acked:,} copied, {counts}; a human was needed: {self.humans}"
        return "\n".join([*self.complaints[:20], f"chaos-transactions: {total}"])


class Rounds:
    """The rounds on one cluster."""

    def __init__(self, cluster: ProxiedCluster, path: Path, *, records: int, seed: int, say: Say) -> None:
        self._cluster = cluster
        self._path = path
        self._records = records
        self._chance = random.Random(seed)
        self._say = say
        self.summary = Summary()

    def run(self, names: Sequence[str]) -> Summary:
        source = self._write_source()
        # All topics are there before the first fault, because an administrator's request may be lost with a node.
        targets = [self._cluster.create(unique("target"), REPLICAS, min_insync_replicas=2) for _ in names]
        libraries = list(chaos_copier.COPIERS)
        for number, name in enumerate(names):
            library = libraries[number % len(libraries)]
            title = f"{number + 1}/{len(names)}: {name}, {library}"
            try:
                self._say(f"{title}: {self._round(name, library, source, targets[number])}")
            except (AssertionError, ClientError, KafkaException, OSError) as error:
                self.summary.humans += 1
                self.summary.complaints.append(f"{title}: {error}")
                self._say(self.summary.complaints[-1])
                break
            self.summary.rounds += 1
        self.summary.complaints += [
            f"node {number}: {node.complaints()}" for number, node in self._cluster.nodes.items() if node.complaints()
        ]
        return self.summary

    def _write_source(self) -> str:
        source = self._cluster.create(unique("source"), REPLICAS, min_insync_replicas=2)
        for partition in range(len(REPLICAS)):
            messages = [Message(b"%d" % number) for number in range(partition, self._records, len(REPLICAS))]
            confluent_write(self._cluster.bootstrap, source, messages, partition=partition)
        return source

    def _round(self, name: str, library: str, source: str, target: str) -> str:
        ends = [len(range(it, self._records, len(REPLICAS))) for it in range(len(REPLICAS))]
        begun_s = time.monotonic()
        with self._copying(Copying(self._cluster, source, target, unique("group"), ends), library) as copying:
            scene = CopyScene(self._cluster, target, None, self._chance, copying=copying)  # type: ignore[arg-type]
            copying.await_copied(int(self._records * self._chance.uniform(0.02, 0.3)))
            scene.begin()
            words = ROUNDS[name](scene)
            self._cluster.repair()
            copying.await_copied(self._records)
            lasted_s = time.monotonic() - begun_s
            starts = sum(it.starts for it in copying.copiers)
        scene.await_in_sync()
        self._check(copying)
        return f"{words}: {self._records:,} copied in {lasted_s:.1f} s, {starts} starts of copiers: exact, stable"

    @contextlib.contextmanager
    def _copying(self, copying: Copying, library: str) -> Iterator[Copying]:
        """Run the copiers."""
        for number in range(COPIERS):
            names = [copying.source, copying.target, copying.group, f"{copying.group}-{number}"]
            log = self._path / f"copier{number}.log"
            copying.copiers.append(Copier(number, log, [library, self._cluster.bootstrap, *names]))
        try:
            for copier in copying.copiers:
                copier.start()
            yield copying
        finally:
            for copier in copying.copiers:
                copier.send(signal.SIGCONT)
                copier.close()

    def _check(self, copying: Copying) -> None:
        """Read the target as a reader of committed records does, after the last transaction has ended."""
        with Client(self._cluster.bootstrap) as client:

            def is_stable() -> bool:
                stable, ends = stable_and_end(client, copying.target)
                return stable == ends

            until(is_stable, "the last stable offset reaches the high watermark", seconds=WAIT_S_MAX, every_s=0.1)
            values = read_all(client, copying.target)
        expected = [b"%d" % it for first in range(len(REPLICAS)) for it in range(first, self._records, len(REPLICAS))]
        found = Tally()
        # The numbers of a partition rise, so the order is compared partition by partition.
        for partition in range(len(REPLICAS)):
            wanted = {it: None for it in expected if int(it) % len(REPLICAS) == partition}
            found.add([it for it in values if int(it) % len(REPLICAS) == partition], wanted)
        for name in ("acked", "lost", "twice", "out_of_order"):
            setattr(self.summary.tally, name, getattr(self.summary.tally, name) + getattr(found, name))
        assert values == expected, f"{len(values):,} records instead of {len(expected):,}: {found.text()}"


def run(path: Path, names: Sequence[str], *, records: int, seed: int, say: Say) -> Summary:
    """Play rounds on a cluster of their own."""
    with ProxiedCluster(path, *SETTINGS, *QUICK_TRANSACTIONS, is_proxied=True) as cluster:
        summary = Rounds(cluster, path, records=records, seed=seed, say=say).run(names)
        if not summary.is_well:
            # A stop could fail as well, and the summary would be lost.
            for node in cluster.nodes.values():
                node.kill()
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description="A copy in transactions, while nodes, links and copiers fail.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", action="append", choices=ROUNDS, metavar="NAME", help="may be given again")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and do nothing")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:22} {it.__doc__}" for name, it in ROUNDS.items()))
        return
    names = plan(options.scenario or list(ROUNDS), cycles=options.rounds, seed=options.seed)
    path = Path(tempfile.mkdtemp(prefix="chaos-transactions-"))
    summary = run(path, names, records=options.records, seed=options.seed, say=lambda it: print(it, flush=True))
    if summary.is_well:
        shutil.rmtree(path)
    else:
        print(f"chaos-transactions: the data and the logs are in {path}", flush=True)
    print(summary.text(), flush=True)
    sys.exit(not summary.is_well)


if __name__ == "__main__":
    main()
