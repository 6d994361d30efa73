"""Three nodes, and a fault every few seconds: `python tests/chaos.py --cycles 20 [--scenario NAME] [--seed N]`.

`--list` names the scenarios (`chaos_scenarios`). Each cycle plays one: all of them in turns, in an order that the seed
decides, or those that `--scenario` names.

Links between nodes are cut in two ways. A proxy in front of each node knows the sender, and closes connections or lets
single requests vanish. Where the machine allows it, the kernel cuts the links in the second half of the cycles: then no
connection is closed, packets vanish in one direction or both, and only timeouts tell. `--links` chooses one of the two.

An idempotent producer writes to every partition without a pause, and a consumer reads along. Beside it a group of each
kind reads and commits, with two members. After each cycle all faults are healed, and all replicas must be in sync and
all groups up to date again, without the help of a human. Then everything is read back: every acknowledged record is
there once, in order and at its offset, and in the end the consumer has seen the same. The groups have skipped nothing,
no committed offset has gone back, and what they read twice is what they had read and not committed when a partition
changed hands. Everything is read back even if the cluster has not come back by itself.

Each phase has a deadline. If one passes, the stacks of this program and the states of the nodes are printed, and the
run ends with the report so far (`chaos_watch`).

`--history FILE` keeps what was sent and acknowledged, as JSON lines (`chaos_report` describes them). With `--audit` the
pipeline audit on Spark reads that file at the end of each cluster, and must count what this checker counts.
`--pause-ms 0.2 --no-groups` makes a million records in some minutes.
"""

import argparse
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from brokers import unique
from chaos_report import Audit, Counts, Cycle, Outcome, RecordingSender, Report, audit_difference
from chaos_scenarios import REPLICAS, SCENARIOS, WAIT_S_MAX, Scene
from chaos_watch import Watch
from clients_stock import close_within, confluent_consumer
from clusters import QuorumCluster
from confluent_kafka import KafkaException, TopicPartition
from failing_nodes import FailingCluster, FailingNode
from groups_crews import QUICK_GROUPS, Background, Crew, History, crews_of_each_kind
from namespaces import RemoteCluster, RemoteNode, enter, why_not

from minibroker.bench.watching import until
from minibroker.client.errors import ClientError

SETTINGS = (
    "replica.lag.time.max.ms=2000",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    *QUICK_GROUPS,
)

# A cycle waits several times, and a single wait may last WAIT_S_MAX.
CYCLE_S_MAX = 4 * WAIT_S_MAX
CLOSING_S_MAX = 2 * WAIT_S_MAX
AUDIT_S_MAX = 5 * WAIT_S_MAX

Say = Callable[[str], None]
_FAILURES = (AssertionError, ClientError, KafkaException, OSError)  # a TimeoutError is an OSError


class Load(NamedTuple):
    """What the clients do while the nodes fail."""

    pause_s: float = 0.005
    """Half the time between two records of a partition."""
    has_groups: bool = True


LOAD = Load()


class PatientNode(FailingNode):
    """A node of a machine that may be busy with other work."""

    ready_s_max = stopped_s_max = WAIT_S_MAX


class ProxiedCluster(FailingCluster):
    kind = PatientNode


class RemotePatientNode(RemoteNode, PatientNode):
    """The same with a link of its own."""


class KernelCluster(RemoteCluster, FailingCluster):
    kind = RemotePatientNode


class Reader:
    """A consumer of all partitions, which must see every offset once and in order."""

    def __init__(self, cluster: QuorumCluster, topic: str) -> None:
        self.seen: list[list[bytes]] = [[] for _ in REPLICAS]
        self.complaints: list[str] = []
        self.is_closed = True
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
        self.is_closed = close_within(self._consumer)

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


