"""Sums revenue per region in event-time windows, from topic to topic; invalid orders go to a dead-letter topic.

Two queries read the same topic, each with a checkpoint of its own below the given folder:

    orders ──▶ revenue        windows by the orders' own time, open until the watermark has passed them
           ──▶ dead letters   the unchanged record, with the problem and its offset in the headers

The result of a window is written each time it changes, under the key `region|start of the window`. The last result of a
key counts, so a topic with cleanup.policy=compact keeps the current results. The sums are exact, because Spark keeps
them in the checkpoint together with the offsets. Each result and each dead letter is written exactly once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from minibroker.pipelines.running import (
    FORMAT,
    begin,
    follow,
    prepare_topics,
    read_options,
    stream,
    triggered,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CORRUPT = "_corrupt"
ORDER = (
    "order_id STRING, customer STRING, region STRING, amount DECIMAL(12, 2), items INT, time TIMESTAMP,"
    f" {CORRUPT} STRING"
)


@dataclass(frozen=True, slots=True)
class Orders:
    """The settings of the pipeline."""

    bootstrap: str
    checkpoint: str
    topic: str = "orders"
    results: str = "revenue"
    dead_letters: str = "orders-dead"
    window: str = "1 minute"
    watermark: str = "2 minutes"
    once: bool = False
    interval: str = "1 second"
    max_per_trigger: int | None = None
    skips_lost: bool = False


def parsed(records: "DataFrame") -> "DataFrame":
    """Add the columns `order`, parsed from the value, and `problem`, which is null for a valid order."""
    order = f.from_json(f.col("value").cast("string"), ORDER, {"columnNameOfCorruptRecord": CORRUPT})
    return records.withColumn("order", order).withColumn("problem", _problem())


def _problem() -> "Column":
    is_no_order = f.col("order").isNull() | f.col(f"order.{CORRUPT}").isNotNull()
    problem = f.when(is_no_order, "not an order in JSON")
    for name in ("order_id", "region", "time", "amount"):
        problem = problem.when(f.col(f"order.{name}").isNull(), f"no {name}")
    return problem.when(f.col("order.amount") <= 0, "amount is not above 0")


def revenue(records: "DataFrame", *, window: str, watermark: str) -> "DataFrame":
    """Return the sum of each region and window, as key and value of a record."""
    good = parsed(records).where(f.col("problem").isNull()).select("order.region", "order.amount", "order.time")
    sums = good.withWatermark("time", watermark).groupBy(f.window("time", window), "region")
    totals = sums.agg(f.count("*").alias("orders"), f.sum("amount").alias("revenue"))
    start, end = (f.date_format(f.col(f"window.{it}"), "yyyy-MM-dd'T'HH:mm:ss'Z'") for it in ("start", "end"))
    value = f.struct("region", start.alias("start"), end.alias("end"), "orders", "revenue")
    return totals.select(f.concat_ws("|", "region", start).alias("key"), f.to_json(value).alias("value"))


def dead_letters(records: "DataFrame") -> "DataFrame":
    """Return the invalid records unchanged, with the problem, the partition and the offset as further headers."""
    place = f.concat_ws("-", "topic", "partition")
    headers = {"problem": f.col("problem"), "partition": place, "offset": f.col("offset")}
    structs = [
        f.struct(f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in headers.items()
    ]
    had = f.coalesce(f.col("headers"), f.array().cast(records.schema["headers"].dataType))
    bad = parsed(records).where(f.col("problem").isNotNull())
    return bad.select("key", "value", f.concat(had, f.array(*structs)).alias("headers"))


def start(spark: "SparkSession", settings: Orders) -> dict[str, "StreamingQuery"]:
    """Start both queries."""
    options = read_options(settings.max_per_trigger, skips_lost=settings.skips_lost)
    records = stream(spark, settings.bootstrap, settings.topic, options)
    sums = revenue(records, window=settings.window, watermark=settings.watermark)
    return {
        "revenue": _start_results(sums, settings),
        "dead-letters": _start_dead_letters(dead_letters(records), settings),
    }


def _start_results(rows: "DataFrame", settings: Orders) -> "StreamingQuery":
    # A sink in Python has no update mode, so the changed results of each micro-batch are written as a batch.
    def write(changed: "DataFrame", _batch_id: int) -> None:
        options = write_options(settings.bootstrap, settings.results)
        changed.write.format(FORMAT).mode("append").options(**options).save()

    return _start(rows.writeStream.outputMode("update").foreachBatch(write), settings, name="revenue")


def _start_dead_letters(rows: "DataFrame", settings: Orders) -> "StreamingQuery":
    writer = rows.writeStream.format(FORMAT).options(**write_options(settings.bootstrap, settings.dead_letters))
    return _start(writer, settings, name="dead-letters")


def _start(writer: "DataStreamWriter", settings: Orders, *, name: str) -> "StreamingQuery":
    named = writer.option("checkpointLocation", f"{settings.checkpoint}/{name}")
    return begin(triggered(named, once=settings.once, interval=settings.interval).start)


def run(spark: "SparkSession", settings: Orders) -> None:
    """Run until stopped, or with `once` up to the topic's current end."""
    prepare_topics(settings.bootstrap, read=[settings.topic], written={settings.results: -1, settings.dead_letters: -1})
    follow(start(spark, settings))
