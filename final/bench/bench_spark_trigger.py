"""The time of a stream's trigger with little work: our source and sink compared with Spark's rate source."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.spark_stage import OURS, Stage
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from minibroker.bench import Bar, Benchmark, Case, Context, scaled

ROWS = 100  # in each trigger
TRIGGERS = scaled(full=10, quick=1)
WARM = scaled(full=5, quick=0)  # triggers before the clock starts
SECONDS_MAX = 120
POLL_S = 0.005
RATE = "Spark's rate → noop"
SOURCE = "minibroker → noop"
BOTH = "minibroker → minibroker"
ONCE = "minibroker → minibroker, exactly once"

Start = Callable[[str], StreamingQuery]


def benchmark(context: Context) -> Benchmark:
    stage = Stage(context)
    # More rows than all rounds can read; the rest stays unread.
    topic = stage.filled_topic(ROWS * scaled(full=5_000, quick=100), 100)
    starts: dict[str, Start] = {
        RATE: lambda folder: start(rate(stage), "noop", folder),
        SOURCE: lambda folder: start(read(stage, topic), "noop", folder),
        BOTH: lambda folder: start(read(stage, topic), OURS, folder, **sink_options(stage)),
        ONCE: lambda folder: start(read(stage, topic), OURS, folder, delivery="exactly-once", **sink_options(stage)),
    }
    return Benchmark(
        f"A trigger with {ROWS} rows, one task slot",
        [case(context, stage, name, run) for name, run in starts.items()],
        bars=[
            Bar(SOURCE, "ratio", at_least=0.4),
            Bar(BOTH, "ratio", at_least=0.3),
            Bar(ONCE, "ratio", at_least=0.67, against=BOTH),
        ],
        metric="ms_per_op",
        columns=["ms_per_op"],
        note=(
            "An operation is one trigger: plan, log the offsets, run one task, log the commit. The checkpoint is on the"
            " disk under test. A ratio of 0.5 is twice the time."
        ),
    )


def rate(stage: Stage) -> DataFrame:
    options = {"rowsPerBatch": ROWS, "numPartitions": 1}
    rows = stage.spark.readStream.format("rate-micro-batch").options(**options).load()
    return rows.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")


def read(stage: Stage, topic: str) -> DataFrame:
    options = stage.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS))
    return stage.spark.readStream.format(OURS).options(**options).load().select("value")


def sink_options(stage: Stage) -> dict[str, str]:
    return {"kafka.bootstrap.servers": stage.broker.address, "topic": stage.new_topic()}


def start(rows: DataFrame, sink: str, folder: str, **options: str) -> StreamingQuery:
    writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", folder)
    return writer.trigger(processingTime="0 seconds").start()


def case(context: Context, stage: Stage, name: str, run: Start) -> Case:
    """Make a case that times some triggers of a query, which has started and warmed up before."""
    queries: list[StreamingQuery] = []
    begun: list[Path] = []

    def begin() -> None:
        begun.append(context.directory / f"checkpoint-{id(queries)}-{len(begun)}")
        queries.append(run(str(begun[-1])))
        await_trigger(queries[0], WARM)

    def count() -> None:
        await_trigger(queries[0], last(queries[0]) + TRIGGERS)

    return Case(
        name,
        count,
        operations_count=TRIGGERS,
        limit="" if name == RATE else RATE,
        series="limit" if name == RATE else "",
        before=begin,
        after=partial(end, queries),
        cpu_s=stage.cpu_s,
    )


def end(queries: list[StreamingQuery]) -> None:
    query = queries.pop()
    query.stop()
    error: Any = query.exception()
    assert error is None, str(error)


def last(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def await_trigger(query: StreamingQuery, number: int) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    while last(query) < number:
        assert query.isActive, str(query.exception())
        assert time.monotonic() < deadline_s, f"trigger {number} did not end within {SECONDS_MAX} s"
        time.sleep(POLL_S)
