"""The format `minibroker` in a real session, on a real broker: batches, streams, restarts, losses, refusals, hangs."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from brokers import Broker, eventually
from cases import case
from proxy import Proxy
from transactions_stock import read_all

from minibroker.clients import admin
from minibroker.pipelines import generating
from minibroker.pipelines.generator import Shape
from minibroker.pipelines.running import begin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]

SECONDS_MAX = 90
DOCS = Path(__file__).parents[2] / "docs"


def values(rows: "DataFrame") -> list[int]:
    return sorted(int(bytes(row.value)[1:]) for row in rows.select("value").collect())


class Kept:
    """What a stream brought, batch by batch: a batch that is run again counts once. Its checkpoint outlives a run."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._batches: dict[int, list[int]] = {}

    def start(self, rows: "DataFrame", **trigger: Any) -> "StreamingQuery":
        def keep(batch: "DataFrame", number: int) -> None:
            self._batches[number] = values(batch)

        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        return begin(writer.trigger(**trigger or {"availableNow": True}).start)

    def values(self) -> list[int]:
        return sorted(value for batch in self._batches.values() for value in batch)


def finish(query: "StreamingQuery") -> list[dict[str, Any]]:
    assert query.awaitTermination(SECONDS_MAX), "the query did not end"
    return progress_of(query)


def progress_of(query: "StreamingQuery") -> list[dict[str, Any]]:
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


