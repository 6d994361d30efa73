"""Where a stock client can start to read: at any offset, at a timestamp, at either end; and how it waits for more."""

import asyncio
import subprocess
import sys
import threading
import time

import clients_stock as stock
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from brokers import Broker, unique
from cases import case
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import TopicPartition as PythonTopicPartition

pytest_plugins = ["clients_fixtures"]

T0 = 1_700_000_000_000
# Two batches of five and one of one. Timestamps go back and forth, also within a batch.
TIMES = [(0, 10, 20, 15, 30), (25, 40, 40, 35, 50), (45,)]
FLAT = [T0 + delta for batch in TIMES for delta in batch]


@pytest.fixture(scope="module")
def times(broker: Broker) -> str:
    """A topic with known timestamps at known offsets, in three batches."""
    topic = stock.create_topic(broker.address, unique("times"))
    for codec, batch in zip(("none", "gzip", "zstd"), TIMES, strict=True):
        stock.confluent_write(
            broker.address, topic, [stock.Message(b"v", timestamp=T0 + delta) for delta in batch], codec
        )
    return topic


def expected_offset(timestamp: int) -> int | None:
    """The first offset whose timestamp is at least the one asked for."""
    return next((offset for offset, found in enumerate(FLAT) if found >= timestamp), None)


# By offset


@pytest.mark.parametrize("reader", stock.READERS)
def test_reading_starts_in_the_middle_of_a_batch(broker: Broker, reader: str) -> None:
    for codec in ("none", "lz4"):
        topic = stock.create_topic(broker.address, unique("middle"))
        for batch in range(3):
            values = [b"%d" % n for n in range(10 * batch, 10 * batch + 10)]
            stock.confluent_write(broker.address, topic, [stock.Message(value) for value in values], codec)
        for offset in (0, 7, 10, 15, 19, 29):
            found = stock.READERS[reader](broker.address, topic, 30 - offset, offset)
            assert [one.value for one in found] == [b"%d" % n for n in range(offset, 30)], (codec, offset)