class Chaos:
    """The cycles with one cluster, which add to a report."""

    def __init__(
        self,
        cluster: FailingCluster,
        report: Report,
        watch: Watch,
        *,
        seed: int,
        say: Say,
        history: TextIO | None,
        load: Load,
    ) -> None:
        self._cluster = cluster
        self._watch = watch
        self._chance = random.Random(seed)
        self._say = say
        self._history = history
        self._load = load
        self._report = report
        self._groups: dict[str, History] = {}
        self._counts = Counts()
        self._title = ""

    def run(self, names: Sequence[str]) -> None:
        self._begin("the beginning", CYCLE_S_MAX)
        topic = self._cluster.create(unique("chaos"), REPLICAS, min_insync_replicas=2)
        # A client with long timeouts would wait longer for a dead node than the cluster needs.
        load = {"partitions": len(REPLICAS), "pause_s": self._load.pause_s, "timeout_ms": 1000}
        with ExitStack() as stack:
            grouped = partial(crews_of_each_kind, self._cluster.bootstrap, [topic], unique, is_orderly=False)
            crews = stack.enter_context(grouped()) if self._load.has_groups else {}
            self._groups = {kind: crew.history for kind, crew in crews.items()}
            reader = stack.enter_context(Reader(self._cluster, topic))
            sender = stack.enter_context(RecordingSender(self._cluster, topic, self._history, **load))
            for crew in crews.values():
                crew.hire(2)
            with Background(crews.values()):
                self._play(names, Scene(self._cluster, topic, sender, self._chance))
                self._begin("the groups end", CLOSING_S_MAX)
            self._report.groups += self._groups.items()
            self._check(sender, reader, crews)
            self._begin("the clients close", CLOSING_S_MAX)
        if not reader.is_closed:
            self._report.notes.append("the consumer without a group did not close: see `close_within`")

    def _begin(self, title: str, seconds_max: float) -> None:
        self._title = title
        self._watch.begin(title, seconds_max)

    def _play(self, names: Sequence[str], scene: Scene) -> None:
        """Play the scenarios, until the cluster does not come back from one."""
        audit = Audit(scene.sender)
        try:
            scene.await_acks()
            for number, name in enumerate(names, start=1):
                self._begin(f"{number}/{len(names)}: {name}", CYCLE_S_MAX)
                self._cycle(name, scene, audit)
            self._begin("the end", CYCLE_S_MAX)
            scene.sender.finish()
            self._await_groups([scene.sender.sent] * len(REPLICAS), scene.topic)
        except _FAILURES as error:
            self._report.humans += 1
            self._complain(error)
            self._watch.describe()
            scene.sender.end()

    def _complain(self, error: BaseException) -> None:
        self._report.complaints.append(f"{self._title}: {error}")
        self._say(self._report.complaints[-1])

    def _cycle(self, name: str, scene: Scene, audit: Audit) -> None:
        scene.begin()
        words = SCENARIOS[name](scene)
        scene.await_acks()
        scene.check_nodes()
        for node in self._cluster.nodes.values():
            node.mend()
        self._cluster.repair()
        scene.await_in_sync()
        scene.await_acks()
        cycle = Cycle.of(scene.sender.acked_s, moments_s=scene.moments_s, ended_s=time.monotonic())
        counts = self._count(scene, audit)
        self._report.outcomes.setdefault(name, Outcome()).add(cycle, counts)
        self._say(f"{self._title}: {words}: {cycle.text()}: {counts.text()}")

    def _count(self, scene: Scene, audit: Audit) -> Counts:
        """Read back what was written; return what has come since the last cycle."""
        tally = audit.tally()
        self._await_groups([len(it) for it in audit.logs], scene.topic)
        before, self._counts = self._counts, Counts.of(tally, self._groups.values())
        return self._counts.plus(before, -1)

    def _await_groups(self, ends: Sequence[int], topic: str) -> None:
        """Wait until every group has read and committed everything up to these offsets."""
        everything = {(topic, partition): end for partition, end in enumerate(ends)}
        for kind, history in self._groups.items():
            until(partial(history.has_read, everything), f"group {kind} has read all", seconds=WAIT_S_MAX)

    def _check(self, sender: RecordingSender, reader: Reader, crews: dict[str, Crew]) -> None:
        """Read everything back, whatever has happened."""
        self._begin("the read-back", CYCLE_S_MAX)
        try:
            self._compare(sender, reader)
            for crew in crews.values():
                crew.history.check_committed(crew.committed())
        except _FAILURES as error:
            self._complain(error)
        for number, node in self._cluster.nodes.items():
            if node.complaints():
                self._report.complaints.append(f"node {number}: {node.complaints()}")

    def _compare(self, sender: RecordingSender, reader: Reader) -> None:
        # Everything is read again from the beginning, and not only what has come since the last cycle.
        audit = Audit(sender)
        tally, found = audit.tally(), audit.logs
        self._report.total = self._report.total.plus(Counts.of(tally, self._groups.values()))
        self._report.complaints += reader.complaints
        for partition, values in enumerate(reader.seen):
            if values != found[partition][: len(values)]:
                self._report.complaints.append(f"{partition}: the consumer has seen something else than there is")


