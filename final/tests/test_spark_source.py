"""The format `minibroker` in a real session, on a real broker: batches, streams, restarts, kills, refusals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from brokers import Broker, eventually, unique

from minibroker.client import admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]
pytestmark = pytest.mark.xdist_group("spark")

SECONDS_MAX = 90


def values(rows: "DataFrame") -> list[int]:
    return sorted(int(bytes(row.value)[1:]) for row in rows.select("value").collect())


def write(rows: "DataFrame", folder: Path, **trigger: Any) -> "StreamingQuery":
    """To Parquet: what a batch that is run again wrote counts once."""
    writer = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
    return writer.trigger(**trigger or {"availableNow": True}).start()


def written(spark: "SparkSession", folder: Path) -> list[int]:
    if not (folder / "out" / "_spark_metadata").is_dir():
        return []
    rows = spark.read.schema("value string, partition int, offset bigint").parquet(str(folder / "out"))
    return sorted(int(row.value[1:]) for row in rows.collect())


def finish(query: "StreamingQuery") -> list[dict[str, Any]]:
    assert query.awaitTermination(SECONDS_MAX), "the query did not end"
    return [json.loads(it.json) for it in query.recentProgress]


def test_a_batch_has_every_column_of_sparks_kafka_connector(topics: "Topics") -> None:
    topic = topics.create(2)
    topics.produce(topic, 2, timestamps=[1000, 2000])
    topics.produce(topic, 1, partition=1, first=2, timestamps=[3000])
    frame = topics.read(topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect()
    assert [(bytes(it.key), bytes(it.value), it.topic, it.partition, it.offset, it.ms) for it in rows] == [
        (b"k0", b"v0", topic, 0, 0, 1000),
        (b"k1", b"v1", topic, 0, 1, 2000),
        (b"k2", b"v2", topic, 1, 0, 3000),
    ]
    assert [(it.timestampType, it.headers[0].key, bytes(it.headers[0].value)) for it in rows] == [
        (0, "n", b"0"),
        (0, "n", b"1"),
        (0, "n", b"2"),
    ]
    assert "headers" not in topics.read(topic).columns


def test_a_batch_is_split_and_its_tasks_read_every_record_once(topics: "Topics") -> None:
    topic = topics.create(2)
    topics.produce(topic, 90)
    topics.produce(topic, 10, partition=1, first=90)
    frame = topics.read(topic, minPartitions=4)
    assert frame.rdd.getNumPartitions() >= 4
    assert values(frame) == list(range(100))
    assert values(topics.read(topics.create())) == []


@pytest.mark.parametrize("is_pushed", [True, False])
def test_filters_give_the_same_rows_pushed_or_not(topics: "Topics", is_pushed: bool) -> None:
    topic = topics.create(3)
    for partition in range(3):
        times = [partition * 10_000 + 1000 * number for number in range(10)]
        topics.produce(topic, 10, partition=partition, first=10 * partition, timestamps=times)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = topics.spark.conf.get(setting)
    topics.spark.conf.set(setting, str(is_pushed).lower())
    try:
        frame = topics.read(topic).where(
            "partition IN (1, 2) AND offset >= 3 AND offset < 6 AND timestamp > timestamp_millis(14000)"
        )
        assert values(frame) == [15, 23, 24, 25]
    finally:
        topics.spark.conf.set(setting, before or "false")


def test_wrong_options_and_missing_topics_are_one_clear_line(topics: "Topics") -> None:
    topic = topics.create()
    wrong: list[tuple[dict[str, object], str]] = [
        (
            {"startingOffset": "earliest"},
            "InvalidOption: startingoffset: there is no such option: did you mean startingOffsets?",
        ),
        ({"startingOffsets": "latest"}, "InvalidOption: startingOffsets: a batch cannot begin at latest"),
        ({"kafka.enable.auto.commit": "true"}, "InvalidOption: kafka.enable.auto.commit: it cannot be set"),
        ({"subscribe": "nosuch"}, "UnknownTopic: subscribe: nosuch is not in the cluster: create it first"),
    ]
    for options, told in wrong:
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
            topics.read(topic, **options).collect()
        assert told in str(caught.value)


def test_a_broker_that_is_not_there_is_an_error_and_not_a_hang(topics: "Topics") -> None:
    frame = topics.read("t", **{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": 2000})
    with pytest.raises(Exception, match=r"no broker answers at 127\.0\.0\.1:1 \(connection refused\)"):
        frame.collect()


def test_a_stream_goes_on_from_its_checkpoint_in_limited_batches(topics: "Topics", tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.produce(topic, 30)
    topics.produce(topic, 10, partition=1, first=30)
    progress = finish(write(topics.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=16), tmp_path))
    assert [it["numInputRows"] for it in progress if it["numInputRows"]] == [16, 16, 8]
    assert progress[0]["sources"][0]["latestOffset"] == {topic: {"0": 30, "1": 10}}
    # Stopped; more comes, and a partition that was not there: the next run has exactly what is new.
    admin.create_partitions(topics.client, {topic: 3})
    topics.produce(topic, 5, first=40)
    topics.produce(topic, 5, partition=2, first=45)
    finish(write(topics.stream(topic), tmp_path))
    assert written(topics.spark, tmp_path) == list(range(50))


def test_a_running_stream_sees_new_partitions_and_fails_on_data_loss(topics: "Topics", tmp_path: Path) -> None:
    topic = topics.create()
    topics.produce(topic, 3)
    query = write(topics.stream(topic, startingOffsets="earliest"), tmp_path, processingTime="0 seconds")
    try:
        eventually(lambda: written(topics.spark, tmp_path) == [0, 1, 2], "three records", seconds=SECONDS_MAX)
        admin.create_partitions(topics.client, {topic: 2})
        topics.produce(topic, 3, partition=1, first=3)
        eventually(lambda: len(written(topics.spark, tmp_path)) == 6, "six records", seconds=SECONDS_MAX)
    finally:
        query.stop()
    # What comes while it is stopped is deleted before it is read.
    topics.produce(topic, 4, first=6)
    topics.delete_before(topic, 5)
    with pytest.raises(Exception, match="records from offset 3 to 4 are gone"):
        finish(write(topics.stream(topic), tmp_path))
    finish(write(topics.stream(topic, failOnDataLoss="false"), tmp_path))
    assert written(topics.spark, tmp_path) == [0, 1, 2, 3, 4, 5, 8, 9]


CHILD = """
import json, sys
from pathlib import Path
from minibroker.spark.java import session

address, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = session("child", "local[2]", **json.loads(sys.argv[4]))
rows = spark.readStream.format("minibroker").option("kafka.bootstrap.servers", address)
rows = rows.option("subscribe", topic).option("maxOffsetsPerTrigger", 20).load()
rows = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset").writeStream.format("parquet")
rows = rows.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "out"))
rows.trigger(processingTime="0 seconds").start().awaitTermination()
"""


def test_nothing_is_lost_when_the_query_is_killed(
    topics: "Topics", broker: Broker, quick_conf: dict[str, str], tmp_path: Path
) -> None:
    """It begins at latest, which is pinned: what came after its first start is there, whenever it was killed."""
    topic = unique("spark-kill")
    topics.create(name=topic)
    topics.produce(topic, 7)
    command = [sys.executable, "-c", CHILD, broker.address, topic, str(tmp_path), json.dumps(quick_conf)]
    with (tmp_path / "log").open("wb") as log:
        # A session of its own, so that the JVM and its workers can be killed with it.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        offsets = tmp_path / "checkpoint" / "offsets"
        begun = lambda: child.poll() is not None or (offsets / "0").is_file()  # noqa: E731
        eventually(begun, "the first batch is logged", seconds=SECONDS_MAX)
        topics.produce(topic, 200, first=7)
        eventually(lambda: child.poll() is not None or (offsets / "2").is_file(), "some batches", seconds=SECONDS_MAX)
        assert child.poll() is None, (tmp_path / "log").read_text()[-4000:]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    topics.produce(topic, 10, first=207)
    finish(write(topics.stream(topic), tmp_path))
    assert written(topics.spark, tmp_path) == list(range(7, 217))
