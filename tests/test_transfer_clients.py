"""Fetch sessions and quotas with stock clients on real sockets.

No stock client in Python can set quotas, so these requests are built by hand. `make test-java` sets them with Kafka's
own tool.
"""

import time
from contextlib import ExitStack, closing
from typing import Any

import pytest
from brokers import Broker, StartBroker, eventually, unique
from cases import case
from clients_raw import ANYONE, DESCRIBE_CLIENT_QUOTAS, Connection, array, header, i8, metadata, set_quota
from clients_stock import (
    READ_S_MAX,
    Message,
    admin,
    aiokafka_read,
    confluent_consumer,
    confluent_producer,
    confluent_read,
    confluent_write,
    create_topic,
    python_consumer,
    python_read,
    python_write,
)
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import NewTopic as PythonNewTopic
from kafka.errors import ThrottlingQuotaExceededError

pytest_plugins = ["clients_fixtures"]

PARTITIONS = 60
# Rates are measured over two samples of a second, so that a test need not wait for ten seconds.
QUICK_QUOTAS = ("quota.window.num=2", "controller.quota.window.num=2")
WINDOW_S = 2
RATE = 250_000
RECORD_BYTES = 10_000
RECORDS = 70


def quota_count(broker: Broker) -> int:
    """How many entities have quotas."""
    with Connection(broker) as connection:
        answer = connection.ask(header(DESCRIBE_CLIENT_QUOTAS, 0) + array([]) + i8(0))
    _throttle_ms, code, _message, count = answer.take("i"), answer.take("h"), answer.string(), answer.take("i")
    assert code == 0
    return int(count)


@pytest.fixture
def limited(start: StartBroker) -> Broker:
    return start(*QUICK_QUOTAS)


class Pace:
    """Checks that no more bytes pass than a rate allows. A slow machine passes the check, too."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._bytes = 0

    def add(self, count: int, *, spare: int) -> None:
        """`spare` bytes may be under way: what one request holds."""
        self._bytes += count
        elapsed_s = time.monotonic() - self._since
        assert self._bytes <= RATE * (elapsed_s + WINDOW_S) + spare, f"{self._bytes} bytes after {elapsed_s:.1f} s"


# Quotas


def test_a_producer_is_told_to_wait_and_slows_down(limited: Broker) -> None:
    topic, throttled, pace = create_topic(limited.address, unique("slow")), list[float](), Pace()
    set_quota(limited, (("client-id", "eager"),), producer_byte_rate=RATE)
    producer = confluent_producer(
        limited.address,
        **{
            "client.id": "eager",
            "batch.size": 5 * RECORD_BYTES,
            "max.in.flight": 1,
            "linger.ms": 0,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        },
    )

    def on_delivery(error: object, _message: object) -> None:
        assert error is None
        pace.add(RECORD_BYTES, spare=2 * RATE)

    for _ in range(RECORDS):
        producer.produce(topic, b"x" * RECORD_BYTES, on_delivery=on_delivery)
    assert producer.flush(READ_S_MAX) == 0
    assert throttled, "librdkafka was never told to wait"
    # Another client id has no quota.
    assert confluent_write(limited.address, topic, [Message(b"free")], **{"client.id": "other"}) == [RECORDS]


def test_a_consumer_is_told_to_wait_and_gets_everything(limited: Broker) -> None:
    topic = create_topic(limited.address, unique("slow"))
    messages = [Message(b"%05d" % number + b"x" * RECORD_BYTES) for number in range(RECORDS)]
    confluent_write(limited.address, topic, messages, **{"batch.size": 2 * RECORD_BYTES})
    set_quota(limited, ANYONE, consumer_byte_rate=RATE)
    throttled, pace = list[float](), Pace()
    consumer = confluent_consumer(limited.address, throttle_cb=lambda event: throttled.append(event.throttle_time))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + READ_S_MAX
    while len(found) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(RECORDS, timeout=0.2):
            found.append(message.value() or b"")
            pace.add(len(found[-1]), spare=RATE)
    consumer.close()
    assert found == [it.value for it in messages]
    assert throttled, "librdkafka was never told to wait"
    for name, read in (("kafka-python", python_read), ("aiokafka", aiokafka_read)):
        with case(name):
            assert [it.value for it in read(limited.address, topic, RECORDS)] == [it.value for it in messages]


def test_a_quota_survives_a_restart_and_ends_when_it_is_removed(limited: Broker) -> None:
    topic = create_topic(limited.address, unique("slow"))
    set_quota(limited, ANYONE, producer_byte_rate=1000)
    limited.kill()
    limited.start()
    assert quota_count(limited) == 1
    throttled: list[float] = []
    settings: dict[str, Any] = {"throttle_cb": lambda event: throttled.append(event.throttle_time)}
    confluent_write(limited.address, topic, [Message(b"x" * 5000)], **settings)
    assert throttled
    set_quota(limited, ANYONE, producer_byte_rate=None)
    assert quota_count(limited) == 0
    throttled.clear()
    confluent_write(limited.address, topic, [Message(b"x" * 5000)], **settings)
    assert not throttled


def test_a_client_that_takes_the_time_of_the_node_must_wait(limited: Broker) -> None:
    topic, throttled = create_topic(limited.address, unique("busy")), list[float]()
    set_quota(limited, (("client-id", None),), request_percentage=0.01)
    producer = confluent_producer(
        limited.address, **{"linger.ms": 0, "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    )
    for _ in range(20):
        producer.produce(topic, b"x")
        assert producer.flush(READ_S_MAX) == 0
        if throttled:
            break
    assert throttled
    assert max(throttled) <= 1.0


def test_topics_beyond_the_mutation_rate_are_refused_to_clients_that_know_the_error(limited: Broker) -> None:
    set_quota(limited, ANYONE, controller_mutation_rate=1)
    # Two tokens are there, and none after the first topic.
    librdkafka, older = admin(limited.address), [NewTopic(unique("older"), 2) for _ in range(3)]
    for future in librdkafka.create_topics(older).values():
        future.result(READ_S_MAX)
    newer = PythonNewTopic(unique("newer"), 2, 1)
    with (
        closing(KafkaAdminClient(bootstrap_servers=limited.address)) as client,
        pytest.raises(ThrottlingQuotaExceededError),
    ):
        client.create_topics([newer])
    set_quota(limited, ANYONE, controller_mutation_rate=None)
    # kafka-python sends nothing to a node for the time that it was told to wait, so another client tries.
    with closing(KafkaAdminClient(bootstrap_servers=limited.address)) as client:
        client.create_topics([newer])


def test_new_connections_of_an_address_beyond_its_rate_are_closed(limited: Broker) -> None:
    set_quota(limited, (("ip", "127.0.0.1"),), connection_creation_rate=1)

    def is_served(connection: Connection) -> bool:
        connection.send(metadata([]))
        return connection.receive() is not None

    # All connect before the first one asks, so that they come faster than one in a second.
    with ExitStack() as held:
        outcomes = [is_served(it) for it in [held.enter_context(Connection(limited)) for _ in range(30)]]
    assert outcomes[0]
    assert not all(outcomes)

    def is_next_served() -> bool:
        with Connection(limited) as connection:
            return is_served(connection)

    eventually(is_next_served, "the rate has fallen", seconds=20)


def test_connections_beyond_the_rate_of_the_node_are_served_later(start: StartBroker) -> None:
    broker = start(*QUICK_QUOTAS, "max.connection.creation.rate=4")
    for _ in range(16):
        with Connection(broker) as connection:
            assert connection.is_answered()


def test_an_address_may_have_its_own_number_of_connections(start: StartBroker) -> None:
    broker = start("max.connections.per.ip=100", "max.connections.per.ip.overrides=127.0.0.1:3")
    held = [Connection(broker) for _ in range(3)]
    for connection in held:
        assert connection.is_answered()
    with Connection(broker) as connection:
        connection.send(metadata([]))
        assert connection.is_hung_up()
    for connection in held:
        connection.socket.close()


# Sessions


def session_of(consumer: Any) -> Any:
    """The state of kafka-python's session with the only broker."""
    (handler,) = consumer._fetcher._session_handlers.values()
    return handler.next_metadata


