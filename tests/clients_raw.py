"""Requests that no stock client would send, built by hand and sent on a bare socket, and readers of the answers.

Only classic (non-flexible) versions are spelled out, plus what a flexible header needs. Nothing here uses the broker's
own codec.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import crc32c
from brokers import Broker, eventually, unique
from clients_stock import confluent_consumer, confluent_producer, confluent_take, create_topic
from confluent_kafka import TopicPartition

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 18, 19, 20, 22
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
ANSWER_S_MAX = 10
ANYONE = (("user", "ANONYMOUS"),)
"""The entity of all clients, because none logs in."""

# Primitives


def i8(number: int) -> bytes:
    return struct.pack(">b", number)


def i16(number: int) -> bytes:
    return struct.pack(">h", number)


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def string(text: str | bytes | None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return i16(-1) if data is None else i16(len(data)) + data


def data32(data: bytes | None) -> bytes:
    return i32(-1) if data is None else i32(len(data)) + data


def array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return i32(len(listed)) + b"".join(listed)


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def varint(number: int) -> bytes:
    return uvarint((number << 1) ^ (number >> 63) if number < 0 else number << 1)


def header(api_key: int, version: int, correlation_id: int = 1, client_id: str | bytes | None = "raw") -> bytes:
    """Version 1, for classic requests; a flexible one is followed by `NO_TAGS`."""
    return i16(api_key) + i16(version) + i32(correlation_id) + string(client_id)


NO_TAGS = b"\x00"


# Record batches


def record(value: bytes | None = b"value", key: bytes | None = None, *, delta: int = 0, headers: int = 0) -> bytes:
    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = i8(0) + varint(0) + varint(delta) + field(key) + field(value) + varint(headers)
    return varint(len(body)) + body


@dataclass(frozen=True)
class Batch:
    """A batch whose every field can lie."""

    payload: bytes = record()
    count: int = 1
    last_offset_delta: int | None = None
    attributes: int = 0
    magic: int = 2
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    base_offset: int = 0
    crc: int | None = None
    length: int | None = None
    timestamp: int | None = None

    def encode(self) -> bytes:
        last = self.count - 1 if self.last_offset_delta is None else self.last_offset_delta
        stamp = int(time.time() * 1000) if self.timestamp is None else self.timestamp
        body = struct.pack(
            ">hiqqqhii",
            *(
                self.attributes,
                last,
                stamp,
                stamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            ),
        )
        body += self.payload
        crc = crc32c.crc32c(body) if self.crc is None else self.crc
        inner = i32(-1) + i8(self.magic) + struct.pack(">I", crc) + body
        return i64(self.base_offset) + i32(len(inner) if self.length is None else self.length) + inner


def records(count: int) -> bytes:
    return b"".join(record(b"value %d" % n, b"key", delta=n) for n in range(count))


# Requests


def produce(topic: str, data: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 7) -> bytes:
    partitions = array([i32(partition) + data32(data)])
    return header(PRODUCE, version) + string(None) + i16(acks) + i32(10_000) + array([string(topic) + partitions])


def fetch(
    topic: str,
    offset: int = 0,
    *,
    epoch: int = -1,
    partition: int = 0,
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    where = i32(partition) + i32(epoch) + i64(offset) + i64(-1) + i32(1 << 20)
    start = i32(-1) + i32(wait_ms) + i32(1) + i32(1 << 20) + i8(0) + i32(session[0]) + i32(session[1])
    return header(FETCH, 11) + start + array([string(topic) + array([where])]) + array([]) + string("")


def list_offsets(topic: str, timestamp: int = -1, *, epoch: int = -1, partition: int = 0) -> bytes:
    where = i32(partition) + i32(epoch) + i64(timestamp)
    return header(LIST_OFFSETS, 5) + i32(-1) + i8(0) + array([string(topic) + array([where])])


def metadata(topics: Sequence[str | bytes] | None, *, creates: bool = False) -> bytes:
    named = i32(-1) if topics is None else array(string(topic) for topic in topics)
    return header(METADATA, 8) + named + i8(creates) + i8(0) + i8(0)


def create_topics(topics: Iterable[tuple[str | bytes, int]]) -> bytes:
    listed = array(string(name) + i32(partitions) + i16(1) + array([]) + array([]) for name, partitions in topics)
    return header(CREATE_TOPICS, 4) + listed + i32(10_000) + i8(0)


def init_producer_id() -> bytes:
    return header(INIT_PRODUCER_ID, 1) + string(None) + i32(60_000)


# Answers


class Cursor:
    """Reads an answer field by field, beginning after the correlation id."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 4

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(">" + code, self.data, self.position)
        self.position += struct.calcsize(">" + code)
        return value

    def skip(self, count: int) -> None:
        self.position += count

    def string(self) -> str | None:
        length = self.take("h")
        if length < 0:
            return None
        self.skip(length)
        return self.data[self.position - length : self.position].decode()


@dataclass(frozen=True)
class Produced:
    code: int
    base_offset: int


