"""What only Apache Kafka can put before the Spark connector, and what only others can say of what it writes.

Transactions, batches that the broker compresses anew, its own times, gaps from a compaction: `make test-kafka`, where
Maven and Java are. The client beside ours is confluent-kafka. The name of this file keeps it out of `make test`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brokers import Broker, eventually, unique
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]

SECONDS_MAX = 90
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def make_topic(broker: Broker, **configs: str) -> str:
    """With __ for a dot: compression__type."""
    name = unique("peer")
    named = {key.replace("__", "."): value for key, value in configs.items()}
    peer = AdminClient({"bootstrap.servers": broker.address})
    peer.create_topics([NewTopic(name, 1, config=named)])[name].result(SECONDS_MAX)
    return name


def send(producer: Producer, topic: str, numbers: range, key: Callable[[int], str] = str) -> None:
    for number in numbers:
        producer.produce(topic, value=f"v{number}", key=key(number), headers=[("n", str(number).encode())])
    producer.flush()


def values(rows: "DataFrame") -> list[int]:
    return sorted(int(bytes(row.value)[1:]) for row in rows.select("value").collect())


def streamed(topics: "Topics", topic: str, checkpoint: Path, **options: object) -> list[int]:
    """What a stream brings that ends where the topic ends now; the same checkpoint goes on."""
    found: list[int] = []

    def keep(batch: "DataFrame", _number: int) -> None:
        found.extend(values(batch))

    rows = topics.stream(topic, startingOffsets="earliest", **options)
    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    return sorted(found)


def test_transactions_are_read_as_the_isolation_level_says(topics: "Topics", broker: Broker, tmp_path: Path) -> None:
    topic = make_topic(broker)
    settings: dict[str, Any] = {"bootstrap.servers": broker.address, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(SECONDS_MAX)
    for numbers, is_kept in ((range(5), True), (range(5, 10), False), (range(10, 13), True), (range(13, 17), False)):
        producer.begin_transaction()
        send(producer, topic, numbers)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(SECONDS_MAX)
    kept, uncommitted = [*range(5), 10, 11, 12], {"kafka.isolation.level": "read_uncommitted"}
    assert values(topics.read(topic, **uncommitted)) == list(range(17))
    assert values(topics.read(topic)) == kept
    # Each of the splits begins or ends among markers and aborted records, some have nothing else.
    assert values(topics.read(topic, maxRecordsPerPartition=2)) == kept
    # What is not decided yet is behind the end.
    producer.begin_transaction()
    send(producer, topic, range(17, 20))
    assert values(topics.read(topic)) == kept
    assert values(topics.read(topic, **uncommitted)) == list(range(20))
    assert streamed(topics, topic, tmp_path, maxOffsetsPerTrigger=4) == kept
    producer.commit_transaction(SECONDS_MAX)
    assert streamed(topics, topic, tmp_path, maxOffsetsPerTrigger=4) == [17, 18, 19]


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_broker_compresses_anew_and_gives_its_own_time_is_read(
    topics: "Topics", broker: Broker, codec: str
) -> None:
    as_given = "uncompressed" if codec == "none" else codec
    topic = make_topic(broker, compression__type=as_given, message__timestamp__type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    send(
        Producer({"bootstrap.servers": broker.address, "compression.type": "gzip", "linger.ms": 50}), topic, range(200)
    )
    rows = topics.read(topic, includeHeaders="true").selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert [(bytes(it.value), bytes(it.headers[0].value)) for it in sorted(rows, key=lambda it: it.offset)] == [
        (b"v%d" % number, b"%d" % number) for number in range(200)
    ]
    assert {it.timestampType for it in rows} == {1}
    assert min(it.ms for it in rows) >= before_ms


@pytest.mark.parametrize("codec", CODECS)
def test_kafka_takes_what_the_sink_writes_and_other_clients_read_it(
    topics: "Topics", broker: Broker, codec: str
) -> None:
    topic = make_topic(broker)
    rows = topics.spark.range(0, 500, 1, 2).selectExpr(
        "IF(id % 5 = 0, NULL, CAST(id AS STRING)) AS key",
        "concat('v', id) AS value",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    options = {"kafka.bootstrap.servers": broker.address, "topic": topic, "kafka.compression.type": codec}
    rows.write.format("minibroker").mode("append").options(**options).save()
    expected = {(None if n % 5 == 0 else b"%d" % n, b"v%d" % n, b"%d" % n) for n in range(500)}
    found = consumed(broker, topic, 500)
    assert len(found) == 500
    assert set(found) == expected


def consumed(broker: Broker, topic: str, count: int) -> list[tuple[object, ...]]:
    """Key, value and first header of so many records, as librdkafka reads them, with their checksums."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[object, ...]] = []
    deadline_s = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(count, timeout=1):
            assert message.error() is None
            found.append((message.key(), message.value(), dict(message.headers() or [])["n"]))
    consumer.close()
    return found


def test_gaps_that_a_compaction_left_are_no_loss(topics: "Topics", broker: Broker, tmp_path: Path) -> None:
    upkeep = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = make_topic(broker, **upkeep, **{"max.compaction.lag.ms": "100"})
    producer = Producer({"bootstrap.servers": broker.address})
    send(producer, topic, range(300), key=lambda number: str(number % 3))

    def is_compacted() -> bool:
        # A new record closes the segment behind it, and only what is closed is compacted.
        send(producer, topic, range(300, 301), key=lambda _: "last")
        return len(values(topics.read(topic))) < 50

    eventually(is_compacted, "a compaction", seconds=SECONDS_MAX)
    # Few records and many offsets: every split, and every trigger, ends where it should.
    latest = set(values(topics.read(topic)))
    assert latest >= {297, 298, 299, 300}
    assert set(values(topics.read(topic, minPartitions=7))) >= {297, 298, 299, 300}
    assert set(streamed(topics, topic, tmp_path, maxOffsetsPerTrigger=60)) >= {297, 298, 299, 300}