def test_reading_starts_at_either_end(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("ends"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(10)])
    assert stock.confluent_read(broker.address, topic, 1, OFFSET_BEGINNING)[0].offset == 0
    # Three before the end.
    assert stock.kcat("-C", "-b", broker.address, "-t", topic, "-p", "0", "-o", "-3", "-e") == b"7\n8\n9\n"
    consumer = stock.confluent_consumer(broker.address, **{"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        with pytest.raises(KafkaException) as at_end:
            stock.confluent_take(consumer, 1)
        assert at_end.value.args[0].code() == KafkaError._PARTITION_EOF
        stock.confluent_write(broker.address, topic, [stock.Message(b"10")])
        assert [one.value for one in stock.confluent_take(consumer, 1)] == [b"10"]
    finally:
        consumer.close()


ASSIGN_WITHOUT_OFFSET = """
import sys
from confluent_kafka import Consumer, TopicPartition

settings = {"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest"}
consumer = Consumer(settings | {"enable.auto.commit": False})
consumer.assign([TopicPartition(sys.argv[2], 0)])
for message in consumer.consume(2, timeout=20):
    print(message.error() or message.value().decode())
print("committed", consumer.committed([TopicPartition(sys.argv[2], 0)], timeout=20)[0].offset)
consumer.close()
"""


def test_a_partition_assigned_without_an_offset_is_read_where_the_reset_says(broker: Broker) -> None:
    """A consumer with a group id asks for the committed offset first. librdkafka must not die of it: it has a process
    of its own."""
    topic = stock.create_topic(broker.address, unique("assigned"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(2)])
    command = [sys.executable, "-c", ASSIGN_WITHOUT_OFFSET, broker.address, topic]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"0\n1\ncommitted {OFFSET_INVALID}\n"), ran.stderr

    python = stock.python_consumer(broker.address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        python.assign([PythonTopicPartition(topic, 0)])
        assert next(python).offset == 0
        assert python.committed(PythonTopicPartition(topic, 0)) is None
    finally:
        python.close()

    async def with_aiokafka() -> None:
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(bootstrap_servers=broker.address, **settings) as consumer:
            consumer.assign([AioTopicPartition(topic, 0)])
            assert (await asyncio.wait_for(consumer.getone(), stock.READ_S_MAX)).offset == 0
            assert await consumer.committed(AioTopicPartition(topic, 0)) is None

    asyncio.run(with_aiokafka())


def test_seek_back_and_forth_on_one_connection(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("seek"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(100)])
    consumer = stock.python_consumer(broker.address)
    try:
        where = PythonTopicPartition(topic, 0)
        consumer.assign([where])
        for offset in (90, 3, 50, 0, 99):
            consumer.seek(where, offset)
            assert next(consumer).offset == offset
    finally:
        consumer.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_an_offset_beyond_the_end_is_out_of_range_and_reset(broker: Broker, reset: str) -> None:
    topic = stock.create_topic(broker.address, unique("beyond"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n) for n in range(10)])
    consumer = stock.confluent_consumer(broker.address, **{"auto.offset.reset": reset, "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 1000)])
        if reset == "earliest":
            assert stock.confluent_take(consumer, 1)[0].offset == 0
            return
        with pytest.raises(KafkaException) as at_end:
            stock.confluent_take(consumer, 1)
        assert at_end.value.args[0].code() == KafkaError._PARTITION_EOF
        stock.confluent_write(broker.address, topic, [stock.Message(b"next")])
        assert stock.confluent_take(consumer, 1)[0].offset == 10
    finally:
        consumer.close()


def test_an_offset_out_of_range_is_told_to_a_client_without_a_reset(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("beyond"))
    consumer = stock.confluent_consumer(broker.address, **{"auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(topic, 0, 1000)])
        with pytest.raises(KafkaException) as refused:
            stock.confluent_take(consumer, 1)
        # The code is librdkafka's own for a position without a reset; Kafka's error is in the text.
        assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in refused.value.args[0].str().lower()
    finally:
        consumer.close()
    with pytest.raises(Exception, match="OffsetOutOfRange"):
        stock.READERS["aiokafka"](broker.address, topic, 1, 1000, auto_offset_reset="none")


# By timestamp


def test_offsets_for_times_are_exact(broker: Broker, times: str) -> None:
    asked = sorted({*FLAT, *(stamp + 1 for stamp in FLAT), T0 - 1, 0, T0 + 10_000})
    python = stock.python_consumer(broker.address)
    confluent = stock.confluent_consumer(broker.address)
    try:
        for stamp in asked:
            expected = expected_offset(stamp)
            (found,) = confluent.offsets_for_times([TopicPartition(times, 0, stamp)], timeout=30)
            assert found.offset == (OFFSET_END if expected is None else expected), stamp - T0
            where = PythonTopicPartition(times, 0)
            answer = python.offsets_for_times({where: stamp})[where]
            told = None if answer is None else (answer.offset, answer.timestamp)
            assert told == (None if expected is None else (expected, FLAT[expected])), stamp - T0
    finally:
        confluent.close()
        python.close()


def test_offsets_for_times_of_aiokafka_are_exact(broker: Broker, times: str) -> None:
    async def ask() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.address)
        where = AioTopicPartition(times, 0)
        consumer.assign([where])
        await consumer.start()
        try:
            for stamp in (FLAT[0], FLAT[6], FLAT[9]):
                answer = (await consumer.offsets_for_times({where: stamp}))[where]
                assert answer.offset == expected_offset(stamp)
            assert (await consumer.offsets_for_times({where: T0 + 10_000}))[where] is None
            assert await consumer.beginning_offsets([where]) == {where: 0}
            assert await consumer.end_offsets([where]) == {where: len(FLAT)}
        finally:
            await consumer.stop()

    asyncio.run(ask())


def test_kcat_reads_from_a_timestamp(broker: Broker, times: str) -> None:
    start = ("-o", f"s@{T0 + 41}", "-e", "-f", "%o %T\n")
    printed = stock.kcat("-C", "-b", broker.address, "-t", times, "-p", "0", *start)
    assert printed.decode().splitlines() == [f"{offset} {FLAT[offset]}" for offset in (9, 10)]


def test_offsets_for_times_across_segments_are_exact(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("segments"), segment_bytes=1 << 20, index_interval_bytes=4096)
    stamps = [T0 + 1000 * n for n in range(400)]
    messages = [stock.Message(b"x" * 10_000, timestamp=stamp) for stamp in stamps]
    stock.confluent_write(broker.address, topic, messages, **{"batch.num.messages": 3})
    consumer = stock.confluent_consumer(broker.address)
    try:
        for n in (0, 1, 57, 103, 104, 105, 106, 211, 398, 399):
            for early in (0, 1, 999):
                (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, stamps[n] - early)], timeout=30)
                assert found.offset == n
    finally:
        consumer.close()


def test_list_offsets_finds_earliest_latest_time_and_max_timestamp(broker: Broker, times: str) -> None:
    client = stock.admin(broker.address)
    where = TopicPartition(times, 0)

    def ask(spec: OffsetSpec) -> tuple[int, int]:
        found = client.list_offsets({where: spec})[where].result(30)
        return found.offset, found.timestamp

    assert ask(OffsetSpec.earliest())[0] == 0
    assert ask(OffsetSpec.latest())[0] == len(FLAT)
    assert ask(OffsetSpec.for_timestamp(T0 + 31)) == (6, T0 + 40)
    assert ask(OffsetSpec.for_timestamp(T0 + 10_000))[0] == -1
    assert ask(OffsetSpec.max_timestamp()) == (9, T0 + 50)


def test_the_max_timestamp_is_the_first_of_its_equals_and_of_an_empty_log_none(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("max"))
    client = stock.admin(broker.address)
    where = TopicPartition(topic, 0)

    def ask() -> tuple[int, int]:
        found = client.list_offsets({where: OffsetSpec.max_timestamp()})[where].result(30)
        return found.offset, found.timestamp

    assert ask() == (-1, -1)
    for batch in ((3, 9, 9, 1), (9, 2)):
        stock.confluent_write(broker.address, topic, [stock.Message(b"v", timestamp=T0 + delta) for delta in batch])
    assert ask() == (1, T0 + 9)


# Waiting for more


def test_a_waiting_fetch_wakes_when_data_arrives(broker: Broker) -> None:
    """The consumer would wait a minute; the record reaches it long before."""
    topic = stock.create_topic(broker.address, unique("wake"))
    consumer = stock.confluent_consumer(broker.address, **{"fetch.wait.max.ms": 60_000, "socket.timeout.ms": 120_000})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.consume(1, timeout=1) == []
        for n in range(5):
            stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n)])
            assert [one.value for one in stock.confluent_take(consumer, 1)] == [b"%d" % n]
    finally:
        consumer.close()