def poll_all(consumer: Any, offsets: dict[Any, int], count: int) -> int:
    """Poll until so many more records have come, each at the next offset of its partition."""
    found, deadline = 0, time.monotonic() + READ_S_MAX
    while found < count:
        assert time.monotonic() < deadline, f"{found} of {count} records have come"
        for where, records in consumer.poll(timeout_ms=200).items():
            for record in records:
                assert record.offset == offsets[where], where
                offsets[where] += 1
                found += 1
    return found


def test_a_consumer_reads_in_a_session_and_begins_a_new_one_after_a_restart(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("wide"), PARTITIONS)
    consumer = python_consumer(broker.address)
    names = [PythonTopicPartition(topic, index) for index in range(PARTITIONS)]
    consumer.assign(names)
    offsets = dict.fromkeys(names, 0)
    for name in names:
        consumer.seek(name, 0)
    try:
        for round_ in range(3):
            for index in (0, 17, PARTITIONS - 1):
                python_write(broker.address, topic, [Message(b"%d" % round_)] * 5, partition=index)
                poll_all(consumer, offsets, 5)
        first = session_of(consumer)
        assert first.session_id > 0
        assert first.epoch > 3
        broker.kill()
        broker.start()
        python_write(broker.address, topic, [Message(b"again")] * 5, partition=3)
        poll_all(consumer, offsets, 5)
        eventually(lambda: consumer.poll(100) == {} and session_of(consumer).epoch > 1, "a new session")
        assert session_of(consumer).session_id != first.session_id
        # A partition is given up, and another one comes.
        consumer.assign(names[5:])
        for name in names[5:]:
            consumer.seek(name, offsets[name])
        python_write(broker.address, topic, [Message(b"given up")], partition=0)
        python_write(broker.address, topic, [Message(b"kept")] * 2, partition=20)
        poll_all(consumer, offsets, 2)
    finally:
        consumer.close()


def test_consumers_without_a_place_for_a_session_read_everything(start: StartBroker) -> None:
    broker = start("max.incremental.fetch.session.cache.slots=1")
    topic = create_topic(broker.address, unique("slots"), 3)
    names = [PythonTopicPartition(topic, index) for index in range(3)]
    consumers = [python_consumer(broker.address) for _ in range(3)]
    known = [dict.fromkeys(names, 0) for _ in consumers]
    for consumer in consumers:
        consumer.assign(names)
        for name in names:
            consumer.seek(name, 0)
    try:
        for index in range(3):
            python_write(broker.address, topic, [Message(b"x")] * 4, partition=index)
            for consumer, offsets in zip(consumers, known, strict=True):
                poll_all(consumer, offsets, 4)
        assert sum(session_of(it).session_id > 0 for it in consumers) == 1
    finally:
        for consumer in consumers:
            consumer.close()


def test_every_client_reads_beside_sessions(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("all"))
    messages = [Message(b"%d" % number) for number in range(50)]
    confluent_write(broker.address, topic, messages)
    for name, read in (("librdkafka", confluent_read), ("kafka-python", python_read), ("aiokafka", aiokafka_read)):
        with case(name):
            assert [it.value for it in read(broker.address, topic, 50)] == [it.value for it in messages]
