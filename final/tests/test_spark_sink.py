"""The sink: from Arrow rows to acknowledged batches, through failures, and with a real Spark."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import spark_reference
from brokers import Broker, unique
from cases import case
from proxy import Exchange, Proxy, Verdict
from pyspark import TaskContext
from pyspark.sql.functions import udf
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from minibroker.client.addresses import Address
from minibroker.client.errors import BrokerError, ConnectionLost
from minibroker.client.partitioners import partition_of
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, Consumer
from minibroker.clients.core import ClientConfig, Core
from minibroker.clients.errors import DeliveryTimedOut
from minibroker.log.batch import batches
from minibroker.log.clock import precise_ms
from minibroker.log.compression import Compression
from minibroker.pipelines.running import begin
from minibroker.spark import sink, writing
from minibroker.spark.connecting import close_clients
from minibroker.spark.encoding import encode
from minibroker.spark.errors import InvalidOption
from minibroker.spark.options import ClientSettings, WriteOptions
from minibroker.spark.writing import Delivery, Outbox, RowRefused
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker.wire.tables.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest_plugins = ["clients_fixtures", "spark_fixtures"]

PRODUCE = 0
SECONDS_MAX = 120
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


# Shared parts -------------------------------------------------------------------------------------------------------


def make_topic(broker: Broker, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
    name = unique("sink")
    with Client(broker.address) as client:
        admin.create_topics(client, [admin.NewTopic(name, partitions=partitions, configs=configs or {})])
    return name


def written(broker: Broker, topic: str) -> list[Row]:
    """Read every record of a topic: partition, key, value, headers; the records of a partition are in order."""
    rows: list[Row] = []
    with (
        Client(broker.address) as client,
        Consumer(client, isolation_level=READ_COMMITTED, max_wait_ms=50) as consumer,
    ):
        partitions = consumer.assign_topic(topic, EARLIEST)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(it) < ends[it] for it in partitions):
            for fetched in consumer.poll(timeout_ms=1000):
                for it in fetched:
                    headers = [(str(key), value) for key, value in it.headers]
                    rows.append((fetched.partition, it.key, it.value, headers))
    return sorted(rows, key=lambda row: row[0])


def rows_of(**columns: Any) -> pa.RecordBatch:
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": HEADERS,
    }
    return pa.record_batch({name: pa.array(column, types[name]) for name, column in columns.items()})


def quick(address: str, *, request_timeout_ms: int = 30_000, **others: Any) -> Delivery:
    return Delivery(ClientSettings(address, "sink", request_timeout_ms, backoff_ms=1, backoff_ms_max=5), **others)


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    """Close the connections of tests that write in this process."""
    yield
    close_clients()


# Rows ---------------------------------------------------------------------------------------------------------------


def test_a_row_with_a_key_goes_where_kafkas_clients_send_it(broker: Broker) -> None:
    topic = make_topic(broker, 7)
    keys = [f"key-{number}".encode() for number in range(500)]
    done = writing.write([rows_of(key=keys, value=keys)], quick(broker.address), topic=topic)
    found = written(broker, topic)
    assert done.row_count == 500
    assert sorted(value for _, _, value, _ in found if value) == sorted(keys)
    assert all(key is not None and partition == partition_of(key, 7) for partition, key, _, _ in found)


def test_rows_of_a_partition_keep_their_order_over_many_batches(broker: Broker) -> None:
    topic = make_topic(broker, 3)
    given = [[f"{batch}-{number}".encode() for number in range(300)] for batch in range(5)]
    batches_ = [rows_of(key=[b"k%d" % (n % 9) for n in range(300)], value=values) for values in given]
    writing.write(batches_, quick(broker.address, batch_bytes_max=2000), topic=topic)
    flat = {value: place for place, value in enumerate(value for values in given for value in values)}
    for partition in range(3):
        places = [flat[value or b""] for number, _, value, _ in written(broker, topic) if number == partition]
        assert places == sorted(places)


def test_a_row_with_a_partition_goes_there_and_others_by_their_keys(broker: Broker) -> None:
    topic = make_topic(broker, 5)
    rows = rows_of(key=[b"a", b"a", None], value=[b"1", b"2", b"3"], partition=[4, None, 2])
    writing.write([rows], quick(broker.address), topic=topic)
    assert sorted((value, partition) for partition, _, value, _ in written(broker, topic)) == [
        (b"1", 4),
        (b"2", partition_of(b"a", 5)),
        (b"3", 2),
    ]


def test_rows_without_a_key_stick_together_and_move_on_batch_by_batch(broker: Broker) -> None:
    topic = make_topic(broker, 4)
    writing.write([rows_of(value=[b"%d" % n] * 10) for n in range(4)], quick(broker.address), topic=topic)
    found = written(broker, topic)
    assert {partition: value for partition, _, value, _ in found}.keys() == {0, 1, 2, 3}
    assert len({(partition, value) for partition, _, value, _ in found}) == 4


def test_nulls_empty_bytes_and_headers_arrive_as_they_were(broker: Broker) -> None:
    topic = make_topic(broker)
    headers = [[("trace", b"1"), ("trace", None), ("", b"")], [], None]
    rows = rows_of(key=[b"", None, b"k"], value=[None, b"", b"v"], headers=headers)
    writing.write([rows], quick(broker.address), topic=topic)
    assert written(broker, topic) == [
        (0, b"", None, [("trace", b"1"), ("trace", None), ("", b"")]),
        (0, None, b"", []),
        (0, b"k", b"v", []),
    ]


def test_the_column_topic_chooses_the_topic_and_the_option_overrides_it(broker: Broker) -> None:
    one, two = make_topic(broker), make_topic(broker)
    rows = rows_of(value=[b"1", b"2", b"3"], topic=[one, two, one])
    writing.write([rows], quick(broker.address), topic=None)
    assert [value for _, _, value, _ in written(broker, one)] == [b"1", b"3"]
    assert [value for _, _, value, _ in written(broker, two)] == [b"2"]
    writing.write([rows], quick(broker.address), topic=two)
    assert len(written(broker, two)) == 1 + 3


def test_every_codec_is_written_and_read(broker: Broker) -> None:
    for codec in list(Compression):
        with case(codec):
            topic = make_topic(broker)
            rows = rows_of(value=[b"as long as it takes " * 20] * 50)
            done = writing.write([rows], quick(broker.address, compression=codec), topic=topic)
            assert len(written(broker, topic)) == 50
            assert (done.byte_count < 5000) == (codec is not Compression.NONE)


def test_rows_that_cannot_be_written_are_refused_in_one_line(broker: Broker) -> None:
    topic = make_topic(broker, 3)
    with pytest.raises(RowRefused, match=r"^null topic present in the data, in 1 of 2 rows: set the option topic$"):
        writing.write([rows_of(value=[b"", b""], topic=[topic, None])], quick(broker.address), topic=None)
    with pytest.raises(RowRefused, match=rf"^topic {topic} has no partition 3: its partitions are 0 to 2$"):
        writing.write([rows_of(value=[b""], partition=[3])], quick(broker.address), topic=topic)
    with pytest.raises(RowRefused, match=rf"^topic {topic} has no partition -1:"):
        writing.write([rows_of(value=[b""], partition=[-1])], quick(broker.address), topic=topic)


# Failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.TEAR])
def test_a_lost_answer_means_another_attempt_and_no_row_is_lost(broker: Broker, verdict: Verdict) -> None:
    topic = make_topic(broker)
    lost: list[Exchange] = []

    def lose_two(exchange: Exchange) -> Verdict:
        if exchange.api_key != PRODUCE or len(lost) == 2:
            return Verdict.PASS
        lost.append(exchange)
        return verdict

    with Proxy(broker.address) as proxy:
        proxy.on_response = lose_two
        values = [b"%d" % number for number in range(100)]
        writing.write([rows_of(key=values, value=values)], quick(proxy.address), topic=topic)
    found = [value for _, _, value, _ in written(broker, topic)]
    assert len(lost) == 2
    assert set(found) == set(values)
    assert len(found) == 300, "each attempt was written, because only the responses were lost: at least once"


def test_a_request_that_never_arrived_is_sent_again(broker: Broker) -> None:
    topic = make_topic(broker)
    seen: list[Exchange] = []

    def drop_first(exchange: Exchange) -> Verdict:
        if exchange.api_key != PRODUCE:
            return Verdict.PASS
        seen.append(exchange)
        return Verdict.DROP if len(seen) == 1 else Verdict.PASS

    with Proxy(broker.address) as proxy:
        proxy.on_request = drop_first
        writing.write([rows_of(value=[b"once"])], quick(proxy.address, request_timeout_ms=300), topic=topic)
    assert [value for _, _, value, _ in written(broker, topic)] == [b"once"]
    assert len(seen) == 2


def test_a_broker_that_does_not_answer_is_an_error_within_the_delivery_timeout(broker: Broker) -> None:
    topic = make_topic(broker)
    with Proxy(broker.address) as proxy:
        proxy.on_response = lambda exchange: Verdict.CUT if exchange.api_key == PRODUCE else Verdict.PASS
        with pytest.raises(DeliveryTimedOut, match=rf"a batch for {topic}-0 was not acknowledged within 200 ms"):
            writing.write([rows_of(value=[b"v"])], quick(proxy.address, delivery_timeout_ms=200), topic=topic)
        # The request hangs, and the connection stays open.
        proxy.on_request = lambda exchange: Verdict.DROP if exchange.api_key == PRODUCE else Verdict.PASS
        proxy.on_response = lambda exchange: Verdict.PASS
        hung = quick(proxy.address, request_timeout_ms=100, delivery_timeout_ms=200)
        with pytest.raises(DeliveryTimedOut, match=r"after [23] attempts; the last error: .* did not answer in time"):
            writing.write([rows_of(value=[b"v"])], hung, topic=topic)


def test_a_batch_that_the_broker_refuses_fails_at_once_with_the_brokers_error(broker: Broker) -> None:
    topic = make_topic(broker, configs={"max.message.bytes": "1000"})
    with pytest.raises(BrokerError, match=rf"{topic}-0: MESSAGE_TOO_LARGE") as refused:
        writing.write([rows_of(value=[b"v" * 2000])], quick(broker.address), topic=topic)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    # The next task of the worker gets a new connection.
    writing.write([rows_of(value=[b"v"])], quick(broker.address), topic=topic)
    assert len(written(broker, topic)) == 1


class Cluster:
    """Two nodes without sockets: the leader can be set, responses are scripted, requests are recorded."""

    def __init__(self) -> None:
        self.core = Core([Address("h", 1)], ClientConfig(), clock=precise_ms, chance=lambda: 0.0)
        self.leader_id = 1
        self.script: list[int | Exception] = []
        self.requests: list[tuple[int, int]] = []
        self.asked = 0

    def run(self, dialogue: Any) -> Any:
        try:
            next(dialogue)
            while True:
                dialogue.send(self._metadata())
        except StopIteration as stop:
            return stop.value

    def _metadata(self) -> MetadataResponse:
        self.asked += 1
        nodes = [MetadataResponseBroker(node_id=number, host="h", port=number) for number in (1, 2)]
        partition = MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=self.leader_id,
            leader_epoch=self.asked,
            replica_nodes=[1, 2],
            isr_nodes=[1, 2],
        )
        topic = MetadataResponseTopic(error_code=0, name="t", partitions=[partition])
        return MetadataResponse(brokers=nodes, topics=[topic])

    def link(self, node_id: int) -> "ScriptedLink":
        return ScriptedLink(self, node_id)

    def drop(self, address: object) -> None:
        pass


class ScriptedLink:
    """A connection to one of them."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.address = Address("h", node_id)
        self._cluster = cluster
        self._node_id = node_id

    def send(self, message: Any, *, deadline_ms: float, version_max: int | None) -> int:
        (data,) = message.topic_data[0].partition_data
        (batch,) = batches(bytes(data.records))
        self._cluster.requests.append((self._node_id, batch.header.record_count))
        return 1

    def receive(self, deadline_ms: float) -> list[tuple[int, ProduceResponse]]:
        outcome = self._cluster.script.pop(0) if self._cluster.script else 0
        if isinstance(outcome, Exception):
            raise outcome
        if outcome == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._cluster.leader_id = 2
        answer = PartitionProduceResponse(index=0, error_code=outcome, base_offset=0)
        return [(1, ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[answer])]))]


