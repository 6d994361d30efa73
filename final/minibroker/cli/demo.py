"""`make demo`: three nodes, orders flowing, a Spark pipeline over them, two nodes killed, and an audit at the end.

    python -m minibroker.cli.demo [--quick]

Everything runs in a folder of its own, which is removed at the end. No process is left, even after Ctrl-C.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from minibroker.bench.local import LocalCluster
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.client.partitioners import partition_of
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, Consumer
from minibroker.clients.coordination import TRANSACTION, Coordinator
from minibroker.clients.producer import Producer
from minibroker.log.errors import ExpectedError
from minibroker.log.record import Record
from minibroker.pipelines.generator import Event, Shape, events

REPLICAS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
SETTINGS = (
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
)
TOPICS = ("orders", "revenue", "orders-dead")
SPARK_S_MAX = 120.0
RATE = 500
SEQUENCE = "sequence"
CONF = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}

INTRO = """\
minibroker demo

You will see a cluster of three nodes on this machine, orders that flow into it, and a Spark pipeline that sums them by
region and minute, exactly once. Two nodes die by kill -9 while it runs: the leader of a partition, then the coordinator
of the pipeline's transactions. At the end, every acknowledgement is compared with the log. It takes {minutes}.
"""
NEXT = """\
Read next: docs/spark.md (topics and Spark), docs/reference/spark.md#exactly-once (why no result is there twice),
and docs/course.md, which builds this broker in seven chapters.
"""


class DemoFailed(ExpectedError):
    """The demo could not go on."""


@dataclass(frozen=True)
class Plan:
    """When things happen, in seconds after the first orders were processed."""

    leader_s: float
    repair_s: float
    coordinator_s: float
    end_s: float
    minutes: str


FULL = Plan(leader_s=20, repair_s=10, coordinator_s=45, end_s=70, minutes="about two minutes")
QUICK = Plan(leader_s=3, repair_s=3, coordinator_s=9, end_s=15, minutes="less than a minute")


# The screen ---------------------------------------------------------------------------------------------------------


class Screen:
    """Events, one below the other, and on a terminal a line at the bottom that changes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._begun_s = time.monotonic()
        self._is_terminal = out.isatty()
        self._width = 0

    def event(self, text: str) -> None:
        """Show what has happened."""
        self._clear()
        print(f"  {time.monotonic() - self._begun_s:5.1f} s  {text}", file=self._out, flush=True)

    def status(self, text: str) -> None:
        """Show the numbers of this moment."""
        if self._is_terminal:
            self._clear()
            text = f"           {text}"[: shutil.get_terminal_size().columns - 1]
            self._out.write(text)
            self._out.flush()
            self._width = len(text)

    def _clear(self) -> None:
        if self._width:
            self._out.write(f"\r{' ' * self._width}\r")
            self._width = 0

    def write(self, text: str) -> None:
        """Show a paragraph."""
        self._clear()
        print(text, file=self._out, flush=True)


# The orders ---------------------------------------------------------------------------------------------------------


