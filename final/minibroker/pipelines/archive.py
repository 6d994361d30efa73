"""Archives a topic as Parquet files by date, each record once, compacts small files, and replays the archive.

    DIR/date=2026-05-01/4f1c09aa-0000000012-0.parquet    query 4f1c09aa, batch 12: published by a rename
    DIR/date=2026-05-01/compacted-91b2….parquet          one file made from many small ones
    DIR/_staging/                                        files being written; readers ignore names that begin with _
    DIR/_plans/                                          compactions that are decided and not done yet
    DIR/_checkpoint/                                     the offsets up to which the topic was read

Each record is in the archive once, for two reasons. A repeated batch has the same offsets, and the files of its earlier
attempt are removed first. And only batches that the checkpoint records as done are compacted. A compaction is decided
when its plan is written. If the run then dies, the next run carries out the plan.

`verify` compares an archive with its topic, record by record.

DIR is a folder that the driver and all executors see under one name. One run at a time writes to it, with a lock.
"""

import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.fetching import EARLIEST
from minibroker.pipelines.errors import ArchiveInvalid
from minibroker.pipelines.running import FORMAT, begin, follow, prepare_topics, read_options, stream, triggered
from minibroker.segments.checkpoint import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTLED_S_MAX = 30
COMPACTED = "compacted-"


@dataclass(frozen=True, slots=True)
class Archive:
    """The settings of the pipeline."""

    bootstrap: str
    directory: Path
    topic: str = "orders"
    checkpoint: str | None = None
    once: bool = False
    interval: str = "10 seconds"
    max_per_trigger: int | None = None
    skips_lost: bool = False
    compact_every: int = 10
    small_bytes: int = 32 * 1024 * 1024
    target_bytes: int = 128 * 1024 * 1024


# Topic to files -----------------------------------------------------------------------------------------------------


def run(spark: "SparkSession", settings: Archive) -> None:
    """Archive until stopped, or with `once` up to the topic's current end; then compact."""
    prepare_topics(settings.bootstrap, read=[settings.topic])
    with locked(settings.directory):
        finish_plans(settings.directory)
        # Delete the files of a run that died. Its tasks may still write, but each attempt has its own folder.
        shutil.rmtree(settings.directory / "_staging", ignore_errors=True)
        follow({"archive": start(spark, settings)})
        # The query has ended by itself, so the checkpoint records every batch as done.
        compact(spark, settings)


def start(spark: "SparkSession", settings: Archive) -> "StreamingQuery":
    """Start the query that publishes batch after batch."""
    options = read_options(settings.max_per_trigger, skips_lost=settings.skips_lost)
    records = stream(spark, settings.bootstrap, settings.topic, options)
    started, names = threading.Event(), [""]

    def publish_one(rows: "DataFrame", batch_id: int) -> None:
        # File names contain the query's id, so a query with a new checkpoint does not remove files of an earlier query.
        started.wait()
        name = f"{names[0]}-{batch_id:010}"
        # Files of an attempt that died must not be compacted, so they are removed before the compaction.
        withdraw(settings.directory, name=name)
        if batch_id and batch_id % settings.compact_every == 0:
            compact(spark, settings)
        publish(rows, settings.directory, name=name)

    writer = records.writeStream.foreachBatch(publish_one)
    writer = writer.option("checkpointLocation", settings.checkpoint or str(settings.directory / "_checkpoint"))
    trigger = triggered(writer, once=settings.once, interval=settings.interval)

    def start_one() -> "StreamingQuery":
        query = trigger.start()
        names[0] = str(query.id)[:8]
        started.set()
        return query

    return begin(start_one)


def withdraw(directory: Path, *, name: str) -> None:
    """Remove the files that an earlier attempt at a batch has published."""
    for old in directory.glob(f"date=*/{name}-*.parquet"):
        old.unlink()