def outbox_with(cluster: Cluster, *row_counts: int) -> Outbox:
    outbox = Outbox(cluster, quick("h:1"))  # type: ignore[arg-type]
    for count in row_counts:
        values = pa.array([b"v"] * count, pa.binary())
        keys = pa.nulls(count, pa.binary())
        for batch in encode(keys, values, None, timestamp_ms=1):
            outbox.put("t", 0, batch)
    return outbox


def test_after_a_change_of_leader_the_new_one_is_asked_for_and_gets_the_batch_in_order() -> None:
    cluster = Cluster()
    cluster.script = [0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    outbox_with(cluster, 1, 2, 3).flush()
    assert cluster.requests == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert cluster.asked == 2


def test_a_retriable_failure_is_retried_before_the_next_batch() -> None:
    failures: list[int | Exception] = [
        int(ErrorCode.NOT_ENOUGH_REPLICAS),
        int(ErrorCode.REQUEST_TIMED_OUT),
        int(ErrorCode.LEADER_NOT_AVAILABLE),
        ConnectionLost("cut"),
    ]
    for failure in failures:
        with case(failure):
            cluster = Cluster()
            cluster.script = [failure, failure]
            outbox_with(cluster, 1, 2).flush()
            assert cluster.requests == [(1, 1), (1, 1), (1, 1), (1, 2)]


def test_the_memory_of_a_task_is_bounded_however_much_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "QUEUED_BYTES_MAX", 1000)
    cluster = Cluster()
    outbox = outbox_with(cluster, *[10] * 100)
    assert len(cluster.requests) > 80, "most were sent before the flush"
    outbox.flush()
    assert len(cluster.requests) == 100


