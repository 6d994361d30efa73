"""Audits deliveries: compares what producers were told with what is in the log, partition by partition.

The history is a file of JSON lines, one for each record whose outcome a producer knows; `make chaos` writes such files:

    {"producer": "chaos", "topic": "chaos-1", "partition": 0, "sequence": 17, "offset": 17,
     "sent_ms": 1700000000000, "acked_ms": 1700000000004, "error": null}

The number of a record is its header `sequence`, or else its value; the numbers of a partition rise. Records without a
number are left out. A record is *lost* if it was acknowledged and is not in the log; *twice* if it is in the log more
than once; *out of order* if the log has a larger number just before it; *elsewhere* if it is at another offset than the
acknowledgement said.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from minibroker.pipelines.errors import PipelineError
from minibroker.pipelines.histories import Counts, Example, Findings
from minibroker.pipelines.running import FORMAT, prepare_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE = (
    "producer STRING, topic STRING, partition INT, sequence BIGINT, offset BIGINT, sent_ms BIGINT, acked_ms BIGINT,"
    " error STRING"
)
NUMBER = "try_cast(string(coalesce(get(filter(headers, it -> it.key = 'sequence'), 0).value, value)) AS BIGINT)"
PLACE = ["topic", "partition"]
RECORD = [*PLACE, "sequence"]
EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Audit:
    """The settings of the pipeline."""

    bootstrap: str
    history: Path


def run(spark: "SparkSession", settings: Audit) -> Findings:
    """Compare a history with the topics that it names."""
    history = spark.read.schema(LINE).json(str(settings.history)).cache()
    try:
        topics = topics_of(history, settings.history)
        prepare_topics(settings.bootstrap, read=topics)
        reader = spark.read.format(FORMAT).option("kafka.bootstrap.servers", settings.bootstrap)
        log = reader.options(subscribe=",".join(topics), includeHeaders="true").load()
        numbered = log.select(*PLACE, "offset", f.expr(NUMBER).alias("sequence"))
        return compared(history, numbered.where("sequence IS NOT NULL"))
    finally:
        history.unpersist()


def topics_of(history: DataFrame, path: Path) -> list[str]:
    """Return the topics of a history; lines of another form are an error."""
    is_wrong = f.col("topic").isNull() | f.col("partition").isNull() | f.col("sequence").isNull()
    row = history.agg(f.count_if(is_wrong).alias("wrong"), f.sort_array(f.collect_set("topic")).alias("topics")).first()
    assert row is not None, "an aggregate without groups has one row"
    if row["wrong"]:
        raise PipelineError(
            f"{path} has {row['wrong']} lines without topic, partition or sequence: it is not a history"
        )
    return list(row["topics"])


# The comparison -----------------------------------------------------------------------------------------------------


def compared(history: DataFrame, log: DataFrame) -> Findings:
    """Compare the acknowledged records with all records of the log: topic, partition, offset and sequence."""
    acked = history.where(f.col("error").isNull())
    records = _records(acked, log).cache()
    steps = _steps(log).cache()
    try:
        return Findings(_counts(records, steps), _examples(records, steps), *_times(acked))
    finally:
        records.unpersist()
        steps.unpersist()


def _records(acked: DataFrame, log: DataFrame) -> DataFrame:
    """Return every record that was acknowledged or is in the log, with a number for each kind of problem."""
    told = acked.groupBy(*RECORD).agg(f.max("offset").alias("told"), f.lit(1).alias("is_acked"))
    found = log.groupBy(*RECORD).agg(f.max("offset").alias("place"), f.count("*").alias("copies"))
    both = told.join(found, RECORD, "full_outer").fillna({"is_acked": 0, "copies": 0})
    is_elsewhere = f.coalesce(f.col("told") != f.col("place"), f.lit(False))
    return both.select(
        *RECORD,
        "is_acked",
        "copies",
        (f.col("is_acked") * (f.col("copies") == 0).cast("int")).alias("lost"),
        f.greatest(f.col("copies") - 1, f.lit(0)).alias("twice"),
        is_elsewhere.cast("int").alias("elsewhere"),
    )


def _steps(log: DataFrame) -> DataFrame:
    """Return the records of the log that have a smaller number than the record before them."""
    before = f.lag("sequence").over(Window.partitionBy(*PLACE).orderBy("offset"))
    return log.withColumn("before", before).where("sequence < before").select(*RECORD)


def _counts(records: DataFrame, steps: DataFrame) -> dict[tuple[str, int], Counts]:
    names = ("is_acked", "copies", "lost", "twice", "elsewhere")
    sums = records.groupBy(*PLACE).agg(*(f.sum(it).alias(it) for it in names))
    disorder = steps.groupBy(*PLACE).agg(f.count("*").alias("out_of_order"))
    rows = sums.join(disorder, PLACE, "left").fillna(0).orderBy(*PLACE).collect()
    order = ("is_acked", "copies", "lost", "twice", "out_of_order", "elsewhere")
    return {(row["topic"], row["partition"]): Counts(*(row[it] for it in order)) for row in rows}


def _examples(records: DataFrame, steps: DataFrame) -> list[Example]:
    """Return the first records with each problem."""
    wrong = {it: records.where(f"{it} > 0") for it in ("lost", "twice", "elsewhere")} | {"out of order": steps}
    first = [
        rows.select(f.lit(problem), *RECORD).orderBy(*RECORD).limit(EXAMPLES_MAX) for problem, rows in wrong.items()
    ]
    return sorted(Example(*row) for row in reduce(DataFrame.union, first).collect())


def _times(acked: DataFrame) -> tuple[list[tuple[int, int]], int]:
    """Return the number of acknowledgements in each second, and the longest time without one."""
    second = f.floor(f.col("acked_ms") / 1000).alias("second")
    seconds = acked.groupBy(second).agg(
        f.count("*").alias("count"), f.sort_array(f.collect_set("acked_ms")).alias("times")
    )
    within = f.expr("array_max(zip_with(slice(times, 2, size(times)), times, (after, before) -> after - before))")
    edges = [f.get("times", f.lit(0)).alias("first"), f.array_max("times").alias("last")]
    rows = seconds.select("second", "count", *edges, within.alias("within")).orderBy("second").collect()
    between = [after["first"] - before["last"] for before, after in pairwise(rows)]
    inside = [row["within"] for row in rows if row["within"] is not None]
    return [(row["second"], row["count"]) for row in rows], max([0, *between, *inside])
