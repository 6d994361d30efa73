"""Restart and kill -9 under load: every acknowledged record is at its offset, and clients go on by themselves."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from brokers import IS_OURS, SERVE, Broker, StartBroker, eventually, unique
from clients_raw import Batch, Connection, Produced, fetch, produce, records
from clients_stock import (
    READ_S_MAX,
    Message,
    admin,
    bounds,
    confluent_consumer,
    confluent_producer,
    confluent_read,
    confluent_take,
    confluent_write,
    create_topic,
    python_write,
)
from confluent_kafka import TopicPartition
from kafka import KafkaProducer

pytest_plugins = ["clients_fixtures"]

PARTITIONS = 3
STEP = 1500
IDEMPOTENT: dict[str, object] = {"enable.idempotence": True}
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE = 3, 6, 45


class Load:
    """A producer that sends numbered values all the time and remembers the offset of each acknowledgement."""

    def __init__(self, broker: Broker, topic: str, **settings: object) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.failed: list[str] = []
        self.sent = 0
        self.topic = topic
        patient = {"linger.ms": 2, "message.timeout.ms": 60_000, "retry.backoff.ms": 20, "log_level": 0}
        quick = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "socket.timeout.ms": 10_000}
        self.producer = confluent_producer(broker.address, **patient | quick | settings)
        self.is_running = True
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def reach(self, count: int) -> None:
        """Wait for that many more acknowledgements."""
        goal = len(self.acked) + count
        eventually(lambda: len(self.acked) >= goal or self.failed, f"{count} more acknowledgements", seconds=60)
        assert self.failed == []

    def finish(self) -> None:
        self.is_running = False
        self.thread.join()
        assert self.producer.flush(60) == 0, f"{len(self.producer)} records are still on their way"
        assert self.failed == []

    def _run(self) -> None:
        while self.is_running:
            if len(self.producer) > 500:
                self.producer.poll(0.01)
                continue
            value = b"%d" % self.sent
            self.producer.produce(self.topic, value, partition=self.sent % PARTITIONS, on_delivery=self._note)
            self.sent += 1
            self.producer.poll(0)

    def _note(self, error: object, delivered: object) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        place = delivered.partition(), delivered.offset()  # type: ignore[attr-defined]
        self.acked[place] = delivered.value()  # type: ignore[attr-defined]


@contextlib.contextmanager
def load(broker: Broker, topic: str, **settings: object) -> Iterator[Load]:
    running = Load(broker, topic, **settings)
    try:
        yield running
        running.finish()
    finally:
        running.is_running = False
        running.thread.join()


def contents(broker: Broker, topic: str) -> dict[tuple[int, int], bytes]:
    """Every value by its partition and offset."""
    found = {}
    for partition in range(PARTITIONS):
        count = bounds(broker.address, topic, partition)[1]
        for one in confluent_read(broker.address, topic, count, partition=partition):
            found[partition, one.offset] = one.value or b""
    return found


def check(broker: Broker, topic: str, load: Load, *, is_idempotent: bool = True) -> None:
    """No acknowledged record is lost or moved, the order is kept, and with idempotence no record is there twice."""
    found = contents(broker, topic)
    lost = [place for place, value in load.acked.items() if found.get(place) != value]
    assert lost == [], f"{len(lost)} of {len(load.acked)} acknowledged records are not where they were"
    if is_idempotent:
        assert len(set(found.values())) == len(found), "a record is there twice"
        for partition in range(PARTITIONS):
            numbers = [int(value) for (where, _), value in sorted(found.items()) if where == partition]
            assert numbers == sorted(numbers), "the producer's order is lost"


# Restart


def load_through(broker: Broker, topic: str, end: Callable[[], None], steps: Iterable[int], **settings: object) -> Load:
    """Produce all the time while the broker ends and starts again after each of these numbers of acknowledgements."""
    with load(broker, topic, **settings) as running:
        for step in steps:
            running.reach(step)
            end()
            broker.restart()
        running.reach(STEP)
    return running


def test_a_restart_under_load_loses_nothing_and_producers_go_on(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("restart"), PARTITIONS)
    check(broker, topic, load_through(broker, topic, broker.stop, [STEP] * 2, **IDEMPOTENT))


@pytest.mark.parametrize("flush", ["flush before ack", "page cache"])
def test_kill_9_under_load_loses_nothing_that_was_acknowledged(start: StartBroker, flush: str) -> None:
    broker = start(*(["log.flush.interval.messages=1"] if flush == "flush before ack" else []))
    topic = create_topic(broker.address, unique("kill"), PARTITIONS)
    check(broker, topic, load_through(broker, topic, broker.kill, [STEP] * 3, **IDEMPOTENT))


def test_kill_9_with_the_topics_own_flush_before_ack(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("kill"), PARTITIONS, flush_messages=1, segment_bytes=1 << 20)
    settings = IDEMPOTENT | {"compression.type": "lz4"}
    check(broker, topic, load_through(broker, topic, broker.kill, [STEP], **settings))


def test_kill_9_with_acks_1_and_no_idempotence_loses_nothing_that_was_acknowledged(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("kill"), PARTITIONS)
    settings = {"acks": 1, "enable.idempotence": False}
    check(broker, topic, load_through(broker, topic, broker.kill, [STEP], **settings), is_idempotent=False)


def test_consumers_and_other_producers_go_on_after_kill_9(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("goon"))
    python = KafkaProducer(bootstrap_servers=broker.address, retry_backoff_ms=20, reconnect_backoff_max_ms=100)
    consumer = confluent_consumer(broker.address, **{"reconnect.backoff.max.ms": 100, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for turn in range(3):
            futures = [python.send(topic, b"%d %d" % (turn, n), partition=0) for n in range(50)]
            for future in futures:
                future.get(READ_S_MAX)
            values = [one.value for one in confluent_take(consumer, 50)]
            assert values == [b"%d %d" % (turn, n) for n in range(50)]
            broker.kill()
            broker.restart()
    finally:
        consumer.close()
        python.close()


def test_a_cold_start_finds_everything_as_it_was(start: StartBroker) -> None:
    """Offsets, timestamps, the first offset, and the index of times, after kill -9."""
    broker = start()
    topic = create_topic(broker.address, unique("cold"), segment_bytes=1 << 20)
    messages = [Message(b"x" * 20_000, b"%d" % n, timestamp=1_700_000_000_000 + n) for n in range(300)]
    confluent_write(broker.address, topic, messages, **{"batch.num.messages": 5})
    client = admin(broker.address)
    where = TopicPartition(topic, 0, 20)
    client.delete_records([where])[where].result(READ_S_MAX)
    before = confluent_read(broker.address, topic, 280, 20)
    broker.kill()
    broker.restart()
    assert bounds(broker.address, topic)[1] == 300
    assert confluent_read(broker.address, topic, 280, 20) == before
    consumer = confluent_consumer(broker.address)
    try:
        for n in (20, 99, 250, 299):
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1_700_000_000_000 + n)], timeout=READ_S_MAX)
            assert found.offset == n
    finally:
        consumer.close()
    assert python_write(broker.address, topic, [Message(b"next", b"key")]) == [300]


def test_deleted_records_stay_deleted_after_a_restart(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("records"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(10)])
    client = admin(broker.address)
    where = TopicPartition(topic, 0, 6)
    client.delete_records([where])[where].result(READ_S_MAX)
    broker.stop()
    broker.restart()
    assert bounds(broker.address, topic) == (6, 10)


def test_topics_that_were_acknowledged_survive_kill_9(start: StartBroker) -> None:
    broker = start()
    topics = []
    for turn in range(3):
        topics += [create_topic(broker.address, unique(f"topic{turn}"), partitions=2) for _ in range(5)]
        broker.kill()
        broker.restart()
        client = admin(broker.address)
        found = client.list_topics(timeout=READ_S_MAX).topics
        assert {name: len(found[name].partitions) for name in topics if name in found} == dict.fromkeys(topics, 2)
    for topic in topics:
        assert confluent_write(broker.address, topic, [Message(b"v")], partition=1) == [0]


def test_a_torn_tail_is_truncated_and_the_log_goes_on(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("torn"))
    confluent_write(broker.address, topic, [Message(b"%d" % n) for n in range(10)])
    broker.kill()
    segment = broker.data / f"{topic}-0" / f"{0:020}.log"
    whole = segment.read_bytes()
    # Half of a batch that was never acknowledged, as a crash leaves it.
    segment.write_bytes(whole + Batch(records(50), count=50, base_offset=10).encode()[:-100])
    broker.restart()
    assert bounds(broker.address, topic) == (0, 10)
    assert confluent_write(broker.address, topic, [Message(b"10")]) == [10]
    assert [one.value for one in confluent_read(broker.address, topic, 11)] == [b"%d" % n for n in range(11)]


# The state of producers


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_sequences_survive_the_end_of_the_process(start: StartBroker, end: str) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("sequence"))
    with Connection(broker) as connection:
        eventually(lambda: connection.fetch(fetch(topic, epoch=0))[1] == 0, "the topic is there")
        producer_id, epoch = connection.new_producer_id()

    def send(sequence: int) -> tuple[int, int]:
        batch = Batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        with Connection(broker) as connection:
            answers: list[Produced] = []

            def is_led() -> bool:
                answers.append(connection.produce(produce(topic, batch.encode())))
                return answers[-1].code not in (UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER)

            eventually(is_led, "a broker that is only just up leads its partition")
        return answers[-1].code, answers[-1].base_offset

    assert [send(n) for n in range(7)] == [(0, n) for n in range(7)]
    getattr(broker, end)()
    broker.restart()
    # A producer snapshot holds only the last batch of each producer: that one is recognized, and the next is accepted.
    assert send(6) == (0, 6)
    assert send(9)[0] == OUT_OF_ORDER_SEQUENCE
    assert send(7) == (0, 7)
    assert bounds(broker.address, topic) == (0, 8)


def test_producer_ids_are_never_given_twice(start: StartBroker) -> None:
    broker = start()
    given: list[int] = []
    for _ in range(3):
        with Connection(broker) as connection:
            given += [connection.new_producer_id()[0] for _ in range(5)]
        broker.kill()
        broker.restart()
    assert len(set(given)) == len(given)


# Shutdown


def test_a_shutdown_does_not_wait_for_clients_that_wait(start: StartBroker) -> None:
    """A fetch that would wait for minutes, an idle connection and half a request do not delay it."""
    broker = start()
    topic = create_topic(broker.address, unique("wait"))
    with Connection(broker) as fetching, Connection(broker) as idle, Connection(broker) as half:
        fetching.send(fetch(topic, wait_ms=300_000))
        assert idle.is_answered()
        half.send_bytes(b"\x00\x00\x10\x00half")
        broker.stop()


def test_what_a_broker_acknowledged_before_its_shutdown_is_there_after(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("shutdown"))
    for turn in range(3):
        assert confluent_write(broker.address, topic, [Message(b"%d" % turn)]) == [turn]
        broker.stop()
        broker.restart()
    assert [one.value for one in confluent_read(broker.address, topic, 3)] == [b"0", b"1", b"2"]


@pytest.mark.skipif(not IS_OURS, reason="about our program")
def test_a_second_broker_on_the_same_data_is_refused(start: StartBroker) -> None:
    broker = start()
    topic = create_topic(broker.address, unique("lock"))
    command = [sys.executable, "-m", "minibroker.cli", "serve", "--data", str(broker.data), "--listen", "127.0.0.1:0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1, second.stderr
    assert "Traceback" not in second.stderr
    assert confluent_write(broker.address, topic, [Message(b"v")]) == [0]


@pytest.mark.skipif(not IS_OURS or bool(SERVE), reason="about our program")
def test_a_port_in_use_is_reported_in_one_line(start: StartBroker, tmp_path: Path) -> None:
    broker = start()
    command = [
        sys.executable,
        "-m",
        "minibroker.cli",
        "serve",
        "--data",
        str(tmp_path / "other"),
        "--listen",
        broker.address,
    ]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert str(broker.port) in second.stderr
    assert "Traceback" not in second.stderr


def test_every_kill_at_a_random_moment_leaves_a_log_that_opens(start: StartBroker) -> None:
    """Kills in quick succession, without waiting for quiet."""
    broker = start()
    topic = create_topic(broker.address, unique("moments"), PARTITIONS, segment_bytes=1 << 20)
    settings = IDEMPOTENT | {"linger.ms": 0}
    check(broker, topic, load_through(broker, topic, broker.kill, [50, 300, 700, 50], **settings))
