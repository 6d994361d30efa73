"""Retention and compaction as a stock client sees them: deleted and kept records, and the error of a slow reader."""

import time

import clients_stock as stock
import pytest
from brokers import Broker, eventually, unique
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType
from kafka import TopicPartition as PythonTopicPartition

pytest_plugins = ["clients_fixtures"]

MIB = 1 << 20
OLD = 1_600_000_000_000


def fill(broker: Broker, topic: str, mebibytes: int, timestamp: int | None = None) -> None:
    """Write that many MiB in batches of 128 KiB, which do not compress."""
    messages = [stock.Message(bytes(range(256)) * 256, b"%d" % n, timestamp=timestamp) for n in range(16 * mebibytes)]
    stock.confluent_write(broker.address, topic, messages, **{"batch.num.messages": 2})


def alter(broker: Broker, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = stock.admin(broker.address)
    client.incremental_alter_configs([resource])[resource].result(30)


def test_retention_by_size_moves_the_first_offset(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("bysize"), segment_bytes=MIB, retention_bytes=-1)
    fill(broker, topic, 6)
    # Only now, so that no segment is deleted before the last record is there: the first offset then moves once.
    alter(broker, topic, "retention.bytes", str(2 * MIB))
    first = eventually(lambda: stock.bounds(broker.address, topic)[0], "old segments are gone")
    end = stock.bounds(broker.address, topic)[1]
    assert end == 96
    # At least retention.bytes are kept, and the first record is at the log start offset.
    kept = stock.confluent_read(broker.address, topic, end - first, first)
    assert [one.offset for one in kept] == list(range(first, end))
    assert sum(len(one.value or b"") for one in kept) >= 1.9 * MIB


def test_retention_by_time_deletes_old_segments_and_keeps_young_ones(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("bytime"), segment_bytes=MIB, retention_ms=-1)
    fill(broker, topic, 3, OLD)
    fill(broker, topic, 2)
    assert stock.bounds(broker.address, topic) == (0, 80)
    alter(broker, topic, "retention.ms", "3600000")
    first = eventually(lambda: stock.bounds(broker.address, topic)[0], "old segments are gone")
    # A segment with one young record stays, with the old ones in it.
    assert 32 <= first <= 48
    assert stock.confluent_read(broker.address, topic, 1, first)[0].offset == first


def test_retention_deletes_all_but_new_records(broker: Broker) -> None:
    """The next record closes an old segment, which is then deleted; later records stay."""
    topic = stock.create_topic(broker.address, unique("old"), retention_ms=60_000, segment_ms=200)
    stock.confluent_write(broker.address, topic, [stock.Message(b"old", timestamp=OLD)] * 5)

    def first() -> int:
        stock.confluent_write(broker.address, topic, [stock.Message(b"new")])
        return stock.bounds(broker.address, topic)[0]

    eventually(lambda: first() >= 5, "the old ones are gone")
    end = stock.bounds(broker.address, topic)[1]
    assert {one.value for one in stock.confluent_read(broker.address, topic, end - 5, 5)} == {b"new"}


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_reader_that_retention_overtakes_gets_an_error_or_is_reset(broker: Broker, reset: str) -> None:
    topic = stock.create_topic(broker.address, unique("overtaken"), segment_bytes=MIB)
    fill(broker, topic, 4, OLD)
    small = {"max.partition.fetch.bytes": 200_000, "queued.max.messages.kbytes": 200, "queued.min.messages": 1}
    consumer = stock.confluent_consumer(broker.address, **{"auto.offset.reset": reset} | small)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert stock.confluent_take(consumer, 1)[0].offset == 0
        alter(broker, topic, "retention.ms", "1000")
        first = eventually(lambda: stock.bounds(broker.address, topic)[0], "old segments are gone")
        fill(broker, topic, 1)
        if reset == "earliest":
            # The records that the client had fetched before, then those that are still there.
            offsets = [0]
            while offsets[-1] < first:
                offsets += [one.offset for one in stock.confluent_take(consumer, 1)]
            assert offsets == sorted(set(offsets))
            return
        with pytest.raises(KafkaException) as told:
            stock.confluent_take(consumer, 100)
        assert told.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    finally:
        consumer.close()


def test_compaction_keeps_the_newest_of_each_key_at_its_offset(broker: Broker) -> None:
    topic = stock.create_topic(
        broker.address,
        unique("compacted"),
        cleanup_policy="compact",
        segment_bytes=MIB,
        segment_ms=500,
        min_cleanable_dirty_ratio=0.01,
        max_compaction_lag_ms=500,
    )
    newest: dict[bytes, tuple[int, bytes]] = {}
    for turn in range(3):
        messages = [stock.Message(b"%d of %d " % (turn, n) + b"x" * 2000, b"key %d" % (n % 50)) for n in range(200)]
        for message, offset in zip(
            messages, stock.confluent_write(broker.address, topic, messages, "lz4"), strict=True
        ):
            newest[message.key or b""] = (offset, message.value or b"")

    def compacted() -> list[tuple[bytes | None, int, bytes | None]]:
        _roll(broker, topic)
        found = _all(broker, topic)
        return [(one.key, one.offset, one.value) for one in found if one.key != b"filler"]

    expected = sorted((key, offset, value) for key, (offset, value) in newest.items())
    eventually(lambda: sorted(compacted()) == expected, "one record of each key", seconds=40)
    # Reading from an offset that compaction removed goes on at the next record.
    after = stock.confluent_read(broker.address, topic, 1, 0)[0]
    assert after.offset == min(offset for offset, _ in newest.values())


def test_a_tombstone_removes_its_key_and_then_itself(broker: Broker) -> None:
    topic = stock.create_topic(
        broker.address,
        unique("tombstone"),
        cleanup_policy="compact",
        segment_ms=300,
        min_cleanable_dirty_ratio=0.01,
        max_compaction_lag_ms=300,
        delete_retention_ms=100,
    )
    stock.confluent_write(
        broker.address,
        topic,
        [stock.Message(b"1", b"stays"), stock.Message(b"1", b"goes"), stock.Message(None, b"goes")],
    )

    def keys() -> list[bytes | None]:
        _roll(broker, topic)
        return [one.key for one in _all(broker, topic) if one.key != b"filler"]

    eventually(lambda: keys() == [b"stays"], "the tombstone is gone, too", seconds=40)


def test_a_keyless_record_on_a_compacted_topic_is_refused(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("keyless"), cleanup_policy="compact")
    with pytest.raises(KafkaException) as refused:
        stock.confluent_write(broker.address, topic, [stock.Message(b"with", b"key"), stock.Message(b"without")])
    assert refused.value.args[0].code() == KafkaError.INVALID_RECORD
    assert stock.bounds(broker.address, topic) == (0, 0)
    assert stock.confluent_write(broker.address, topic, [stock.Message(b"with", b"key")]) == [0]


def test_offsets_for_times_skip_records_that_retention_deleted(broker: Broker) -> None:
    topic = stock.create_topic(broker.address, unique("times"))
    now = int(time.time() * 1000)
    stock.confluent_write(broker.address, topic, [stock.Message(b"%d" % n, timestamp=now + n) for n in range(10)])
    client = stock.admin(broker.address)
    where = TopicPartition(topic, 0, 6)
    client.delete_records([where])[where].result(30)
    found = client.list_offsets({where: OffsetSpec.for_timestamp(now)})[where].result(30)
    assert (found.offset, found.timestamp) == (6, now + 6)
    consumer = stock.python_consumer(broker.address)
    try:
        place = PythonTopicPartition(topic, 0)
        assert consumer.offsets_for_times({place: now + 8})[place].offset == 8
        assert consumer.offsets_for_times({place: now + 3})[place].offset == 6
    finally:
        consumer.close()


def _roll(broker: Broker, topic: str) -> None:
    """Write one more record: it closes an active segment that is old enough, which can then be cleaned."""
    stock.confluent_write(broker.address, topic, [stock.Message(b"f", b"filler")])


def _all(broker: Broker, topic: str) -> list[stock.Read]:
    """All records up to the end as it is now; compaction leaves gaps, so they are not counted."""
    end = stock.bounds(broker.address, topic)[1]
    found: list[stock.Read] = []
    consumer = stock.confluent_consumer(broker.address)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not found or found[-1].offset < end - 1:
            (one,) = stock.confluent_take(consumer, 1)
            found.append(one)
        return found
    finally:
        consumer.close()