def publish(rows: "DataFrame", directory: Path, *, name: str) -> None:
    """Write the rows of a batch into the staging folder, then move the files into the folders of their dates."""
    staging = directory / "_staging" / f"{name}-{uuid.uuid4().hex}"
    dated = rows.withColumn("date", f.date_format("timestamp", "yyyy-MM-dd"))
    dated.write.mode("overwrite").partitionBy("date").parquet(str(staging))
    for number, part in enumerate(sorted(staging.glob("date=*/*.parquet"))):
        place = directory / part.parent.name
        place.mkdir(exist_ok=True)
        part.rename(place / f"{name}-{number}.parquet")
    shutil.rmtree(staging)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock an archive for writing. The lock is released even if the process is killed."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "_lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveInvalid(
                f"{directory} is being written by another run: stop it, or use another folder"
            ) from None
        yield


# Small files to large ones ------------------------------------------------------------------------------------------


def compact(spark: "SparkSession", settings: Archive) -> int:
    """Merge the small files of each date into files of up to the target size; return how many were replaced."""
    groups = [
        (folder, group)
        for folder in sorted(settings.directory.glob("date=*"))
        for group in small_groups(folder, small_bytes=settings.small_bytes, target_bytes=settings.target_bytes)
    ]
    for folder, group in groups:
        _compact_group(spark, settings.directory, folder, group)
    finish_plans(settings.directory)
    return sum(len(group) for _folder, group in groups)


def small_groups(folder: Path, *, small_bytes: int, target_bytes: int) -> list[list[Path]]:
    """Return the small files of a folder in groups of at most the target size, each of two files or more."""
    groups: list[list[Path]] = [[]]
    size = 0
    for path in sorted(folder.glob("*.parquet")):
        bytes_ = path.stat().st_size
        if bytes_ >= small_bytes:
            continue
        if groups[-1] and size + bytes_ > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += bytes_
    return [group for group in groups if len(group) > 1]


def _compact_group(spark: "SparkSession", directory: Path, folder: Path, group: list[Path]) -> None:
    name = f"{COMPACTED}{uuid.uuid4().hex}"
    staging = directory / "_staging" / name
    rows = spark.read.parquet(*map(str, group))
    rows.coalesce(1).sortWithinPartitions("topic", "partition", "offset").write.mode("overwrite").parquet(str(staging))
    (made,) = staging.glob("*.parquet")
    plan = {
        "add": [str(made.relative_to(directory)), f"{folder.name}/{name}.parquet"],
        "remove": [str(path.relative_to(directory)) for path in group],
    }
    plans = directory / "_plans"
    plans.mkdir(exist_ok=True)
    (plans / f".{name}").write_text(json.dumps(plan))
    os.replace(plans / f".{name}", plans / f"{name}.json")


def finish_plans(directory: Path) -> int:
    """Carry out the compactions that were decided; a run that died may have done some of the steps."""
    plans = _plans(directory)
    for path in plans:
        plan = json.loads(path.read_text())
        for old in plan["remove"]:
            (directory / old).unlink(missing_ok=True)
        made, place = (directory / it for it in plan["add"])
        if made.exists():
            made.rename(place)
        path.unlink()
    # The remaining folders belong to compactions that died before they wrote a plan.
    for left in (directory / "_staging").glob(f"{COMPACTED}*"):
        shutil.rmtree(left)
    return len(plans)


# Files beside the topic ---------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """How an archive differs from its topic, in records. Deleted records of the topic do not count."""

    equal: int
    missing: int
    twice: int
    different: int
    extra: int
    not_archived_yet: int

    @property
    def is_well(self) -> bool:
        """Whether the archive has each record of the topic once, up to the archive's end."""
        return not (self.missing or self.twice or self.different or self.extra)

    def text(self) -> str:
        """All counts in one line."""
        wrong = f"{self.missing} missing, {self.twice} twice, {self.different} different, {self.extra} not in the topic"
        return f"{self.equal} records are equal, {wrong}; {self.not_archived_yet} are not archived yet"