class Shop(threading.Thread):
    """Sends orders at a steady rate, and keeps the history of their acknowledgements."""

    def __init__(self, bootstrap: str, history: Path) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._history = history
        self._is_over = threading.Event()
        self._acked_s = time.monotonic()
        self.produced = self.acked = 0
        self.pause_s = 0.0
        self.error: ClientError | None = None

    def run(self) -> None:
        """Send until `stop`."""
        shape = Shape(bad_fraction=0.01, per_second=RATE)
        with (
            self._history.open("w") as lines,
            Client(self._servers, client_id="shop", timeout_ms=5000) as client,
            Producer(client, linger_ms=5) as producer,
        ):
            self._send(producer, events(shape, count=10**9, start_ms=time.time_ns() // 1_000_000), lines)

    def _send(self, producer: Producer, made: Iterator[Event], lines: TextIO) -> None:
        begun_s, sequences = time.monotonic(), Counter[int]()
        while not self._is_over.wait(max(0.0, begun_s + self.produced / RATE - time.monotonic())):
            event = next(made)
            partition = partition_of(event.key, len(REPLICAS))
            sequence = sequences[partition]
            sequences[partition] += 1
            note = self._noting(lines, sequence, time.time_ns() // 1_000_000)
            headers = [(SEQUENCE, b"%d" % sequence)]
            producer.send("orders", event.value, event.key, partition, headers=headers, on_delivery=note)
            self.produced += 1

    def _noting(self, lines: TextIO, sequence: int, sent_ms: int) -> Callable[[Delivery], None]:
        def note(delivery: Delivery) -> None:
            line = {"producer": "shop", "topic": delivery.topic, "partition": delivery.partition, SEQUENCE: sequence}
            line |= {"offset": delivery.offset if delivery.offset >= 0 else None, "sent_ms": sent_ms}
            line |= {"acked_ms": time.time_ns() // 1_000_000, "error": delivery.error and str(delivery.error)}
            lines.write(json.dumps(line) + "\n")
            now = time.monotonic()
            self.pause_s, self._acked_s = max(self.pause_s, now - self._acked_s), now
            self.acked += delivery.error is None

        return note

    def new_pause(self) -> None:
        """Measure the longest pause from now on."""
        self.pause_s, self._acked_s = 0.0, time.monotonic()

    def stop(self) -> None:
        """Stop sending, and wait until all orders are acknowledged."""
        self._is_over.set()
        self.join()


# The pipeline -------------------------------------------------------------------------------------------------------


class Pipeline(threading.Thread):
    """The process that runs Spark, and its last message of each kind."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._log = folder / "spark.log"
        self.told: dict[str, dict[str, Any]] = {}
        chosen = {"bootstrap": bootstrap, "checkpoint": str(folder / "checkpoint"), "interval": "300 milliseconds"}
        given = {"orders": chosen, "history": str(folder / "history.jsonl"), "conf": CONF}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "minibroker.pipelines.live", json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=os.environ | {"MINIBROKER_QUICK": "1"},
            )

    def run(self) -> None:
        """Read the messages of the process."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                self.told[told["kind"]] = told

    def await_told(self, kind: str) -> dict[str, Any]:
        """Wait for a message of this kind from the process."""
        return until(lambda: self.has_told(kind), f"Spark reports {kind}", seconds=SPARK_S_MAX, every_s=0.1)

    def has_told(self, kind: str) -> dict[str, Any]:
        """Return the last message of this kind, or an empty dict; raise if the process has failed."""
        if "failed" in self.told:
            raise DemoFailed(f"the pipeline failed: {self.told['failed']['reason']}")
        if self._process.poll() not in (None, 0):
            raise DemoFailed(f"Spark ended: {self._log.read_text(errors='replace').strip()[-300:] or 'no output'}")
        return self.told.get(kind, {})

    def finish(self) -> dict[str, Any]:
        """Have the process finish the remaining orders and audit the deliveries; return the audit."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        self.await_told("processed")
        return self.await_told("audit")

    def close(self) -> None:
        """Kill the process and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


# The demo -----------------------------------------------------------------------------------------------------------


@dataclass
class Demo:
    """One run of the demo."""

    cluster: LocalCluster
    shop: Shop
    pipeline: Pipeline
    screen: Screen
    plan: Plan

    def run(self) -> bool:
        """Play the plan; return whether everything is exact."""
        ready = self.pipeline.await_told("ready")
        self.screen.event("Spark runs: revenue per region and minute → topic revenue, invalid orders → orders-dead")
        self._watch(lambda: bool(self.pipeline.has_told("progress")), SPARK_S_MAX)
        self.screen.event("the first orders are summed")
        begun_s = time.monotonic()
        self._wait_until(begun_s + self.plan.leader_s)
        self._kill(self.cluster.leader("orders"), "the leader of orders-0")
        self._wait_until(begun_s + self.plan.coordinator_s)
        self._kill(self._coordinator(ready["ids"]["revenue"]), "the coordinator of the pipeline's transactions")
        self._wait_until(begun_s + self.plan.end_s)
        self.shop.stop()
        self.screen.event("no more orders; the pipeline sums the rest, and Spark audits the deliveries")
        audit = self.pipeline.finish()
        return self._report(audit)

    def _kill(self, number: int, what: str) -> None:
        self.shop.new_pause()
        self.cluster[number].kill()
        self.screen.event(f"kill -9 of node {number}, {what}")
        self._wait_until(time.monotonic() + self.plan.repair_s)
        self.screen.event(f"writes paused for at most {self.shop.pause_s:.1f} s; node {number} starts again")
        self.cluster.repair()

    def _coordinator(self, query_id: str) -> int:
        key = f"spark-minibroker-sink-{query_id}-0"
        with Client(self.cluster.bootstrap) as client:
            return client.run(Coordinator(client.core, key, TRANSACTION).find())

    def _wait_until(self, moment_s: float) -> None:
        self._watch(lambda: time.monotonic() >= moment_s, SPARK_S_MAX)

    def _watch(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Show the numbers until `is_over` returns true; fail after `seconds`."""
        deadline_s = time.monotonic() + seconds
        while not is_over():
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"nothing happened for {seconds:.0f} s: is the machine very busy?")
            progress = self.pipeline.has_told("progress")
            behind = progress.get("behind")
            lag = "" if behind is None else f" · batch {progress['batch']} of Spark, {behind:,} orders behind"
            self.screen.status(f"{self.shop.produced:,} orders sent, {self.shop.acked:,} acknowledged{lag}")
            time.sleep(0.2)

    def _report(self, audit: dict[str, Any]) -> bool:
        with Client(self.cluster.bootstrap) as client:
            results, dead = read_all(client, "revenue"), read_all(client, "orders-dead")
        summed = sum(json.loads(value)["orders"] for value in dict(results).values())
        total = audit["total"]
        copies = len(results) - len(set(results)) + total["twice"]
        processed = summed + len(dead)
        lost = total["lost"] + max(0, self.shop.acked - processed)
        duplicated = copies + max(0, processed - self.shop.acked)
        rows = [
            ("produced", f"{self.shop.produced:,}", "orders sent"),
            ("acknowledged", f"{self.shop.acked:,}", "by the brokers, with acks=all"),
            ("processed", f"{processed:,}", f"by Spark: {summed:,} summed, {len(dead):,} dead letters"),
            ("lost", f"{lost:,}", "acknowledged, and not in the log or not processed"),
            ("duplicated", f"{duplicated:,}", "in the log or in the results"),
            ("out of order", f"{total['out_of_order']:,}", "in a partition of the log"),
            ("longest pause", f"{audit['longest_pause_ms'] / 1000:.1f} s", "between two acknowledgements"),
        ]
        self.screen.write("")
        for name, number, about in rows:
            self.screen.write(f"  {name:14} {number:>10}   {about}")
        self.screen.write("")
        return not (lost or duplicated or total["out_of_order"])


def read_all(client: Client, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Read the committed records of a small topic, as keys and values."""
    found: list[Record] = []
    with Consumer(client, isolation_level=READ_COMMITTED, max_wait_ms=50) as consumer:
        partitions = consumer.assign_topic(topic, EARLIEST)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(it) < ends[it] for it in partitions):
            for fetched in consumer.poll(200):
                found += fetched
    return [(it.key, it.value or b"") for it in found]


def play(plan: Plan, out: TextIO) -> bool:
    """Run the demo in a folder of its own; return whether everything is exact."""
    screen = Screen(out)
    screen.write(INTRO.format(minutes=plan.minutes))
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="minibroker-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster = stack.enter_context(LocalCluster(folder / "cluster", *SETTINGS))
        for topic in TOPICS:
            cluster.create(topic, REPLICAS, min_insync_replicas=2)
        screen.event(f"three nodes run: {cluster.bootstrap}")
        pipeline = Pipeline(folder, cluster.bootstrap)
        stack.callback(pipeline.close)
        shop = Shop(cluster.bootstrap, folder / "history.jsonl")
        for it in (pipeline, shop):
            it.start()
        screen.event(f"{RATE} orders a second flow into topic orders; Spark is starting")
        is_exact = Demo(cluster, shop, pipeline, screen, plan).run()
    screen.write(NEXT)
    return is_exact


def main() -> None:
    """Run the demo; the exit code is 1 if something was lost or is there twice."""
    parser = argparse.ArgumentParser(description="A cluster, a Spark pipeline, two killed nodes, and an audit.")
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    options = parser.parse_args()
    # A stop by SIGTERM must not leave the processes either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(not play(QUICK if options.quick else FULL, sys.stdout))
    except KeyboardInterrupt:
        print("\ndemo: stopped; nothing is left behind", file=sys.stderr)
        sys.exit(130)
    except (ExpectedError, TimeoutError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