# Options and columns ------------------------------------------------------------------------------------------------


def options(**others: str) -> WriteOptions:
    named = {name.replace("__", "."): value for name, value in others.items()}
    return WriteOptions.parse({"kafka.bootstrap.servers": "h:1", **named})


def test_the_settings_of_a_producer_are_taken_or_refused_by_name() -> None:
    given = {"kafka.compression.type": "zstd", "kafka.acks": "1", "kafka.delivery.timeout.ms": "7"}
    delivery = writing.delivery_of(options(**given))
    assert (delivery.compression, delivery.acks, delivery.delivery_timeout_ms) == (Compression.ZSTD, 1, 7)
    assert writing.delivery_of(options()).acks == writing.ACKS_ALL
    for name, value in (("acks", "0"), ("compression.type", "brotli"), ("delivery.timeout.ms", "soon")):
        with pytest.raises(InvalidOption, match=rf"^kafka\.{name}: '{value}' is not"):
            writing.delivery_of(options(**{f"kafka.{name}": value}))


VALUE = StructType().add("value", StringType())


def with_value(name: str, kind: DataType) -> StructType:
    return StructType().add("value", StringType()).add(name, kind)


PAIR = StructType().add("key", StringType()).add("value", StringType())


def test_columns_that_cannot_be_written_are_refused_before_any_task() -> None:
    for schema, topic, line in [
        (VALUE, None, "topic option required when no 'topic' column is present"),
        (StructType().add("key", StringType()), "t", "required column 'value' not found: the columns are key"),
        (StructType().add("value", LongType()), "t", "column 'value' is bigint, must be string or binary: cast it"),
        (
            with_value("key", IntegerType()),
            "t",
            "column 'key' is int, must be string or binary",
        ),
        (with_value("topic", BinaryType()), None, "column 'topic' is binary, must be string"),
        (with_value("partition", LongType()), "t", "column 'partition' is bigint, must be int"),
        (
            with_value("headers", ArrayType(PAIR)),
            "t",
            "column 'headers' is array<struct<key:string,",
        ),
        (with_value("value", BinaryType()), "t", "column 'value' appears 2 times"),
    ]:
        with case(line):
            given = options() if topic is None else options(topic=topic)
            for make in (sink.BatchWriter, sink.StreamWriter):
                with pytest.raises(sink.SchemaRefused) as refused:
                    make(given, schema)
                assert str(refused.value).startswith(line)
                assert "\n" not in str(refused.value)