def verify(spark: "SparkSession", settings: Archive) -> Comparison:
    """Compare every record of the archive with the topic: key, value, headers and time."""
    place = ["partition", "offset"]
    contents = f.xxhash64("key", "value", "headers", "timestamp")
    archived = read(spark, settings.directory).where(f.col("topic") == settings.topic)
    copies = archived.groupBy(*place).agg(f.count("*").alias("copies"), f.max(contents).alias("was"))
    ends = archived.groupBy("partition").agg(f.max("offset").alias("last"))
    starts = spark.createDataFrame(_log_starts(settings), "partition INT, first BIGINT")
    options = {"kafka.bootstrap.servers": settings.bootstrap, "subscribe": settings.topic, "includeHeaders": "true"}
    log = spark.read.format(FORMAT).options(**options).load().select(*place, contents.alias("now"))
    both = log.join(copies, place, "full_outer").join(ends, "partition", "left").join(starts, "partition", "left")
    is_later = f.coalesce(f.col("offset") > f.col("last"), f.lit(True))
    kinds = {
        "equal": f.expr("copies = 1 AND was = now"),
        "missing": f.col("copies").isNull() & ~is_later,
        "twice": f.expr("copies > 1"),
        "different": f.expr("copies = 1 AND was != now"),
        "extra": f.expr("now IS NULL AND offset >= first"),
        "not_archived_yet": f.col("copies").isNull() & is_later,
    }
    row = both.agg(*(f.count_if(it).alias(name) for name, it in kinds.items())).first()
    assert row is not None, "an aggregate without groups has one row"
    return Comparison(*row)


def _log_starts(settings: Archive) -> list[tuple[int, int]]:
    with Client(settings.bootstrap, client_id="minibroker-pipeline") as client:
        partitions = [TopicPartition(settings.topic, it) for it in range(client.partition_count(settings.topic))]
        found = admin.list_offsets(client, dict.fromkeys(partitions, EARLIEST))
    return [(it.partition, found[it].offset) for it in partitions]


# Files to a topic ---------------------------------------------------------------------------------------------------


def read(spark: "SparkSession", directory: Path) -> "DataFrame":
    """Read an archive, each record once, even while a run writes to it or after one was killed."""
    files = settled_files(directory)
    if not files:
        raise ArchiveInvalid(f"{directory} holds no archive: `minibroker pipeline run archive` makes one")
    return spark.read.option("basePath", str(directory)).parquet(*map(str, files))


def settled_files(directory: Path) -> list[Path]:
    """Return a consistent list of files. A list taken during a compaction could have records twice, or miss some."""
    deadline = time.monotonic() + SETTLED_S_MAX
    while True:
        _await_plans(directory, deadline)
        files = sorted(directory.glob("date=*/*.parquet"))
        # If there is no plan and a second listing has the same files, no compaction ran during the first one.
        if not _plans(directory) and files == sorted(directory.glob("date=*/*.parquet")):
            return files
        if time.monotonic() > deadline:
            raise ArchiveInvalid(
                f"{directory} was being compacted for {SETTLED_S_MAX} s, so its files could not be listed: try again"
            )


def _plans(directory: Path) -> list[Path]:
    return sorted((directory / "_plans").glob("*.json"))


def _await_plans(directory: Path, deadline: float) -> None:
    """Finish the compactions of a run that died, or wait until a live run has finished its own."""
    while _plans(directory):
        try:
            with locked(directory):
                finish_plans(directory)
        except ArchiveInvalid:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def replay(
    spark: "SparkSession",
    bootstrap: str,
    directory: Path,
    *,
    topic: str,
    since: str | None = None,
    until: str | None = None,
    keep_partitions: bool = False,
) -> int:
    """Write an archive, or some dates of it, into a topic; return the number of records.

    Records of one partition keep their order. Keys choose the partitions anew, unless `keep_partitions` is set.
    Delivery is at least once: a replay that is killed and run again writes from the beginning.
    """
    rows = read(spark, directory)
    if since is not None:
        rows = rows.where(f.col("date") >= since)
    if until is not None:
        rows = rows.where(f.col("date") <= until)
    count = rows.count()
    prepare_topics(bootstrap, written={topic: _partitions(rows)})
    columns = ["key", "value", "headers", *(["partition"] if keep_partitions else [])]
    ordered = (
        rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset").select(*columns)
    )
    ordered.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).save()
    return count


def _partitions(rows: "DataFrame") -> int:
    highest = rows.agg(f.max("partition")).first()
    return 1 + highest[0] if highest is not None and highest[0] is not None else -1
