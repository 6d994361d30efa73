"""Our own client against a real broker: producing, reading, administration, and links that break.

The same tests pass against Apache Kafka: `brokers.py` says how to put one in the place of our broker.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from brokers import Broker, StartBroker, eventually, replace_configs, unique
from cases import case
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from proxy import Exchange, Proxy, Verdict

from minibroker.client.aio import AsyncClient
from minibroker.client.errors import BrokerError, BrokerUnavailable, ClientClosed, ConnectionLost
from minibroker.clients import admin
from minibroker.clients.admin import ConfigOperation, ConfigSource, NewTopic, ResourceType
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import CONTROLLER, Client
from minibroker.clients.consumer import EARLIEST, LATEST, Consumer, OffsetReset
from minibroker.clients.errors import BrokerErrors, BufferFull, DeliveryTimedOut, OffsetOutOfRange, RecordTooLarge
from minibroker.clients.fetching import MAX_TIMESTAMP, READ_COMMITTED
from minibroker.clients.partitioners import RoundRobin
from minibroker.clients.producer import Producer
from minibroker.clients.retries import RetryPolicy
from minibroker.log.compression import Compression
from minibroker.log.record import Record
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

pytest_plugins = ["clients_fixtures"]

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
CONFIG_LINES = {"retention.ms": "3600000", "cleanup.policy": "delete"}
# An hour ago: old enough to differ from now, and too young for retention.
BASE_MS = time.time_ns() // 1_000_000 - 3_600_000


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address, client_id="ours") as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = unique("ours")
    admin.create_topics(client, [NewTopic(name, partitions=3, replication_factor=1)])
    return name


def read(client: Client, topic: str, count: int, **options: object) -> dict[int, list[Record]]:
    """The first records of a topic, by partition."""
    found: dict[int, list[Record]] = {}
    with Consumer(client, **options) as consumer:  # type: ignore[arg-type]
        consumer.assign_topic(topic, EARLIEST)
        deadline = time.monotonic() + 20
        while sum(map(len, found.values())) < count and time.monotonic() < deadline:
            for fetched in consumer.poll(500):
                found.setdefault(fetched.partition, []).extend(fetched)
    assert sum(map(len, found.values())) == count
    return found


# Producing and reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_read_back_and_by_librdkafka(
    client: Client, broker: Broker, topic: str, codec: Compression
) -> None:
    with Producer(client, compression=codec) as producer:
        deliveries = [
            producer.send(
                topic, b"v%d" % i * 50, key=b"k%d" % (i % 7), timestamp=BASE_MS + i, headers=[("h", b"%d" % i)]
            )
            for i in range(500)
        ]
    assert all(delivery.error is None for delivery in deliveries)
    records = [record for part in read(client, topic, 500).values() for record in part]
    assert sorted(record.timestamp for record in records) == list(range(BASE_MS, BASE_MS + 500))
    assert all(record.headers == [("h", b"%d" % (record.timestamp - BASE_MS))] for record in records)
    seen = confluent_read(broker, topic, 500)
    assert sorted(seen) == sorted((record.key, record.value) for record in records)


def confluent_read(broker: Broker, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    # librdkafka demands a group id; nothing is committed to the group.
    settings = {"group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    consumer = ConfluentConsumer({"bootstrap.servers": broker.address} | settings)
    try:
        consumer.assign([ConfluentPartition(topic, number, 0) for number in range(3)])
        found: list[tuple[bytes | None, bytes | None]] = []
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            found += [(it.key(), it.value()) for it in consumer.consume(count, 0.2) if not it.error()]
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_writes_is_read(client: Client, broker: Broker, topic: str, codec: str) -> None:
    producer = ConfluentProducer({"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 5})
    for i in range(300):
        producer.produce(topic, b"v%d" % i * 20, key=b"k", partition=i % 3, headers=[("a", None)])
    assert producer.flush(20) == 0
    records = [record for part in read(client, topic, 300).values() for record in part]
    assert {record.value for record in records} == {b"v%d" % i * 20 for i in range(300)}
    assert all(record.headers == [("a", None)] for record in records)


def test_offsets_partitions_and_order_are_as_promised(client: Client, topic: str) -> None:
    with Producer(client, linger_ms=1, batch_size=500) as producer:
        deliveries = [producer.send(topic, b"%d" % i, key=b"%d" % (i % 10)) for i in range(2000)]
    found = read(client, topic, 2000)
    for number, delivery in enumerate(deliveries):
        record = found[delivery.partition][delivery.offset]
        assert (record.offset, record.value) == (delivery.offset, b"%d" % number)
    for records in found.values():
        assert [record.offset for record in records] == list(range(len(records)))
        assert [int(record.value or b"") for record in records] == sorted(int(it.value or b"") for it in records)


def test_nulls_stay_nulls_and_empty_stays_empty(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        producer.send(topic, None, key=b"tombstone", partition=0)
        producer.send(topic, b"", key=b"", partition=0, headers=[("", b"")])
    records = read(client, topic, 2)[0]
    assert [(it.key, it.value, list(it.headers)) for it in records] == [
        (b"tombstone", None, []),
        (b"", b"", [("", b"")]),
    ]


@pytest.mark.parametrize(("acks", "offset"), [(0, -1), (1, 0), (-1, 0)])
def test_every_kind_of_acks_delivers(client: Client, topic: str, acks: int, offset: int) -> None:
    seen: list[Delivery] = []
    with Producer(client, acks=acks) as producer:
        delivery = producer.send(topic, b"x", partition=1, on_delivery=seen.append)
        assert producer.wait(delivery) == offset
    eventually(lambda: seen, "the callback")
    assert seen[0].offset == offset
    assert [record.value for record in read(client, topic, 1)[1]] == [b"x"]


def test_records_without_a_key_go_where_the_partitioner_wants(client: Client, topic: str) -> None:
    with Producer(client, partitioner=RoundRobin()) as producer:
        partitions = [producer.send(topic, b"x").partition for _ in range(6)]
    assert partitions == [0, 1, 2, 0, 1, 2]
    with Producer(client, batch_size=200, linger_ms=50) as producer:
        sticky = [producer.send(topic, b"x" * 20).partition for _ in range(200)]
    assert len(set(sticky)) == 3, "a full batch moves it on"
    changes = sum(a != b for a, b in itertools.pairwise(sticky))
    assert 10 <= changes <= 60, "but not before"


def test_a_topic_is_created_by_writing_to_it(client: Client) -> None:
    name = unique("ours-auto")
    with Producer(client) as producer:
        assert producer.wait(producer.send(name, b"x")) == 0


def test_a_record_over_the_topics_limit_is_refused_and_the_next_one_is_not(client: Client) -> None:
    name = unique("ours-small")
    admin.create_topics(client, [NewTopic(name, 1, 1, {"max.message.bytes": "2000"})])
    with Producer(client) as producer:
        good = producer.send(name, b"a")
        producer.flush()
        bad = producer.send(name, b"x" * 5000)
        producer.flush()
        after = producer.send(name, b"b")
        producer.flush()
        with pytest.raises(RecordTooLarge):
            producer.send(name, bytes(2 * 1024 * 1024))
    assert (good.offset, after.offset) == (0, 1)
    assert isinstance(bad.error, BrokerError)
    assert bad.error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_larger_than_a_fetch_is_read(client: Client, topic: str) -> None:
    name = unique("ours-large")
    admin.create_topics(client, [NewTopic(name, 1, 1, {"max.message.bytes": "9000000"})])
    large = bytes(8_000_000)
    with Producer(client, max_request_size=9_000_000) as producer:
        producer.wait(producer.send(name, large))
    assert read(client, name, 1, partition_max_bytes=1000, max_bytes=1000)[0][0].value == large


def test_a_partition_that_does_not_exist_is_refused_at_once(client: Client, topic: str) -> None:
    with Producer(client) as producer, pytest.raises(BrokerError, match="no partition 3: the topic has 3, from 0 to 2"):
        producer.send(topic, b"x", partition=3)


def test_values_must_be_bytes(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        with pytest.raises(TypeError, match="value is bytes or None, not str"):
            producer.send(topic, "text")  # type: ignore[arg-type]
        producer.send(topic, b"bytes")
    with pytest.raises(ClientClosed):
        producer.send(topic, b"late")


def test_a_partition_added_later_is_used(client: Client, topic: str) -> None:
    with Producer(client) as producer:
        producer.wait(producer.send(topic, b"x", partition=0))
        admin.create_partitions(client, {topic: 5})
        eventually(lambda: len(admin.describe_topics(client, [topic])[topic].partitions) == 5, "five partitions")
        assert producer.wait(producer.send(topic, b"y", partition=4)) == 0


# Positions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(client: Client, topic: str) -> TopicPartition:
    """Partition 0 with 100 records in batches of about ten, one for each 10 ms."""
    with Producer(client, linger_ms=0, batch_size=400) as producer:
        for i in range(100):
            producer.send(topic, b"%04d" % i * 5, partition=0, timestamp=BASE_MS + 10 * i)
    return TopicPartition(topic, 0)


def first_from(client: Client, partition: TopicPartition, offset: int) -> Record:
    with Consumer(client) as consumer:
        consumer.assign([partition], {partition: offset})
        fetched = eventually(lambda: consumer.poll(500), "a batch")[0]
        assert fetched.fetch_offset == offset or offset < 0
        return next(iter(fetched))


def test_reading_begins_exactly_at_the_offset(client: Client, filled: TopicPartition) -> None:
    for offset in (0, 1, 37, 99):
        with case(offset):
            assert first_from(client, filled, offset).offset == offset


def test_offsets_by_time_are_exact(client: Client, filled: TopicPartition) -> None:
    with Consumer(client) as consumer:
        for time_ms, offset in ((0, 0), (BASE_MS, 0), (BASE_MS + 1, 1), (BASE_MS + 370, 37), (BASE_MS + 990, 99)):
            found = consumer.offsets_for_times({filled: time_ms})[filled]
            assert found is not None
            assert found.offset == offset
        assert consumer.offsets_for_times({filled: BASE_MS + 991})[filled] is None
        assert consumer.beginning_offsets([filled]) == {filled: 0}
        assert consumer.end_offsets([filled]) == {filled: 100}
    newest = admin.list_offsets(client, {filled: MAX_TIMESTAMP})[filled]
    assert (newest.offset, newest.timestamp) == (99, BASE_MS + 990)


def test_a_position_can_be_moved_while_reading(client: Client, filled: TopicPartition) -> None:
    with Consumer(client, max_bytes=1000, partition_max_bytes=1000) as consumer:
        consumer.assign([filled], {filled: 0})
        eventually(lambda: consumer.poll(500), "a batch")
        consumer.seek(filled, 90)
        fetched = eventually(lambda: consumer.poll(500), "a batch")[0]
        assert next(record.offset for record in fetched) == 90
        consumer.seek(filled, EARLIEST)
        assert consumer.position(filled) == 0
        consumer.seek(filled, LATEST)
        assert consumer.position(filled) == 100
        assert consumer.poll(50) == []


def test_a_paused_partition_gives_nothing_until_it_is_resumed(client: Client, filled: TopicPartition) -> None:
    with Consumer(client) as consumer:
        consumer.assign([filled], {filled: 0})
        consumer.pause([filled])
        assert consumer.poll(100) == []
        consumer.resume([filled])
        assert next(iter(eventually(lambda: consumer.poll(500), "a batch")[0])).offset == 0


def test_deleted_records_are_skipped_or_an_error_as_the_reader_wants(client: Client, filled: TopicPartition) -> None:
    assert admin.delete_records(client, {filled: 40}) == {filled: 40}
    with Consumer(client, offset_reset=OffsetReset.EARLIEST) as consumer:
        consumer.assign([filled], {filled: 5})
        assert next(iter(eventually(lambda: consumer.poll(500), "a batch")[0])).offset == 40
    with Consumer(client, offset_reset=OffsetReset.ERROR) as consumer:
        consumer.assign([filled], {filled: 5})
        with pytest.raises(OffsetOutOfRange, match=f"offset 5 is not in {filled}"):
            consumer.poll(5000)


def test_a_reader_at_the_end_gets_what_comes(client: Client, topic: str) -> None:
    partition = TopicPartition(topic, 2)
    with Consumer(client, max_wait_ms=10_000) as consumer, Producer(client, linger_ms=0) as producer:
        consumer.assign([partition], {partition: LATEST})
        assert consumer.poll(100) == []
        producer.send(topic, b"news", partition=2)
        fetched = eventually(lambda: consumer.poll(5000), "the news")[0]
        assert [record.value for record in fetched] == [b"news"]
        assert consumer.high_watermark(partition) == 1


def test_a_question_while_a_fetch_waits_does_not_lose_its_answer(client: Client, topic: str) -> None:
    """Both went over one connection, and the answer to the fetch was dropped: the reader waited for half a minute."""
    partition = TopicPartition(topic, 0)
    with Consumer(client, max_wait_ms=5_000) as reader, Producer(client) as producer:
        reader.assign([partition], {partition: 0})
        assert reader.poll(0) == []
        producer.send(topic, b"new", partition=0)
        producer.flush()
        assert reader.end_offsets([partition]) == {partition: 1}
        (fetched,) = reader.poll(20_000)
        assert [it.value for it in fetched] == [b"new"]


def test_committed_readers_read_what_is_not_in_a_transaction(client: Client, filled: TopicPartition) -> None:
    assert len(read(client, filled.topic, 100, isolation_level=READ_COMMITTED)[0]) == 100


def test_a_topic_made_anew_is_written_and_read_from_its_start(client: Client, filled: TopicPartition) -> None:
    name = filled.topic
    with Producer(client) as producer, Consumer(client, offset_reset=OffsetReset.EARLIEST) as consumer:
        producer.wait(producer.send(name, b"old", partition=0))
        consumer.assign([filled], {filled: 0})
        eventually(lambda: consumer.poll(500) and consumer.position(filled) > 90, "the old records")
        admin.delete_topics(client, [name])
        eventually(lambda: name not in admin.list_topics(client), "the topic is gone")
        admin.create_topics(client, [NewTopic(name, partitions=1, replication_factor=1)])
        assert producer.wait(producer.send(name, b"new", partition=0), 20_000) == 0
        values: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while b"new" not in values and time.monotonic() < deadline:
            # While there is no such topic a poll says so.
            with contextlib.suppress(BrokerError):
                values += [record.value for fetched in consumer.poll(500) for record in fetched]
    assert values[-1] == b"new"


def test_reading_a_topic_that_does_not_exist_says_so(broker: Broker) -> None:
    missing = TopicPartition(unique("missing"), 0)
    impatient = RetryPolicy(backoff_ms=5, backoff_ms_max=20)
    with Client(broker.address, retry=impatient) as client, Consumer(client) as consumer:
        consumer.assign([missing], {missing: 0})
        with pytest.raises(BrokerError, match="does not exist"):
            consumer.poll(10_000)


# Administration -----------------------------------------------------------------------------------------------------


def test_topics_are_created_described_grown_and_deleted(client: Client) -> None:
    name = unique("ours-admin")
    made = admin.create_topics(client, [NewTopic(name, 2, 1, CONFIG_LINES)])[name]
    assert (made.partitions, made.replication_factor, made.configs["retention.ms"]) == (2, 1, "3600000")
    described = admin.describe_topics(client, [name])[name]
    assert [it.partition for it in described.partitions] == [0, 1]
    assert described.topic_id == made.topic_id
    assert described.partitions[0].replicas == described.partitions[0].isr
    with pytest.raises(BrokerError) as raised:
        admin.create_topics(client, [NewTopic(name)])
    assert raised.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    admin.create_partitions(client, {name: 4})
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        admin.create_partitions(client, {name: 2})
    assert name in admin.list_topics(client)
    admin.delete_topics(client, [name])
    eventually(lambda: name not in admin.list_topics(client), "the topic is gone")
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.delete_topics(client, [name])


def test_checking_creates_nothing_and_several_errors_come_together(client: Client) -> None:
    name = unique("ours-check")
    admin.create_topics(client, [NewTopic(name, 1, 1)], validate_only=True)
    assert name not in admin.list_topics(client)
    with pytest.raises(BrokerErrors) as raised:
        admin.create_topics(client, [NewTopic("a/b", 1, 1), NewTopic(name, 1, 1, {"retention.ms": "soon"})])
    assert {error.code for error in raised.value.errors.values()} == {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_CONFIG,
    }


def test_configurations_are_described_and_altered(client: Client, topic: str) -> None:
    def now() -> dict[str, tuple[str | None, ConfigSource]]:
        entries = admin.describe_configs(client, ResourceType.TOPIC, [topic])[topic]
        return {name: (it.value, it.source) for name, it in entries.items()}

    def altered(name: str, value: str, source: ConfigSource) -> None:
        eventually(lambda: now()[name] == (value, source), f"{name}={value}")

    assert now()["retention.ms"] == ("604800000", ConfigSource.DEFAULT_CONFIG)
    admin.alter_configs(client, ResourceType.TOPIC, topic, {"retention.ms": "1000", "segment.bytes": "2000000"})
    altered("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    admin.alter_configs(client, ResourceType.TOPIC, topic, {"retention.ms": None})
    altered("retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG)
    altered("segment.bytes", "2000000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    added = [("cleanup.policy", ConfigOperation.APPEND, "compact")]
    admin.alter_configs(client, ResourceType.TOPIC, topic, added)
    altered("cleanup.policy", "delete,compact", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    replace_configs(client, topic, {"retention.ms": "5000"})
    altered("cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG)
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        admin.alter_configs(client, ResourceType.TOPIC, topic, {"retention.ms": "soon"})


def test_the_cluster_and_its_disks_are_described(client: Client, filled: TopicPartition) -> None:
    cluster = admin.describe_cluster(client)
    node = cluster.nodes[0]
    assert cluster.controller_id in [it.node_id for it in cluster.nodes]
    assert client.leader(*filled) == node.node_id
    directories = admin.describe_log_dirs(client)[node.node_id]
    assert sum(it.partition_bytes.get(filled, 0) for it in directories) > 1000
    broker = admin.describe_configs(client, ResourceType.BROKER, [str(node.node_id)])[str(node.node_id)]
    assert broker["log.retention.check.interval.ms"].value
    assert client.send(MetadataRequest(topics=[]), node_id=CONTROLLER).cluster_id == cluster.cluster_id


def test_asyncio_speaks_to_the_same_broker(broker: Broker, topic: str) -> None:
    async def ask() -> list[MetadataResponse]:
        async with AsyncClient(broker.address) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            return list(await asyncio.gather(*(client.send(request) for _ in range(20))))

    answers = asyncio.run(ask())
    assert all(answer.topics[0].partitions[0].leader_id >= 0 for answer in answers)
    assert len({answer.cluster_id for answer in answers}) == 1


# Links that break ---------------------------------------------------------------------------------------------------


def every(count: int, verdict: Verdict, key: int) -> Callable[[Exchange], Verdict]:
    """Apply the verdict to each `count`-th frame of an API."""
    seen = 0

    def decide(exchange: Exchange) -> Verdict:
        nonlocal seen
        seen += exchange.api_key == key
        return verdict if exchange.api_key == key and seen % count == 0 else Verdict.PASS

    return decide


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.TEAR])
@pytest.mark.parametrize("way", ["on_request", "on_response"])
def test_idempotence_keeps_one_copy_in_order_over_a_link_that_breaks(
    broker: Broker, client: Client, topic: str, verdict: Verdict, way: str
) -> None:
    impatient = RetryPolicy(backoff_ms=5, backoff_ms_max=20)
    with Proxy(broker.address) as proxy, Client(proxy.address, retry=impatient) as through:
        setattr(proxy, way, every(4, verdict, PRODUCE))
        with Producer(through, batch_size=300, linger_ms=1) as producer:
            deliveries = [producer.send(topic, b"%d" % i, partition=i % 2) for i in range(600)]
            producer.flush()
    assert [delivery.error for delivery in deliveries] == [None] * 600
    found = read(client, topic, 600)
    for partition, records in found.items():
        assert [int(record.value or b"") for record in records] == list(range(partition, 600, 2))


def test_a_reader_survives_a_link_that_breaks(broker: Broker, filled: TopicPartition) -> None:
    with Proxy(broker.address) as proxy, Client(proxy.address) as through:
        proxy.on_response = every(2, Verdict.TEAR, FETCH)
        with Consumer(through, max_bytes=1000, partition_max_bytes=1000) as consumer:
            consumer.assign([filled], {filled: 0})
            offsets: list[int] = []
            deadline = time.monotonic() + 30
            while len(offsets) < 100 and time.monotonic() < deadline:
                offsets += [record.offset for fetched in consumer.poll(200) for record in fetched]
    assert offsets == list(range(100))


def test_a_record_without_an_acknowledgement_is_given_up_at_its_deadline(broker: Broker, topic: str) -> None:
    with (
        Proxy(broker.address) as proxy,
        Client(proxy.address) as through,
        Producer(through, delivery_timeout_ms=300, linger_ms=0) as producer,
    ):
        proxy.on_request = every(1, Verdict.CUT, PRODUCE)
        delivery = producer.send(topic, b"x", partition=0)
        with pytest.raises(DeliveryTimedOut, match=r"1 records for .* not acknowledged within 300 ms"):
            producer.wait(delivery)


def test_a_reader_gets_an_error_without_an_answer_within_its_timeout(broker: Broker, filled: TopicPartition) -> None:
    with (
        Proxy(broker.address) as proxy,
        Client(proxy.address, timeout_ms=500) as through,
        Consumer(through) as consumer,
    ):
        consumer.assign([filled], {filled: 0})
        fetched = eventually(lambda: consumer.poll(500), "a batch")
        assert next(iter(fetched[0])).offset == 0
        proxy.close()
        with pytest.raises((BrokerUnavailable, ConnectionLost), match=proxy.address):
            eventually(lambda: consumer.poll(100) and None, "an error")


def test_memory_is_bounded_when_the_broker_does_not_answer(broker: Broker, topic: str) -> None:
    with Proxy(broker.address) as proxy, Client(proxy.address) as through:
        producer = Producer(through, buffer_memory=100_000, max_block_ms=100, delivery_timeout_ms=60_000)
        try:
            producer.wait(producer.send(topic, b"x", partition=0))
            proxy.withhold()
            for _ in range(85):
                producer.send(topic, b"x" * 1000, partition=0)
            with pytest.raises(BufferFull, match="of 100000 bytes"):
                producer.send(topic, b"x" * 15_000, partition=0)
            proxy.release()
            producer.flush(20_000)
        finally:
            producer.close(timeout_ms=0)


def test_producer_and_reader_go_on_after_the_broker_was_killed(start: StartBroker, tmp_path: Path) -> None:
    broker = start()
    name = unique("ours-killed")
    with Client(broker.address) as client:
        admin.create_topics(client, [NewTopic(name, 1, 1)])
        partition = TopicPartition(name, 0)
        with Producer(client, linger_ms=0) as producer, Consumer(client) as consumer:
            consumer.assign([partition], {partition: 0})
            before = producer.send(name, b"before")
            assert producer.wait(before) == 0
            broker.kill()
            during = producer.send(name, b"during")
            broker.restart()
            assert producer.wait(during, 30_000) == 1
            values: list[bytes | None] = []
            deadline = time.monotonic() + 30
            while len(values) < 2 and time.monotonic() < deadline:
                values += [record.value for fetched in consumer.poll(500) for record in fetched]
    assert values == [b"before", b"during"]