def run(
    path: Path,
    names: Sequence[str],
    *,
    seed: int,
    say: Say,
    report: Report | None = None,
    watch: Watch | None = None,
    is_remote: bool = False,
    history: TextIO | None = None,
    audits: bool = False,
    load: Load = LOAD,
) -> Report:
    """Play scenarios on a cluster of their own; return the report."""
    found = Report() if report is None else report
    watched = watch or Watch(say, found.complaints.append)
    kernel = partial(KernelCluster, path, *SETTINGS)
    with kernel() if is_remote else ProxiedCluster(path, *SETTINGS, is_proxied=True) as cluster:
        watched.look_at(cluster)
        before, begun = found.total, history.tell() if history is not None else 0
        Chaos(cluster, found, watched, seed=seed, say=say, history=history, load=load).run(names)
        if audits and history is not None:
            watched.begin("the audit", AUDIT_S_MAX)
            difference = audit_difference(cluster.bootstrap, history, begun, found.total.plus(before, sign=-1))
            found.complaints += difference
            say(f"audit on Spark: {difference[0] if difference else 'the same counts'}")
        watched.begin("the nodes stop", CLOSING_S_MAX)
        if not found.is_well:
            # A stop could fail as well, and the report would be lost.
            for node in cluster.nodes.values():
                node.kill()
    watched.end()
    return found


def plan(names: Sequence[str], *, cycles: int, seed: int) -> list[str]:
    """Which scenario each cycle plays: every one once before any is played again, in an order that chance decides."""
    chance, found = random.Random(seed), list[str]()
    while len(found) < cycles:
        found += chance.sample(names, len(names))
    return found[:cycles]


def shares(names: Sequence[str], links: str) -> dict[str, Sequence[str]]:
    """Which scenarios run with which links. Links that this machine does not allow are left out, with a message."""
    if links == "proxy":
        return {"proxy": names}
    reason = why_not()
    if reason is not None:
        print(f"chaos: links are not cut in the kernel: {reason}", flush=True)
        return {"proxy": names} if links == "both" else {}
    half = len(names) - len(names) // 2
    return {"kernel": names} if links == "kernel" else {"proxy": names[:half], "kernel": names[half:]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Nodes, disks, links and clients fail under load.")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="may be given again")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and do nothing")
    parser.add_argument("--links", choices=("both", "proxy", "kernel"), default="both", help="what cuts them")
    parser.add_argument("--pause-ms", type=float, default=1000 * LOAD.pause_s, help="half the time between two records")
    parser.add_argument("--no-groups", action="store_true", help="no groups read, which allows more records a second")
    parser.add_argument("--history", type=Path, metavar="FILE", help="keep what was sent and acknowledged")
    parser.add_argument("--audit", action="store_true", help="compare with the audit on Spark; needs --history")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{name:22} {it.__doc__}" for name, it in SCENARIOS.items()))
        return
    names = plan(options.scenario or list(SCENARIOS), cycles=options.cycles, seed=options.seed)
    with options.history.open("w") if options.history else nullcontext() as history:
        load = Load(options.pause_ms / 1000, has_groups=not options.no_groups)
        settings = {"history": history, "audits": options.audit, "load": load}
        report = _run_all(shares(names, options.links), options.seed, **settings)
    print(report.text(), flush=True)
    # A client that did not close would keep the interpreter from ending.
    os._exit(not report.is_well)


def _run_all(parts: dict[str, Sequence[str]], seed: int, *, history: TextIO | None, **others: Any) -> Report:
    report = Report()
    watch = Watch(_say, partial(_end_early, report, history), is_last=True)
    for links, names in parts.items():
        if links == "kernel":
            enter()
        print(f"chaos: {len(names)} cycles, links are cut by the {links}", flush=True)
        path = Path(tempfile.mkdtemp(prefix="chaos-"))
        settings = partial(run, is_remote=links == "kernel", history=history, **others)
        settings(path, names, seed=seed, say=_say, report=report, watch=watch)
        if report.is_well:
            shutil.rmtree(path)
        else:
            print(f"chaos: the data and the logs of the nodes are in {path}", flush=True)
    return report


def _end_early(report: Report, history: TextIO | None, reason: str) -> None:
    """Print what is known, because the process ends now."""
    report.complaints.append(reason)
    if history is not None:
        history.flush()
    print(report.text(), flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
