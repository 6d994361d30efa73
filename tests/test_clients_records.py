"""Records through stock clients: what one of them writes, all of them read, whole and unchanged."""

import itertools
from functools import partial

import pytest
from brokers import Broker, eventually, unique
from cases import case
from clients_stock import (
    CODECS,
    CREATE_TIME,
    LIBRARIES,
    LOG_APPEND_TIME,
    READERS,
    WRITERS,
    Message,
    aiokafka_write,
    bounds,
    confluent_consumer,
    confluent_read,
    confluent_take,
    confluent_write,
    create_topic,
    kcat,
    python_write,
)
from confluent_kafka import KafkaError, KafkaException, TopicPartition

pytest_plugins = ["clients_fixtures"]

# A time in the past, so that it cannot be mistaken for the time of any clock.
T0 = 1_700_000_000_000


# Codecs


@pytest.mark.parametrize("writer", WRITERS)
def test_every_codec_of_every_client_is_read_by_all_others(broker: Broker, writer: str) -> None:
    for codec in CODECS:
        with case(codec):
            topic = create_topic(broker.address, unique("codec"))
            headers = (("origin", writer.encode()), ("codec", codec.encode()))
            messages = [Message(b"value %d " % n + b"x" * 200, b"key %d" % (n % 7), headers) for n in range(50)]
            WRITERS[writer](broker.address, topic, messages, codec)
            for name, read in READERS.items():
                if name == "kcat" and writer != "kcat":
                    continue  # covered by its own test, where it can be skipped
                found = read(broker.address, topic, len(messages))
                assert [one.offset for one in found] == list(range(50)), name
                assert [one.message[:3] for one in found] == [message[:3] for message in messages], name


def test_kcat_reads_every_codec_of_every_library(broker: Broker) -> None:
    for codec in CODECS:
        with case(codec):
            topic = create_topic(broker.address, unique("kcat"))
            messages = [Message(b"value %d " % n + b"x" * 200, b"key %d" % n, (("n", b"%d" % n),)) for n in range(10)]
            for name in LIBRARIES:
                WRITERS[name](broker.address, topic, messages, codec)
            found = READERS["kcat"](broker.address, topic, 30)
            assert [one.offset for one in found] == list(range(30))
            assert [one.message[:3] for one in found] == [message[:3] for message in messages] * 3


def test_a_topics_own_codec_is_what_a_reader_gets(broker: Broker) -> None:
    """With compression.type set, the broker compresses what a producer did not."""
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with case(codec):
            topic = create_topic(broker.address, unique("recoded"), compression_type=codec)
            messages = [Message(b"value %d " % n + b"x" * 200, b"key", timestamp=T0 + n) for n in range(20)]
            assert confluent_write(broker.address, topic, messages) == list(range(20))
            for name in LIBRARIES:
                assert [one.message for one in READERS[name](broker.address, topic, 20)] == messages, name


# Default settings


def test_every_producer_works_with_its_default_settings(broker: Broker) -> None:
    for writer in LIBRARIES:
        with case(writer):
            topic = create_topic(broker.address, unique("default"), partitions=3)
            messages = [Message(b"value %d" % n, b"key %d" % n) for n in range(100)]
            defaults = {"confluent": {"linger.ms": 5}}.get(writer, {"linger_ms": 0})
            offsets = WRITERS[writer](broker.address, topic, messages, partition=2, **defaults)
            assert offsets == list(range(100))
            assert [one.message[:2] for one in READERS[writer](broker.address, topic, 100, partition=2)] == [
                message[:2] for message in messages
            ]


def test_every_producer_works_with_and_without_idempotence(broker: Broker) -> None:
    for writer, setting in (
        ("confluent", "enable.idempotence"),
        ("kafka-python", "enable_idempotence"),
        ("aiokafka", "enable_idempotence"),
    ):
        for is_idempotent in (True, False):
            with case(writer, setting, is_idempotent):
                topic = create_topic(broker.address, unique("idempotent"))
                messages = [Message(b"value %d" % n, b"key") for n in range(1000)]
                # Small batches, so that sequence numbers grow over many of them and several are in flight at once.
                small = {"confluent": {"batch.num.messages": 50}, "kafka-python": {"batch_size": 1000}}
                settings = small.get(writer, {"max_batch_size": 1000}) | {setting: is_idempotent}
                assert WRITERS[writer](broker.address, topic, messages, **settings) == list(range(1000))
                assert [one.value for one in confluent_read(broker.address, topic, 1000)] == [
                    one.value for one in messages
                ]