class Connection:
    """One socket to the broker."""

    def __init__(self, broker: Broker) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=ANSWER_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes; an error because the broker has ended the connection is ignored."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def send(self, frame: bytes) -> None:
        self.send_bytes(i32(len(frame)) + frame)

    def receive(self) -> bytes | None:
        """The next answer without its length field; None if the broker ended the connection."""
        prefix = self._exactly(4)
        return None if prefix is None else self._exactly(struct.unpack(">i", prefix)[0])

    def ask(self, frame: bytes) -> Cursor:
        self.send(frame)
        answer = self.receive()
        assert answer is not None, "the broker hung up instead of answering"
        return Cursor(answer)

    def is_answered(self) -> bool:
        """Whether the broker answers a small request."""
        return bool(self.ask(metadata([])).data)

    def is_hung_up(self) -> bool:
        """Wait until the broker ends the connection; false if it answers instead."""
        return self.receive() is None

    def produce(self, frame: bytes) -> Produced:
        """The code of the one partition that was produced to, by a classic request of version 5 to 7."""
        self.send(frame)
        return self.receive_produced()

    def receive_produced(self) -> Produced:
        """Like `produce`, for a request that was sent before."""
        data = self.receive()
        assert data is not None, "the broker hung up instead of answering"
        answer = Cursor(data)
        assert answer.take("i") == 1
        answer.string()
        assert answer.take("i") == 1
        answer.take("i")
        return Produced(answer.take("h"), answer.take("q"))

    def fetch(self, frame: bytes) -> tuple[int, int, bytes]:
        """The error code of the answer, the error code of the one partition, and its records."""
        answer = self.ask(frame)
        answer.take("i")
        code = answer.take("h")
        answer.take("i")
        if answer.take("i") == 0:
            return code, 0, b""
        answer.string()
        answer.take("i")
        answer.take("i")
        partition_code = answer.take("h")
        answer.skip(8 + 8 + 8)  # high watermark, last stable offset, log start offset
        answer.skip(16 * max(0, answer.take("i")))
        answer.take("i")
        length = answer.take("i")
        return code, partition_code, answer.data[answer.position : answer.position + max(0, length)]

    def list_offsets(self, frame: bytes) -> tuple[int, int]:
        """The code and the offset of the one partition."""
        answer = self.ask(frame)
        answer.take("i")
        assert answer.take("i") == 1
        answer.string()
        answer.take("i")
        answer.take("i")
        code = answer.take("h")
        answer.take("q")
        return code, answer.take("q")

    def topic_codes(self, frame: bytes) -> list[int]:
        """The code of each topic in an answer to CreateTopics."""
        answer = self.ask(frame)
        answer.take("i")
        codes = []
        for _ in range(answer.take("i")):
            answer.string()
            codes.append(answer.take("h"))
            answer.string()
        return codes

    def metadata_codes(self, frame: bytes) -> dict[str | None, int]:
        """The code of each topic in an answer to Metadata."""
        answer = self.ask(frame)
        answer.take("i")
        for _ in range(answer.take("i")):
            answer.take("i")
            answer.string()
            answer.take("i")
            answer.string()
        answer.string()
        answer.take("i")
        codes = {}
        for _ in range(answer.take("i")):
            code = answer.take("h")
            codes[answer.string()] = code
            answer.take("b")
            for _ in range(answer.take("i")):
                answer.skip(2 + 4 + 4 + 4)
                for _ in range(3):
                    answer.skip(4 * answer.take("i"))
            answer.take("i")
        return codes

    def new_producer_id(self) -> tuple[int, int]:
        """Ask for a producer id; a broker that has just started may have none yet."""

        def attempt() -> tuple[int, ...]:
            answer = self.ask(init_producer_id())
            answer.take("i")
            return (answer.take("q"), answer.take("h")) if answer.take("h") == 0 else ()

        producer_id, epoch = eventually(attempt, "a producer id")
        return producer_id, epoch

    def _exactly(self, count: int) -> bytes | None:
        parts = b""
        while len(parts) < count:
            try:
                part = self.socket.recv(count - len(parts))
            except ConnectionError:
                return None
            if not part:
                return None
            parts += part
        return parts


# Another client


class Bystander:
    """A client that is connected all the time and must not be disturbed by others."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.errors: list[str] = []
        self.topic = create_topic(broker.address, unique("bystander"))
        # The callback must not refer to this object: a consumer that the garbage collector ends can block the process.
        errors = self.errors
        listens = {"error_cb": lambda error: errors.append(str(error)), "topic.metadata.refresh.interval.ms": -1}
        self.producer = confluent_producer(broker.address, **{"linger.ms": 0} | listens)
        self.consumer = confluent_consumer(broker.address, **listens)
        self.count = 0
        try:
            self.consumer.assign([TopicPartition(self.topic, 0, 0)])
            self.goes_on()
        except BaseException:
            self.close()
            raise

    def goes_on(self) -> None:
        """Produce and consume over the connections that are open."""
        value = b"%d" % self.count
        self.count += 1
        self.producer.produce(self.topic, value, partition=0)
        left = self.producer.flush(ANSWER_S_MAX)
        found = [one.value for one in confluent_take(self.consumer, 1, ANSWER_S_MAX)]
        self.producer.poll(0)
        # Reported once, so that one disturbance fails one test.
        errors = list(self.errors)
        self.errors.clear()
        assert left == 0, f"the bystander cannot produce: {errors}"
        assert found == [value], f"the bystander cannot consume: {errors}"
        assert errors == [], "the bystander was disturbed"

    def close(self) -> None:
        self.consumer.close()


def settles(broker: Broker, before: int, growth: int) -> None:
    """Wait until the broker's memory is back to what it was, within a bound."""
    if broker.process is not None:
        eventually(lambda: broker.resident_bytes() - before < growth, f"grown by less than {growth} bytes")


def set_quota(broker: Broker, entity: tuple[tuple[str, str | None], ...], **values: float | None) -> None:
    """Set quotas, or remove those that are None. The quotas hold when this returns."""
    names = array(string(type_) + string(name) for type_, name in entity)
    ops = array(string(key) + struct.pack(">d", value or 0.0) + i8(value is None) for key, value in values.items())
    with Connection(broker) as connection:
        answer = connection.ask(header(ALTER_CLIENT_QUOTAS, 0) + array([names + ops]) + i8(0))
    _throttle_ms, _count, code = answer.take("i"), answer.take("i"), answer.take("h")
    assert code == 0, answer.string()