def test_a_fetch_waits_for_min_bytes_until_its_time_is_up(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("minbytes"))
    stock.confluent_write(broker.address, topic, [stock.Message(b"small")])
    consumer = stock.python_consumer(broker.address, fetch_min_bytes=100_000, fetch_max_wait_ms=2_000)
    try:
        where = PythonTopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        began = time.monotonic()
        found = consumer.poll(timeout_ms=20_000)
        # The lower bound is what the broker promises; an upper bound would depend on the machine.
        assert time.monotonic() - began > 1.5
        assert [record.value for record in found[where]] == [b"small"]
    finally:
        consumer.close()


def test_enough_bytes_end_a_wait_early(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("minbytes"))
    consumer = stock.python_consumer(broker.address, fetch_min_bytes=10_000, fetch_max_wait_ms=25_000)
    try:
        where = PythonTopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        assert consumer.poll(timeout_ms=500) == {}
        for _ in range(12):
            stock.confluent_write(broker.address, topic, [stock.Message(b"x" * 1000)])
        found = consumer.poll(timeout_ms=15_000)
        assert found, "the wait did not end with enough bytes"
        assert sum(len(record.value) for record in found[where]) >= 9_000
    finally:
        consumer.close()


def write_in_three_parts(broker: Broker, topic: str, values: list[bytes]) -> None:
    for n in (0, 100, 200):
        stock.confluent_write(broker.address, topic, [stock.Message(v) for v in values[n : n + 100]])


def test_readers_follow_a_writer(broker: Broker) -> None:
    for reader in stock.LIBRARIES:
        with case(reader):
            topic = stock.create_topic(broker.address, unique("follow"))
            values = [b"value %d" % n for n in range(300)]
            writing = threading.Thread(target=write_in_three_parts, args=(broker, topic, values))
            writing.start()
            found = stock.READERS[reader](broker.address, topic, 300)
            writing.join()
            assert [one.value for one in found] == values


def test_small_fetches_read_all_of_many_partitions(broker: Broker) -> None:
    """With fetches smaller than the data, every partition gets its turn."""
    topic = stock.create_topic(broker.address, unique("turns"), partitions=5)
    for partition in range(5):
        stock.confluent_write(
            broker.address, topic, [stock.Message(b"x" * 5_000)] * 60, partition=partition, **{"batch.num.messages": 4}
        )
    consumer = stock.confluent_consumer(
        broker.address, **{"fetch.max.bytes": 50_000, "message.max.bytes": 50_000, "max.partition.fetch.bytes": 20_000}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(5)])
        assert len(stock.confluent_take(consumer, 300)) == 300
    finally:
        consumer.close()
    assert stock.bounds(broker.address, topic, 4) == (0, 60)