def test_a_keyless_stream_reaches_every_partition(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("keyless"), partitions=3)
    for n in range(30):
        kcat("-P", "-b", broker.address, "-t", topic, given=b"value %d\n" % n)
        if sum(bounds(broker.address, topic, p)[1] > 0 for p in range(3)) == 3:
            break
    ends = [bounds(broker.address, topic, p)[1] for p in range(3)]
    assert sum(ends) == n + 1
    assert all(ends), ends


# What a record carries


def test_headers_keep_their_order_duplicates_nulls_and_bytes(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("headers"))
    headers = (
        ("a", b"1"),
        ("b", None),
        ("a", b"2"),
        ("a", b""),
        ("binary", bytes(range(256))),
        ("ü€", b"x"),
        ("", b"y"),
    )
    confluent_write(broker.address, topic, [Message(b"value", b"key", headers)])
    for name in LIBRARIES:
        assert READERS[name](broker.address, topic, 1)[0].headers == headers, name


def test_headers_of_the_python_clients_arrive(broker: Broker) -> None:
    for writer in ("kafka-python", "aiokafka"):
        with case(writer):
            topic = create_topic(broker.address, unique("headers"))
            headers = (("a", b"1"), ("a", b"2"), ("binary", bytes(range(256))), ("empty", b""))
            WRITERS[writer](broker.address, topic, [Message(b"value", b"key", headers)])
            assert confluent_read(broker.address, topic, 1)[0].headers == headers


def test_null_and_empty_keys_and_values_are_told_apart(broker: Broker) -> None:
    for writer in LIBRARIES:
        with case(writer):
            topic = create_topic(broker.address, unique("null"))
            messages = [Message(value, key) for value, key in itertools.product([b"v", b"", None], [b"k", b"", None])]
            if writer != "confluent":
                messages.remove(Message(None, None))  # the Python clients refuse a record without key and value
            WRITERS[writer](broker.address, topic, messages)
            for name in LIBRARIES:
                found = READERS[name](broker.address, topic, len(messages))
                assert [(one.value, one.key) for one in found] == [message[:2] for message in messages], name


def test_kcat_tells_null_from_text(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("null"))
    messages = [Message(b"value", b"key"), Message(None, b"key"), Message(b"value", None)]
    WRITERS["kcat"](broker.address, topic, messages)
    assert [one.message[:2] for one in READERS["kcat"](broker.address, topic, 3)] == [one[:2] for one in messages]


# Timestamps


def test_create_time_is_the_producers(broker: Broker) -> None:
    for writer in LIBRARIES:
        with case(writer):
            topic = create_topic(broker.address, unique("createtime"))
            messages = [Message(b"v", b"k", timestamp=T0 + delta) for delta in (5, 0, -5, 1_000_000)]
            WRITERS[writer](broker.address, topic, messages)
            for name in LIBRARIES:
                found = READERS[name](broker.address, topic, 4)
                assert [one.timestamp for one in found] == [message.timestamp for message in messages], name
                assert {one.timestamp_type for one in found} == {CREATE_TIME}, name


def test_log_append_time_is_the_brokers(broker: Broker) -> None:
    for codec in ("none", "zstd"):
        for writer in LIBRARIES:
            with case(codec, writer):
                topic = create_topic(broker.address, unique("appendtime"), message_timestamp_type="LogAppendTime")
                WRITERS[writer](broker.address, topic, [Message(b"v", b"k", timestamp=T0 + n) for n in range(3)], codec)
                seen = [READERS[name](broker.address, topic, 3) for name in LIBRARIES]
                for found in seen:
                    assert {one.timestamp_type for one in found} == {LOG_APPEND_TIME}
                    assert all(one.timestamp > T0 + 1_000_000_000 for one in found)
                assert seen[0] == seen[1] == seen[2]


def test_the_timestamp_type_of_a_topic_can_be_changed(broker: Broker) -> None:
    from clients_stock import admin
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    topic = create_topic(broker.address, unique("altered"))
    confluent_write(broker.address, topic, [Message(b"v", timestamp=T0)])
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(broker.address)
    client.incremental_alter_configs([resource])[resource].result(30)

    def is_stamped() -> bool:
        (offset,) = confluent_write(broker.address, topic, [Message(b"v", timestamp=T0)])
        return confluent_read(broker.address, topic, 1, offset)[0].timestamp_type == LOG_APPEND_TIME

    eventually(is_stamped, "a record stamped by the broker")
    assert confluent_read(broker.address, topic, 1)[0].timestamp == T0


def test_a_timestamp_too_far_ahead_is_refused(broker: Broker) -> None:
    """message.timestamp.after.max.ms is an hour by default."""
    topic = create_topic(broker.address, unique("future"))
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(b"v", timestamp=4_000_000_000_000)])
    assert refused.value.args[0].code() == KafkaError.INVALID_TIMESTAMP


