"""One pair of verbs, `write` and `read`, for four stock clients: confluent-kafka, kafka-python, aiokafka and kcat.

Records are written and read as the same tuple, so a test compares lists. No client joins a group.
"""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from brokers import eventually
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.net.inet import KafkaNetSocket

READ_S_MAX = 30
CREATE_TIME = 0
LOG_APPEND_TIME = 1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """A record for a producer. Without a timestamp the client takes its clock."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


Messages = Sequence[Message]


class Read(NamedTuple):
    """A record that a consumer got."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int
    timestamp_type: int

    @property
    def message(self) -> Message:
        return Message(self.value, self.key, self.headers, self.timestamp)


Write = Callable[..., list[int]]
Reader = Callable[..., list[Read]]


# confluent-kafka


def confluent_producer(bootstrap: str, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": bootstrap} | settings)


def confluent_write(
    bootstrap: str, topic: str, messages: Messages, codec: str = "none", /, *, partition: Any = 0, **settings: Any
) -> list[int]:
    """Send all messages at once and return the acknowledged offsets."""
    reports: list[tuple[Any, Any]] = []
    named = {"compression.type": codec} if codec != "none" else {}
    producer = confluent_producer(bootstrap, **{"linger.ms": 20} | named | settings)
    for message in messages:
        stamp: dict[str, Any] = {} if message.timestamp is None else {"timestamp": message.timestamp}
        producer.produce(
            topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers),
            partition=partition,
            on_delivery=lambda error, delivered: reports.append((error, delivered)),
            **stamp,
        )
    assert producer.flush(READ_S_MAX) == 0, "not all was acknowledged"
    for error, _ in reports:
        if error is not None:
            raise KafkaException(error)
    return [delivered.offset() for _, delivered in reports]


def confluent_consumer(bootstrap: str, **settings: object) -> Consumer:
    """A consumer of assigned partitions; librdkafka demands a group id, which is not used."""
    formality = {"group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    consumer = Consumer({"bootstrap.servers": bootstrap} | formality | settings)
    CONSUMERS.append(consumer)
    return consumer


CONSUMERS: list[Consumer] = []
"""Those that were made: what a test that fails leaves open is closed at its end."""


def close_consumer(consumer: Consumer) -> None:
    """Close a consumer and forget it. Each that is kept holds one of the process's 1,024 keys for thread variables."""
    consumer.close()
    CONSUMERS.remove(consumer)


def close_consumers(first: int) -> None:
    """Close all consumers after the first ones. A consumer that the garbage collector closes may block for ever."""
    while len(CONSUMERS) > first:
        with contextlib.suppress(RuntimeError):  # it is closed already
            CONSUMERS.pop().close()


def close_within(consumer: Consumer, seconds: float = READ_S_MAX) -> bool:
    """Close a consumer that is in no group; return whether that has ended in time.

    librdkafka 2.16 may wait there for ever, while nodes come and go: its main thread holds the lock of a partition and
    wants that of the client, and another thread holds them the other way round (librdkafka issue 5476).
    """
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(seconds)
    return not closing.is_alive()


def confluent_read(
    bootstrap: str, topic: str, count: int, offset: int = 0, /, *, partition: Any = 0, **settings: Any
) -> list[Read]:
    consumer = confluent_consumer(bootstrap, **settings)
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        return confluent_take(consumer, count)
    finally:
        close_consumer(consumer)


def confluent_take(consumer: Consumer, count: int, seconds: float = READ_S_MAX) -> list[Read]:
    """The next records of a consumer; any error is raised."""
    found: list[Read] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append(_confluent_record(message))
    return found


def _confluent_record(message: Any) -> Read:
    kind, timestamp = message.timestamp()
    stamp_type = CREATE_TIME if kind == TIMESTAMP_CREATE_TIME else LOG_APPEND_TIME
    headers = tuple(message.headers() or ())
    return Read(message.offset(), message.value(), message.key(), headers, timestamp, stamp_type)


# kafka-python

_connect = KafkaNetSocket.sock_connect


async def _connect_or_close(self: Any, net: Any, opened: socket.socket, *rest: Any, **named: Any) -> Any:
    """Connect a socket of kafka-python, and close it if that fails, which kafka-python 3.0 does not do.

    The exception keeps the socket alive, and pytest keeps the exception with what the client logs, until the next test.
    There the garbage collector would find the socket open, and that test would fail.
    """
    try:
        return await _connect(self, net, opened, *rest, **named)
    except BaseException:
        opened.close()
        raise


KafkaNetSocket.sock_connect = _connect_or_close


def _python_settings(codec: str) -> dict[str, Any]:
    """The settings of a producer of kafka-python or of aiokafka, which names them alike."""
    return {"linger_ms": 20} | ({"compression_type": codec} if codec != "none" else {})


def _python_arguments(message: Message) -> dict[str, Any]:
    value, key, headers, timestamp_ms = message
    return {"value": value, "key": key, "headers": list(headers), "timestamp_ms": timestamp_ms}


def python_write(
    bootstrap: str, topic: str, messages: Messages, codec: str = "none", /, *, partition: Any = 0, **settings: Any
) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, **_python_settings(codec) | settings)
    try:
        futures = [producer.send(topic, partition=partition, **_python_arguments(message)) for message in messages]
        return [future.get(READ_S_MAX).offset for future in futures]
    finally:
        producer.close()