def test_a_column_that_the_sink_does_not_know_is_left_out() -> None:
    sink.check_columns(with_value("offset", LongType()), topic="t")
    sink.check_columns(with_value("topic", BinaryType()), topic="the option goes before it")


# Through Spark ------------------------------------------------------------------------------------------------------


def save(rows: "DataFrame", broker: Broker, **others: str) -> None:
    rows.write.format("minibroker").mode("append").option("kafka.bootstrap.servers", broker.address).options(
        **others
    ).save()


def test_rows_go_through_a_batch_and_a_stream_whose_tasks_fail_and_that_is_started_again(
    spark: "SparkSession", broker: Broker, tmp_path: Path
) -> None:
    assert str(spark.sparkContext.master).endswith(",4]"), "the session's master allows a task to be tried again"
    topic, copy = make_topic(broker, 3), make_topic(broker, 2)
    save(rows_with_all_columns(spark, topic, 300), broker)
    found = written(broker, topic)
    assert len(found) == 300
    for partition, key, value, headers in found:
        assert key is not None
        assert (value, headers) == (b"value " + key, [("id", key)])
        assert partition == (1 if int(key) % 2 == 0 else partition_of(key, 3))

    # Defined within the test, so that it is sent to the workers, which cannot import this module.
    def fails_once(key: bytes) -> bytes:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and int(key) in (598, 599):
            raise RuntimeError("the first attempt dies when most of its rows have been sent")
        return key.ljust(50_000)

    # The sink gets ten rows at a time, so that it has sent megabytes before the task fails. Its input then ends as if
    # it were complete: without the guard of `whole_input`, it commits that part, and the next attempt is refused.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    for count, delivery in ((300, "at-least-once"), (600, "exactly-once")):
        if count > 300:
            save(rows_with_all_columns(spark, topic, count, first=300), broker)
        stream = spark.readStream.format("minibroker").option("kafka.bootstrap.servers", broker.address)
        rows = stream.options(subscribe=topic, startingOffsets="earliest").load()
        writer = rows.select(udf(fails_once, "binary", useArrow=False)("key").alias("value")).writeStream
        writer = writer.format("minibroker").trigger(availableNow=True).options(topic=copy, delivery=delivery)
        writer = writer.option("kafka.bootstrap.servers", broker.address)
        query = begin(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start)
        assert query.awaitTermination(SECONDS_MAX)
        numbers = [int(value or b"") for _, _, value, _ in written(broker, copy)]
        assert sorted(numbers) == list(range(count)), "each row once, although a task has failed and was run again"
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def rows_with_all_columns(spark: "SparkSession", topic: str, until: int, first: int = 0) -> "DataFrame":
    return spark.range(first, until, 1, 2).selectExpr(
        f"'{topic}' AS topic",
        "CAST(id AS STRING) AS key",
        "concat('value ', id) AS value",
        "array(struct('id' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
        "IF(id % 2 = 0, 1, NULL) AS partition",
        "id AS ignored",
    )


def test_spark_shows_a_refusal_and_its_one_line(spark: "SparkSession", broker: Broker) -> None:
    with pytest.raises(Exception, match="required column 'value' not found: the columns are id"):
        save(spark.range(3), broker, topic="t")
    values = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="delivery: exactly-once needs a streaming query"):
        save(values, broker, topic="t", delivery="exactly-once")
    with pytest.raises(Exception, match="mode: a topic cannot be overwritten"):
        values.write.format("minibroker").mode("overwrite").option("kafka.bootstrap.servers", broker.address).option(
            "topic", "t"
        ).save()


def test_the_options_on_the_page_are_those_of_the_code(transcript: Callable[[Path, str], None]) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"
    transcript(page, spark_reference.with_options(page.read_text()))
