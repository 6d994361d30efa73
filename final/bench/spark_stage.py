"""The shared parts of the Spark connector's benchmarks: one session for all of them, and a broker for each.

The session has one task slot, so that rows per second are those of one core for the task. Spark's work on a row, in the
JVM, runs in parallel with Python's. CPU time is that of the JVM and of all its Python processes together.
"""

import atexit
import functools
import json
import os
import random
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
from bench import spark_jars
from bench.spark_peers import Confluent, Tuples, Watched
from pyspark.sql import DataFrame, SparkSession

from minibroker.bench import Context, children
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.fetching import LATEST
from minibroker.segments.checkpoint import TopicPartition
from minibroker.spark import writing
from minibroker.spark.connecting import close_clients
from minibroker.spark.java import session
from minibroker.spark.options import ClientSettings

OURS, ONCE, KAFKA = "minibroker", "minibroker, exactly once", "kafka"
CHUNK_ROWS = 10_000
# Nothing is flushed, and no record is deleted during a measurement.
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.minBatchesToRetain": "5",
}

_PROCESSES = Path("/proc")


@functools.cache
def spark_kafka() -> tuple[str, list[Path]] | None:
    """Return the version and the jars of Spark's own connector; if it is not available, print the reason once."""
    try:
        return spark_jars.find()
    except spark_jars.Missing as reason:
        print(f"Spark's own Kafka connector is left out: {reason}", flush=True)
        return None


@functools.cache
def shared_session() -> SparkSession:
    """Return the session, which starts with the first benchmark that needs it and ends with the process."""
    found = spark_kafka()
    jars = {"spark.jars": ",".join(map(str, found[1]))} if found else {}
    spark = session("bench", "local[1]", **CONF, **jars)
    atexit.register(spark.stop)
    for source in (Tuples, Confluent, Watched):
        spark.dataSource.register(source)
    return spark


class Stage:
    """A broker, its topics, and a session that reads and writes them."""

    def __init__(self, context: Context) -> None:
        self.spark = shared_session()
        self.broker = children.serve(context)
        self._client = Client(self.broker.address)
        context.on_close(self._client.close)
        context.on_close(close_clients)
        self._numbers = count()
        self._clock = TreeClock(self.spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]

    # Topics -----------------------------------------------------------------------------------------------------------

    def new_topic(self, partitions: int = 1) -> str:
        """Create a topic with a new name."""
        name = f"topic-{next(self._numbers)}"
        admin.create_topics(self._client, [admin.NewTopic(name, partitions=partitions, configs=KEPT)])
        return name

    def filled_topic(self, row_count: int, size: int, partitions: int = 1) -> str:
        """Create a topic with rows of about a given size, spread evenly over its partitions."""
        name = self.new_topic(partitions)
        rows = chunks(row_count, size, partitions)
        writing.write(rows, writing.Delivery(ClientSettings(self.broker.address, "spark-minibroker-sink")), topic=name)
        return name

    def delete(self, topic: str) -> None:
        """Remove a topic and its files."""
        admin.delete_topics(self._client, [topic])

    def row_count(self, topic: str) -> int:
        """Count the rows of a topic with one partition, to make sure that none is missing."""
        place = TopicPartition(topic, 0)
        return int(admin.list_offsets(self._client, {place: LATEST})[place].offset)

    # Queries ----------------------------------------------------------------------------------------------------------

    def options(self, topic: str, **more: str) -> dict[str, str]:
        """Return the options that every format needs to read a topic."""
        return {"kafka.bootstrap.servers": self.broker.address, "subscribe": topic, **more}

    def read(self, source: str, topic: str, row_count: int | None = None, **more: str) -> None:
        """Read a topic, or the first rows of its one partition, and drop the rows in the JVM."""
        if row_count is not None:
            more["endingOffsets"] = json.dumps({topic: {"0": row_count}})
        rows = self.spark.read.format(source).options(**self.options(topic, **more)).load()
        rows.write.format("noop").mode("overwrite").save()

    def write(self, sink: str, topic: str, rows: DataFrame) -> None:
        """Write rows to a topic."""
        options = {"kafka.bootstrap.servers": self.broker.address, "topic": topic}
        if sink == ONCE:
            # A streaming query sets these; here each write is the first batch of a query of its own.
            for name, value in (("sql.streaming.queryId", str(uuid.uuid4())), ("streaming.sql.batchId", "0")):
                self.spark.sparkContext.setLocalProperty(name, value)
            options["delivery"] = "exactly-once"
        rows.write.format(OURS if sink == ONCE else sink).options(**options).mode("append").save()

    def cpu_s(self) -> float:
        """Return the CPU time of the JVM and of its Python processes."""
        return self._clock.cpu_s()


def chunks(row_count: int, size: int, partitions: int) -> Iterator[pa.RecordBatch]:
    """Make rows as a task of the sink gets them; values repeat, because making new ones costs more than writing."""
    values = ragged(CHUNK_ROWS, size)
    for first in range(0, row_count, CHUNK_ROWS):
        length = min(CHUNK_ROWS, row_count - first)
        places = pa.array([(first + row) % partitions for row in range(length)], pa.int32())
        yield pa.RecordBatch.from_arrays([values.slice(0, length), places], ["value", "partition"])


def ragged(count: int, size: int) -> pa.Array:
    """Make values whose sizes vary by half around `value_bytes`, the same in every run."""
    chance = random.Random(size)
    return pa.array([chance.randbytes(chance.randint(size // 2, size * 3 // 2)) for _ in range(count)], pa.binary())


class TreeClock:
    """Reads the CPU time of a process and its descendants; one that has ended counts with its last reading."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ticks: dict[int, int] = {}

    def cpu_s(self) -> float:
        """Return the CPU time so far; without /proc only this process and its ended children count."""
        if not _PROCESSES.is_dir():
            return sum(os.times()[:4])
        found: dict[int, int] = {}
        children_of: dict[int, list[int]] = {}
        for pid in (int(entry) for entry in os.listdir(_PROCESSES) if entry.isdecimal()):
            try:
                fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # State, parent, …; the twelfth and the thirteenth are the ticks in user mode and in the kernel.
            children_of.setdefault(int(fields[1]), []).append(pid)
            found[pid] = int(fields[11]) + int(fields[12])
        todo = [self._root]
        while todo:
            pid = todo.pop()
            self._ticks[pid] = found.get(pid, 0)
            todo += children_of.get(pid, [])
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")