def python_consumer(bootstrap: str, **settings: object) -> KafkaConsumer:
    return KafkaConsumer(bootstrap_servers=bootstrap, **{"fetch_max_wait_ms": 100} | settings)


def python_read(
    bootstrap: str, topic: str, count: int, offset: int = 0, /, *, partition: Any = 0, **settings: Any
) -> list[Read]:
    consumer = python_consumer(bootstrap, **settings)
    try:
        where = PythonTopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek(where, offset)
        found: list[Read] = []
        deadline = time.monotonic() + READ_S_MAX
        while len(found) < count and time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=200, max_records=count - len(found)).get(where, ()):
                found.append(_python_record(record))
        return found
    finally:
        consumer.close()


def _python_record(record: Any) -> Read:
    headers = tuple(record.headers)
    return Read(record.offset, record.value, record.key, headers, record.timestamp, record.timestamp_type)


# aiokafka


def aiokafka_write(
    bootstrap: str, topic: str, messages: Messages, codec: str = "none", /, *, partition: Any = 0, **settings: Any
) -> list[int]:
    return asyncio.run(_aiokafka_write(bootstrap, topic, messages, partition, _python_settings(codec) | settings))


async def _aiokafka_write(
    bootstrap: str, topic: str, messages: Messages, partition: int, settings: dict[str, object]
) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **settings)
    await producer.start()
    try:
        futures = [
            await producer.send(topic, partition=partition, **_python_arguments(message)) for message in messages
        ]
        acknowledged = await asyncio.wait_for(asyncio.gather(*futures), READ_S_MAX)
        return [metadata.offset if metadata else -1 for metadata in acknowledged]  # nothing with acks=0
    finally:
        await producer.stop()


def aiokafka_read(
    bootstrap: str, topic: str, count: int, offset: int = 0, /, *, partition: Any = 0, **settings: Any
) -> list[Read]:
    return asyncio.run(_aiokafka_read(bootstrap, AioTopicPartition(topic, partition), count, offset, settings))


async def _aiokafka_read(
    bootstrap: str, where: AioTopicPartition, count: int, offset: int, settings: dict[str, object]
) -> list[Read]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **{"fetch_max_wait_ms": 100} | settings)
    consumer.assign([where])
    await consumer.start()
    try:
        consumer.seek(where, offset)
        return [_python_record(await asyncio.wait_for(consumer.getone(), READ_S_MAX)) for _ in range(count)]
    finally:
        await consumer.stop()


# kcat


def kcat(*arguments: str, given: bytes = b"") -> bytes:
    """Runs kcat to its end and returns what it printed."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    command = ["kcat", "-q", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=READ_S_MAX, check=True).stdout


def kcat_write(
    bootstrap: str, topic: str, messages: Messages, codec: str = "none", /, *, partition: Any = 0, **settings: Any
) -> list[int]:
    """Keys, values without line breaks, one list of headers for all; an empty text is null."""
    (headers,) = {message.headers for message in messages}
    options = [option for name, value in headers for option in ("-H", f"{name}={(value or b'').decode()}")]
    options += [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    lines = b"".join((message.key or b"") + b"\t" + (message.value or b"") + b"\n" for message in messages)
    codec_options = ["-z", codec] if codec != "none" else []
    kcat(
        *("-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-K", "\t", "-Z"),
        *codec_options,
        *options,
        given=lines,
    )
    return list(range(len(messages)))


def kcat_read(bootstrap: str, topic: str, count: int, offset: int = 0, /, *, partition: int = 0) -> list[Read]:
    """Through kcat's JSON, so values are text."""
    where = ("-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count))
    printed = kcat("-C", "-b", bootstrap, *where, "-J", "-X", "fetch.wait.max.ms=100")
    return [_kcat_record(json.loads(line)) for line in printed.splitlines()]


def _kcat_record(found: dict[str, Any]) -> Read:
    flat = found.get("headers", [])
    headers = tuple((name, _encoded(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    kind = CREATE_TIME if found["tstype"] == "create" else LOG_APPEND_TIME
    return Read(found["offset"], _encoded(found["payload"]), _encoded(found["key"]), headers, found["ts"], kind)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


WRITERS: dict[str, Write] = {
    "confluent": confluent_write,
    "kafka-python": python_write,
    "aiokafka": aiokafka_write,
    "kcat": kcat_write,
}
READERS: dict[str, Reader] = {
    "confluent": confluent_read,
    "kafka-python": python_read,
    "aiokafka": aiokafka_read,
    "kcat": kcat_read,
}
LIBRARIES = ("confluent", "kafka-python", "aiokafka")


# Administration, for tests about something else


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **config: object) -> str:
    """Creates a topic; `segment_bytes=1` stands for `segment.bytes=1`."""
    named = {name.replace("_", "."): str(value) for name, value in config.items()}
    # Tests write old timestamps, and retention would delete such records at once.
    named = {"retention.ms": "-1"} | named
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=named)
    client = admin(bootstrap)  # held until the answer is there
    client.create_topics([new])[topic].result(READ_S_MAX)
    # A broker may answer before it has heard of its own topic.
    eventually(lambda: topic in client.list_topics(timeout=READ_S_MAX).topics, f"{topic} is listed")
    return topic


def bounds(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """The first offset and the one after the last, as a consumer asks for them."""
    consumer = confluent_consumer(bootstrap)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_S_MAX)
        return int(low), int(high)
    finally:
        consumer.close()
