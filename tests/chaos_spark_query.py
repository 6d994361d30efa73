"""A query that copies a topic exactly once with Spark, and dies where it is told to: `chaos_spark` gives the orders.

An order is a file in a folder. Only one process can remove it, and that process obeys:

    worker-before-commit   the Python worker of a task kills itself when it has sent all rows
    worker-after-commit    the same just after the commit of its transaction
    task-error             the input of a task fails in the middle
    task-slow              a first attempt waits before its commit, so that Spark starts a second one (speculation)
    driver-in-batch        a task says that it is about to commit, and waits: the driver is to be killed now
    driver-in-commit       the driver says that it is in commit(), and waits

A worker that waited for the death of its driver then goes on and tries to commit: it must find that it is fenced.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

from minibroker.pipelines.running import begin
from minibroker.spark import exactly_once
from minibroker.spark.java import session
from minibroker.spark.options import WriteOptions
from minibroker.spark.progress import Commit
from minibroker.spark.sink import StreamWriter, Written
from minibroker.spark.source import MinibrokerSource

if TYPE_CHECKING:
    import pyarrow as pa

ORDERS = "MINIBROKER_CHAOS_ORDERS"
REACHED = ".reached"
WAIT_S_MAX = 60.0
SLOW_S = 6.0


def folder() -> Path:
    """The folder of the orders."""
    return Path(os.environ[ORDERS])


def is_ordered(name: str) -> bool:
    """Whether this process is the one that carries out an order."""
    with contextlib.suppress(FileNotFoundError):
        (folder() / name).unlink()
        return True
    return False


def die_if_ordered(name: str) -> None:
    if is_ordered(name):
        os.kill(os.getpid(), signal.SIGKILL)


def wait_if_ordered(name: str) -> None:
    """Say that the place is reached, and wait for the death of the driver, which this process may survive."""
    if is_ordered(name):
        # Spark's daemon hangs up on its workers when the driver is gone.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        (folder() / (name + REACHED)).touch()
        parent, deadline_s = os.getppid(), time.monotonic() + WAIT_S_MAX
        while os.getppid() == parent and time.monotonic() < deadline_s:
            time.sleep(0.05)


class Chaotic(MinibrokerSource):
    """The format `minibroker`, with a sink that obeys orders."""

    @classmethod
    def name(cls) -> str:
        return "chaotic"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ChaoticWriter":  # noqa: N802
        return ChaoticWriter(WriteOptions.parse(self.options), schema)


class ChaoticWriter(StreamWriter):
    """The sink of a stream that obeys orders."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        exactly_once.STEPS[Commit] = _commit
        return super().write(_failing(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        super().commit(messages, batchId)
        wait_if_ordered("driver-in-commit")


def _failing(rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in rows:
        yield batch
        if is_ordered("task-error"):
            raise RuntimeError("this task was ordered to fail")


def _commit(attempt: Any, step: Commit) -> None:
    die_if_ordered("worker-before-commit")
    wait_if_ordered("driver-in-batch")
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and is_ordered("task-slow"):
        time.sleep(SLOW_S)
    attempt._commit(step)
    die_if_ordered("worker-after-commit")


def start_copy(spark: Any, given: dict[str, Any]) -> Any:
    """Start the query that copies each record to the partition that it has in the source."""
    spark.dataSource.register(Chaotic)
    rows = spark.readStream.format("minibroker").options(**given["read"]).load()
    writer = rows.select("key", "value", "partition").writeStream.format("chaotic").options(**given["write"])
    return begin(writer.option("delivery", "exactly-once").trigger(processingTime="100 milliseconds").start)


def main() -> None:
    """Run the query until it ends, which it should not; the last line says why."""
    given = json.loads(sys.argv[1])
    spark = session("chaos", given["master"], **given["conf"])
    query = start_copy(spark, given)
    print(f"query {query.id}", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    # The workers import the classes of this module by its name.
    import chaos_spark_query

    chaos_spark_query.main()
