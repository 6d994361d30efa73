"""Spark copies exactly once while workers, drivers, executors and brokers die: `python tests/chaos_spark.py`.

A producer feeds a topic on a cluster of three nodes. A query of Spark copies it with `delivery=exactly-once`
(`chaos_spark_query`). One kill follows the other: each time the copy must catch up by itself. A reader of committed
records checks all the while that every partition of the copy has the numbers 0, 1, 2, …: none is missing, none is
there twice, none is out of order. The first part runs on `local[2,4]`, the second on `local-cluster[2,1,1024]`, where
executors are processes and speculation is on.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokers import unique
from chaos_spark_query import ORDERS, REACHED
from spark_settings import QUICK

from minibroker.bench.local import LocalCluster
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, Consumer, OffsetReset
from minibroker.clients.coordination import TRANSACTION, Coordinator
from minibroker.clients.producer import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark.options import SINK

SETTINGS = (
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
)
REPLICAS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
RATE = 300  # records per second and partition
WAIT_S_MAX = 180.0
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
CONF = {
    LOCAL: QUICK,
    CLUSTER: QUICK
    | {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"],
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "500ms",
    },
}


# The load and the check ---------------------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Writes 0, 1, 2, … to every partition of the source, at a steady rate."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = bootstrap, topic
        self._is_over = threading.Event()
        self.sent = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with Client(self._servers) as client, Producer(client, linger_ms=20) as producer:
                begun_s = time.monotonic()
                while not self._is_over.wait(max(0.0, begun_s + self.sent / RATE - time.monotonic())):
                    for partition in range(len(REPLICAS)):
                        producer.send(self._topic, b"%d" % self.sent, partition=partition)
                    self.sent += 1
        except ClientError as error:
            self.error = error

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        if self.error:
            raise self.error


class Reader(threading.Thread):
    """Reads the committed records of the copy, and notes the first number of a partition that is not the next one."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic = bootstrap, topic
        self._is_over = threading.Event()
        self.seen = [0] * len(REPLICAS)
        self.complaints: list[str] = []

    @property
    def copied(self) -> int:
        """All numbers below this one are in each partition."""
        return min(self.seen)

    def run(self) -> None:
        settings: dict[str, Any] = {"isolation_level": READ_COMMITTED, "offset_reset": OffsetReset.EARLIEST}
        positions: dict[TopicPartition, int] = {
            TopicPartition(self._topic, it): EARLIEST for it in range(len(REPLICAS))
        }
        while not self._is_over.is_set():
            # A node that dies may fail a poll. The next consumer goes on at the same place.
            with (
                contextlib.suppress(ClientError),
                Client(self._servers) as client,
                Consumer(client, max_wait_ms=100, **settings) as consumer,
            ):
                consumer.assign(positions, positions)
                while not self._is_over.is_set():
                    for fetched in consumer.poll(200):
                        self._take(fetched.partition, [int(it.value or b"-1") for it in fetched])
                        positions[fetched.topic_partition] = fetched.next_offset

    def _take(self, partition: int, numbers: list[int]) -> None:
        for number in numbers:
            if number != self.seen[partition]:
                self.complaints.append(f"partition {partition}: {number} instead of {self.seen[partition]}")
            self.seen[partition] = number + 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Child:
    """The process with the driver; its JVM, its executors and its workers are of the same session."""

    def __init__(self, path: Path, given: dict[str, Any]) -> None:
        self.orders = path / "orders"
        self.orders.mkdir(exist_ok=True)
        self._log = path / "spark.log"
        self._given = given
        self._checkpoint = Path(given["write"]["checkpointLocation"])
        self.ended_alone: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("chaos_spark_query.py")), json.dumps(self._given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ
                | {ORDERS: str(self.orders), "PYTHONPATH": str(Path(__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._sessions.add(self._process.pid)

    def kill(self) -> None:
        """Kill the driver with its JVM. Executors and workers die when they notice, or a moment later."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Kill the driver and whatever it has left."""
        self.kill()
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def revive(self) -> None:
        """Start the driver again if it ended by itself, and note why."""
        if self._process is not None and self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            told = [it for it in lines if "minibroker." in it or "Exception" in it] or lines or ["no output"]
            self.ended_alone.append(told[-1][:300])
            self.start()

    def executors(self) -> list[int]:
        """The process ids of the executors."""
        return [pid for pid in self._members() if b"CoarseGrainedExecutorBackend" in _command(pid)]

    def _members(self) -> list[int]:
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) in self._sessions]

    @property
    def transactional_id(self) -> str:
        """The transactional id of the first Spark partition."""
        lines = (self._checkpoint / "metadata").read_text().splitlines()
        query_id = next(json.loads(it)["id"] for it in lines if it.startswith("{"))
        return f"{SINK}-{query_id}-0"


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _session(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # The name, in parentheses, may contain blanks. The session is the fourth field after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    return -1


# Kills --------------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """What a kill can hit."""

    cluster: LocalCluster
    target: str
    child: Child
    chance: random.Random

    def give(self, order: str) -> None:
        """Give an order, and wait until a process carries it out."""
        path = self.child.orders / order
        path.touch()

        def is_obeyed() -> bool:
            self.child.revive()
            return not path.exists()

        until(is_obeyed, f"{order} is obeyed", seconds=WAIT_S_MAX)

    def kill_driver(self, order: str) -> str:
        reached = self.child.orders / (order + REACHED)
        reached.unlink(missing_ok=True)
        self.give(order)
        until(reached.exists, f"{order} is reached", seconds=WAIT_S_MAX)
        self.child.kill()
        self.child.start()
        return "kill -9 of driver and JVM"

    def kill_node(self, number: int, what: str) -> str:
        self.cluster[number].kill()
        return f"node {number}, {what}"


def worker_before_commit(scene: Scene) -> str:
    """A Python worker dies when it has sent all rows of its task."""
    scene.give("worker-before-commit")
    return "kill -9 of a Python worker"


def worker_after_commit(scene: Scene) -> str:
    """A Python worker dies just after it has committed its transaction."""
    scene.give("worker-after-commit")
    return "kill -9 of a Python worker"


def task_error(scene: Scene) -> str:
    """The input of a task fails in the middle."""
    scene.give("task-error")
    return "an exception in a task"


def driver_in_batch(scene: Scene) -> str:
    """The driver dies while a task is about to commit; the worker lives on for a moment, and tries to."""
    return scene.kill_driver("driver-in-batch")


def driver_in_commit(scene: Scene) -> str:
    """The driver dies within commit(), when all tasks have committed."""
    return scene.kill_driver("driver-in-commit")


def leader(scene: Scene) -> str:
    """The leader of a partition of the copy dies, and comes back."""
    with Client(scene.cluster.bootstrap) as client:
        number = client.leader(scene.target, scene.chance.randrange(len(REPLICAS)))
    return scene.kill_node(number, "leader of a partition")


def coordinator(scene: Scene) -> str:
    """The coordinator of the transactions dies, and comes back."""
    with Client(scene.cluster.bootstrap) as client:
        number = client.run(Coordinator(client.core, scene.child.transactional_id, TRANSACTION).find())
    return scene.kill_node(number, "coordinator of transactions")


def executor(scene: Scene) -> str:
    """An executor dies; Spark starts another one."""
    pids = until(scene.child.executors, "an executor runs", seconds=WAIT_S_MAX)
    os.kill(scene.chance.choice(pids), signal.SIGKILL)
    return "kill -9 of an executor"


def speculation(scene: Scene) -> str:
    """A slow attempt is overtaken by a second one, which fences it."""
    scene.give("task-slow")
    return "two attempts at the same task"


Kill = Callable[[Scene], str]
CHEAP: tuple[Kill, ...] = (worker_before_commit, worker_after_commit, task_error, leader, coordinator)
KILLS: dict[str, tuple[Kill, ...]] = {
    LOCAL: (*CHEAP, driver_in_batch, driver_in_commit),
    CLUSTER: (*CHEAP, executor, speculation),
}


def plan(kills: int, chance: random.Random) -> dict[str, list[Kill]]:
    """Choose the kills of each part: all kinds, and most often those that do not need a new JVM."""
    chosen: dict[str, list[Kill]] = {}
    for master, kinds in KILLS.items():
        count = kills - kills // 3 if master == LOCAL else kills // 3
        # A driver takes three times as long to come back as an executor.
        rare = [it for it in kinds if it not in CHEAP] * max(1, count // (11 if master == LOCAL else 5))
        many = [kinds[it % len(CHEAP)] for it in range(max(0, count - len(rare)))]
        chosen[master] = [*rare, *many][:count]
        chance.shuffle(chosen[master])
    return chosen


# A run --------------------------------------------------------------------------------------------------------------


@dataclass
class Summary:
    """The result of all kills."""

    kinds: Counter[str] = field(default_factory=Counter)
    copied: int = 0
    complaints: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    @property
    def is_well(self) -> bool:
        return not self.complaints

    def text(self) -> str:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.kinds.items()))
        result = "exact" if self.is_well else "NOT EXACT"
        total = f"{self.kinds.total()} kills ({kinds}): {self.copied:,} records copied, {result};"
        return "\n".join([*self.complaints[:20], f"chaos-spark: {total} longest recovery {self.longest_s:.1f} s"])


class Rounds:
    """The kills on one cluster, one query for each master."""

    def __init__(self, cluster: LocalCluster, path: Path, chance: random.Random, say: Callable[[str], None]) -> None:
        self._cluster, self._path, self._chance, self._say = cluster, path, chance, say
        self.summary = Summary()

    def run(self, plans: dict[str, list[Kill]]) -> Summary:
        total = sum(map(len, plans.values()))
        for master, kills in plans.items():
            if kills and self.summary.is_well:
                self._say(f"on {master}:")
                self._part(master, kills, total)
        return self.summary

    def _part(self, master: str, kills: Sequence[Kill], total: int) -> None:
        source, target = (self._cluster.create(unique(it), REPLICAS, min_insync_replicas=2) for it in ("from", "to"))
        child = Child(self._path, self._given(master, source, target))
        feeder, reader = Feeder(self._cluster.bootstrap, source), Reader(self._cluster.bootstrap, target)
        scene = Scene(self._cluster, target, child, self._chance)
        try:
            for it in (child, feeder, reader):
                it.start()
            self._await_copied(child, reader, 1)
            for kill in kills:
                self._kill(kill, scene, feeder, reader, f"{self.summary.kinds.total() + 1}/{total}")
            feeder.stop()
            self._await_copied(child, reader, feeder.sent)
        except (AssertionError, ClientError, OSError) as error:
            self.summary.complaints.append(f"{type(error).__name__}: {error}")
        finally:
            reader.stop()
            child.close()
            self.summary.copied += sum(reader.seen)
            self.summary.complaints += reader.complaints[:5]
            self.summary.complaints += [f"the query ended by itself: {it}" for it in child.ended_alone]

    def _given(self, master: str, source: str, target: str) -> dict[str, Any]:
        common = {"kafka.bootstrap.servers": self._cluster.bootstrap}
        checkpoint = str(self._path / f"checkpoint-{target}")
        write = {"topic": target, "checkpointLocation": checkpoint, "kafka.transaction.timeout.ms": "15000"}
        read = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "6000"}
        conf = CONF[master] | {f"spark.executorEnv.{ORDERS}": str(self._path / "orders")}
        return {"master": master, "conf": conf, "read": common | read, "write": common | write}

    def _kill(self, kill: Kill, scene: Scene, feeder: Feeder, reader: Reader, number: str) -> None:
        name = kill.__name__.replace("_", "-")
        begun_s = time.monotonic()
        words = kill(scene)
        sent = feeder.sent
        self._await_copied(scene.child, reader, sent)
        lasted_s = time.monotonic() - begun_s
        self._cluster.repair()
        self._await_in_sync(scene.target)
        self.summary.kinds[name] += 1
        self.summary.longest_s = max(self.summary.longest_s, lasted_s)
        self._say(f"{number}: {name}: {words}; {reader.copied * len(REPLICAS):,} copied after {lasted_s:.1f} s, exact")

    def _await_copied(self, child: Child, reader: Reader, count: int) -> None:
        def is_copied() -> bool:
            child.revive()
            assert not reader.complaints, reader.complaints[0]
            return reader.copied >= count

        until(is_copied, f"{count} numbers of each partition are copied", seconds=WAIT_S_MAX, every_s=0.05)

    def _await_in_sync(self, topic: str) -> None:
        for partition, members in enumerate(REPLICAS):
            self._cluster.await_isr(topic, *members, partition=partition)


def main() -> None:
    parser = argparse.ArgumentParser(description="Spark copies exactly once, while workers, drivers and brokers die.")
    parser.add_argument("--kills", type=int, default=51)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the kills, and do nothing")
    options = parser.parse_args()
    if options.list:
        kinds = {it.__name__.replace("_", "-"): it.__doc__ for kinds in KILLS.values() for it in kinds}
        print("\n".join(f"{name:22} {about}" for name, about in kinds.items()))
        return
    path, chance = Path(tempfile.mkdtemp(prefix="chaos-spark-")), random.Random(options.seed)
    with LocalCluster(path / "cluster", *SETTINGS) as cluster:
        rounds = Rounds(cluster, path, chance, lambda it: print(it, flush=True))
        summary = rounds.run(plan(options.kills, chance))
    if summary.is_well:
        shutil.rmtree(path)
    else:
        print(f"chaos-spark: the data and the logs are in {path}", flush=True)
    print(summary.text(), flush=True)
    sys.exit(not summary.is_well)


if __name__ == "__main__":
    main()