def test_the_queries_on_the_page_about_tables_and_the_cells_of_the_notebook_run(
    topics: "Topics", monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(2)
    shape = Shape(bad_fraction=0.05)
    generating.generate(topics.address, topic, shape, count=300)
    topics.read(topic, includeHeaders="true").createOrReplaceTempView("orders")
    page = (DOCS / "operations/sql.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    found = {query.split("\n")[0]: topics.spark.sql(query).collect() for query in queries}
    assert len(found) == 6
    for first_line, rows in found.items():
        with case(first_line):
            assert rows
    # The notebook reads the same orders, and takes the session that is there.
    monkeypatch.setenv("MINIBROKER_BOOTSTRAP_SERVER", topics.address)
    monkeypatch.setenv("ORDERS_TOPIC", topic)
    names: dict[str, Any] = {}
    for cell in json.loads((DOCS / "notebooks/orders.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["chart"].svg().count("curve") >= len(names["regions"])
    assert len(read_all(topics.client, f"{topic}-windows")) == len(names["rows"])


def test_wrong_options_and_missing_topics_are_one_clear_line(topics: "Topics") -> None:
    topic = topics.create()
    wrong: list[tuple[dict[str, object], str]] = [
        (
            {"startingOffset": "earliest"},
            "InvalidOption: startingoffset: there is no such option; did you mean startingOffsets?",
        ),
        ({"startingOffsets": "latest"}, "InvalidOption: startingOffsets: a batch cannot begin at latest"),
        ({"kafka.enable.auto.commit": "true"}, "InvalidOption: kafka.enable.auto.commit: it cannot be set"),
        ({"subscribe": "nosuch"}, "UnknownTopic: subscribe: not in the cluster: nosuch; create what is missing first"),
    ]
    for options, told in wrong:
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
            topics.read(topic, **options).collect()
        assert told in str(caught.value)
        assert str(caught.value).count('File "') == 1, "where it was raised does not help the user"


def test_a_stream_through_limits_restarts_new_partitions_deleted_topics_and_deleted_records(
    topics: "Topics", tmp_path: Path
) -> None:
    topic, other = topics.create(), topics.create()
    topics.produce(topic, 30)
    topics.produce(other, 10, first=30)
    kept, both = Kept(tmp_path), f"{topic},{other}"
    quick = {"startingOffsets": "earliest", "fetchOffset.retryIntervalMs": 10}

    # It runs with a limited number of records per trigger, and reports the lag.
    query = kept.start(topics.stream(both, maxOffsetsPerTrigger=16, **quick), processingTime="0 seconds")
    try:
        eventually(lambda: kept.values() == list(range(40)), "all records", seconds=SECONDS_MAX)
        eventually(lambda: len(progress_of(query)) >= 3, "three reports", seconds=SECONDS_MAX)
        progress = progress_of(query)
        assert [it["numInputRows"] for it in progress if it["numInputRows"]] == [16, 16, 8]
        assert progress[0]["sources"][0]["latestOffset"] == {topic: {"0": 30}, other: {"0": 10}}
        end = progress[0]["sources"][0]["endOffset"]
        assert end[topic]["0"] + end[other]["0"] == 16, "the report shows that 24 are left"
        # A partition that is added while it runs is read from its beginning.
        admin.create_partitions(topics.client, {topic: 2})
        topics.produce(topic, 3, partition=1, first=40)
        eventually(lambda: kept.values() == list(range(43)), "the new partition", seconds=SECONDS_MAX)
        # A topic that is deleted while it runs is a loss.
        admin.delete_topics(topics.client, [other])
        with pytest.raises(Exception, match=f"{other}-0: the partitions were deleted.*set failOnDataLoss=false"):
            query.awaitTermination(SECONDS_MAX)
    finally:
        query.stop()
    # With failOnDataLoss=false it continues from its checkpoint without the topic, up to the current end.
    topics.produce(topic, 2, first=43)
    finish(kept.start(topics.stream(both, failOnDataLoss="false", **quick)))
    assert kept.values() == list(range(45))
    # Records that are written while it is stopped are deleted before it reads them.
    topics.produce(topic, 4, first=45)
    topics.delete_before(topic, 34)
    with pytest.raises(Exception, match="records from offset 32 to 33 are gone"):
        finish(kept.start(topics.stream(topic, **quick)))
    finish(kept.start(topics.stream(topic, failOnDataLoss="false", **quick)))
    assert kept.values() == [*range(45), 47, 48]


# Brokers that are down, or do not answer -----------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


SOON = {"kafka.request.timeout.ms": "700", "kafka.delivery.timeout.ms": "700"}
READ_SOON = {"kafka.request.timeout.ms": "700"}


def test_a_broker_that_is_not_there_or_silent_is_an_error_and_not_a_hang(
    topics: "Topics", silent: str, tmp_path: Path
) -> None:
    rows = topics.spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for address, told in (
        ("127.0.0.1:1", r"no broker answers at 127\.0\.0\.1:1 \(connection refused\)"),
        (silent, f"{silent} accepts connections but does not answer"),
    ):
        reads = {"kafka.bootstrap.servers": address, **READ_SOON}
        with pytest.raises(Exception, match=told):
            topics.read("t", **reads).collect()
        writes = {"kafka.bootstrap.servers": address, "topic": "t", **SOON}
        with pytest.raises(Exception, match=told):
            rows.write.format("minibroker").mode("append").options(**writes).save()
    with pytest.raises(Exception, match=f"{silent} accepts connections but does not answer"):
        finish(Kept(tmp_path).start(topics.stream("t", **{"kafka.bootstrap.servers": silent, **READ_SOON})))


def test_a_broker_that_falls_silent_ends_a_stream(topics: "Topics", broker: Broker, tmp_path: Path) -> None:
    topic = topics.create()
    topics.produce(topic, 3)
    with Proxy(broker.address) as proxy:
        # The planner waits for the ends of logs as long as one request may take, and then fails.
        kept = Kept(tmp_path / "read")
        reads = {"kafka.bootstrap.servers": proxy.address, "startingOffsets": "earliest", **READ_SOON}
        query = kept.start(topics.stream(topic, **reads), processingTime="0 seconds")
        eventually(lambda: len(kept.values()) == 3, "three records", seconds=SECONDS_MAX)
        proxy.withhold()
        with pytest.raises(Exception, match=r"did not answer \w+ within 700 ms"):
            query.awaitTermination(SECONDS_MAX)