# Acks and sizes


def test_acks_of_confluent(broker: Broker) -> None:
    for acks in ("0", "1", "all"):
        with case(acks):
            topic = create_topic(broker.address, unique("acks"))
            messages = [Message(b"value %d" % n) for n in range(100)]
            offsets = confluent_write(broker.address, topic, messages, acks=acks)
            assert acks == "0" or offsets == list(range(100))
            assert [one.value for one in confluent_read(broker.address, topic, 100)] == [one.value for one in messages]


def ends_at(broker: Broker, topic: str, offset: int) -> bool:
    return bounds(broker.address, topic)[1] == offset


def test_acks_of_the_python_clients(broker: Broker) -> None:
    for acks in (0, 1, "all"):
        with case(acks):
            topic = create_topic(broker.address, unique("acks"))
            messages = [Message(b"value %d" % n, b"key") for n in range(20)]
            python_write(broker.address, topic, messages, acks=acks, enable_idempotence=False)
            eventually(partial(ends_at, broker, topic, 20), "20 records of kafka-python")
            aiokafka_write(broker.address, topic, messages, acks=acks)
            found = confluent_read(broker.address, topic, 40)
            assert [one.value for one in found] == [one.value for one in messages] * 2


def test_a_producer_with_acks_0_goes_on_after_a_refused_record(broker: Broker) -> None:
    """The broker can only close the connection; the client opens another."""
    from clients_stock import confluent_producer

    topic = create_topic(broker.address, unique("acks0"), max_message_bytes=1000)
    producer = confluent_producer(broker.address, acks=0, **{"linger.ms": 0})
    producer.produce(topic, b"x" * 5000, partition=0)
    producer.flush(10)

    def has_arrived() -> bool:
        producer.produce(topic, b"small", partition=0)
        producer.flush(10)
        return bounds(broker.address, topic)[1] > 0

    eventually(has_arrived, "a small record after the refused one")
    assert confluent_read(broker.address, topic, 1)[0].value == b"small"


def test_a_record_over_the_topics_limit_is_refused(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("limit"), max_message_bytes=10_000)
    assert confluent_write(broker.address, topic, [Message(b"x" * 9_000)]) == [0]
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(b"x" * 11_000)])
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    for write in (python_write, aiokafka_write):
        with pytest.raises(Exception, match="MessageSizeTooLarge"):
            write(broker.address, topic, [Message(b"x" * 11_000, b"key")])
    # The refused record is not in the log, and a record that fits when compressed is accepted.
    assert confluent_write(broker.address, topic, [Message(b"x" * 100_000)], "gzip") == [1]
    assert bounds(broker.address, topic) == (0, 2)


def test_a_record_over_the_brokers_limit_is_refused(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("limit"))
    with pytest.raises(KafkaException) as refused:
        confluent_write(broker.address, topic, [Message(b"x" * 2_000_000)], **{"message.max.bytes": 5_000_000})
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_record_of_8_mb_passes_through_a_fetch_of_1_mb(broker: Broker) -> None:
    for reader in LIBRARIES:
        with case(reader):
            topic = create_topic(broker.address, unique("large"), max_message_bytes=10_000_000)
            large = Message(bytes(range(256)) * (8_000_000 // 256), b"large")
            offsets = confluent_write(
                broker.address,
                topic,
                [Message(b"a"), large, Message(b"b")],
                **{"message.max.bytes": 10_000_000, "linger.ms": 0},
            )
            assert sorted(offsets) == [0, 1, 2]
            limit = {
                "confluent": {
                    "fetch.message.max.bytes": 1_000_000,
                    "fetch.max.bytes": 1_000_000,
                    "message.max.bytes": 1_000_000,
                },
                "kafka-python": {"max_partition_fetch_bytes": 1_000_000, "fetch_max_bytes": 1_000_000},
                "aiokafka": {"max_partition_fetch_bytes": 1_000_000, "fetch_max_bytes": 1_000_000},
            }[reader]
            found = READERS[reader](broker.address, topic, 3, **limit)
            assert {one.value for one in found} == {b"a", large.value, b"b"}


# Many partitions at once


def test_one_consumer_reads_many_partitions_each_in_order(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("many"), partitions=20)
    for partition in range(20):
        confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(50)], partition=partition)
    consumer = confluent_consumer(broker.address)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(20)])
        found = confluent_take(consumer, 1000)
    finally:
        consumer.close()
    assert len(found) == 1000
    assert all([one.offset for one in found].count(n) == 20 for n in range(50))
