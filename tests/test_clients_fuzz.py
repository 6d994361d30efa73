"""Requests of stock clients, recorded and then damaged byte by byte: the broker answers or ends the connection.

The seed is fixed and the time is bounded; `MINIBROKER_FUZZ_S` sets the seconds and `MINIBROKER_FUZZ_SEED` the seed.
"""

import asyncio
import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from brokers import Broker, StartBroker, unique
from clients_raw import Batch, Bystander, Connection, i32, produce, records, settles
from clients_stock import Message, admin, confluent_read, confluent_write, create_topic, kcat, python_read, python_write
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient
from proxy import Proxy

pytest_plugins = ["clients_fixtures"]

SECONDS = float(os.environ.get("MINIBROKER_FUZZ_S", "4"))
SEED = int(os.environ.get("MINIBROKER_FUZZ_SEED", "3"))
GROWTH_MAX = 128 << 20
NUMBERS = (0, 1, -1, 127, 128, 255, 32767, -32768, 2**31 - 1, -(2**31))

Mutation = Callable[[random.Random, bytearray], None]


def record_requests(broker: Broker) -> list[bytes]:
    """One request of every API and version that the clients use, as they send it."""
    with Proxy(broker.address) as proxy:
        topic = create_topic(proxy.address, unique("recorded"), partitions=2)
        for codec in ("none", "gzip", "zstd"):
            messages = [Message(b"value %d" % n, b"key %d" % n, (("h", b"1"),)) for n in range(5)]
            confluent_write(proxy.address, topic, messages, codec)
            python_write(proxy.address, topic, messages, codec)
        confluent_read(proxy.address, topic, 5)
        python_read(proxy.address, topic, 5)
        with contextlib.suppress(pytest.skip.Exception):
            kcat("-L", "-b", proxy.address, "-t", topic)
        _administer(proxy.address, topic)
        asyncio.run(_administer_by_aiokafka(proxy.address))
        distinct = {(one.api_key, one.api_version, len(one.request) // 200): one.request for one in proxy.requests}
    return [request for _, request in sorted(distinct.items())]


def _administer(address: str, topic: str) -> None:
    client = admin(address)
    client.describe_topics(TopicCollection([topic]))[topic].result(30)
    client.describe_cluster().result(30)
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    where = TopicPartition(topic, 0, 2)
    client.list_offsets({where: OffsetSpec.max_timestamp()})[where].result(30)
    client.delete_records([where])[where].result(30)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client.describe_configs([resource])[resource].result(30)
    entry = ConfigEntry("retention.ms", "99999999", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([altered])[altered].result(30)
    python = KafkaAdminClient(bootstrap_servers=address)
    try:
        python.describe_topic_partitions([topic])
        python.describe_log_dirs({topic: [0]})
        python.create_topics({topic + "-more": {"num_partitions": 1, "configs": {"retention.ms": "1000"}}})
        python.delete_topics([topic + "-more"])
    finally:
        python.close()


async def _administer_by_aiokafka(address: str) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        await client.list_topics()
        await client.describe_cluster()
    finally:
        await client.close()


# Damage


def flip(chance: random.Random, frame: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)


def replace(chance: random.Random, frame: bytearray) -> None:
    start = chance.randrange(len(frame))
    frame[start : start + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(0, 9))


def cut(chance: random.Random, frame: bytearray) -> None:
    del frame[chance.randrange(1, len(frame)) :]


def number(chance: random.Random, frame: bytearray) -> None:
    """Overwrite bytes with a boundary value, in the width of some field."""
    width, code = chance.choice(((1, ">b"), (2, ">h"), (4, ">i")))
    start = chance.randrange(max(1, len(frame) - width))
    value = chance.choice(NUMBERS)
    mask = (1 << 8 * width) - 1
    wrapped = (value & mask) - (mask + 1 if (value & mask) > mask >> 1 else 0)
    frame[start : start + width] = struct.pack(code, wrapped)


def repeat(chance: random.Random, frame: bytearray) -> None:
    start = chance.randrange(len(frame))
    frame[start:start] = frame[start : start + chance.randrange(1, 100)] * chance.randrange(1, 20)


def grow(chance: random.Random, frame: bytearray) -> None:
    frame += chance.randbytes(chance.randrange(1, 300))


MUTATIONS: tuple[Mutation, ...] = (flip, replace, cut, number, number, repeat, grow)


def damaged(chance: random.Random, request: bytes) -> bytes:
    frame = bytearray(request)
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(MUTATIONS)(chance, frame)
        if len(frame) < 2:
            break
    # The API key and version mostly stay, or most requests would be refused for their header.
    if chance.random() < 0.8 and len(frame) > 8:
        frame[:4] = request[:4]
    return bytes(frame)


def is_harmless(frame: bytes) -> bool:
    """Whether a request creates so few partitions that the test has time for it."""
    return frame[:2] not in (b"\x00\x13", b"\x00\x25")


def shoot(broker: Broker, frames: list[bytes]) -> None:
    """Send several frames on one connection until the broker ends it; ignore the answers."""
    with contextlib.suppress(OSError), Connection(broker) as connection:
        connection.socket.settimeout(0.02)
        for frame in frames:
            connection.socket.sendall(i32(len(frame)) + frame)
            with contextlib.suppress(TimeoutError):
                if connection.socket.recv(1 << 16) == b"":
                    return


def test_damaged_requests_do_no_harm(start: StartBroker) -> None:
    broker = start()
    requests = record_requests(broker)
    assert len({request[:2] for request in requests}) >= 12, "too few APIs were recorded"
    bystander = Bystander(broker)
    before = broker.resident_bytes()
    chance = random.Random(SEED)
    count = 0
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            frames = [damaged(chance, chance.choice(requests)) for _ in range(5)]
            # Requests that create partitions are damaged in the next test, with a seed of its own and a limit.
            shoot(broker, [frame for frame in frames if is_harmless(frame)])
            count += 1
            if count % 50 == 0:
                bystander.goes_on()
            assert broker.is_alive(), f"dead after {count} connections:\n{broker.log()[-4000:]}"
        bystander.goes_on()
    finally:
        bystander.close()
    assert not broker.complaints(), broker.complaints()
    settles(broker, before, GROWTH_MAX)
    assert count > 20, "too slow to mean anything"
    print(f"{count} connections, {len(requests)} kinds of requests")


def test_damaged_administration_does_no_harm(start: StartBroker) -> None:
    """CreateTopics and CreatePartitions, damaged in their second half: a large number of partitions is much work."""
    broker = start()
    requests = [request for request in record_requests(broker) if not is_harmless(request)]
    assert requests
    bystander = Bystander(broker)
    chance = random.Random(SEED)
    try:
        for _ in range(60):
            frames = []
            for _ in range(5):
                request = chance.choice(requests)
                frame = bytearray(request)
                chance.choice((flip, cut, grow))(chance, frame)
                frame[: len(request) // 2] = request[: len(request) // 2]
                frames.append(bytes(frame))
            shoot(broker, frames)
        bystander.goes_on()
    finally:
        bystander.close()
    assert broker.is_alive(), broker.log()[-4000:]
    assert not broker.complaints(), broker.complaints()


def test_damaged_batches_are_refused_or_readable(start: StartBroker) -> None:
    """A batch with any flipped bit is refused, or it is written and a stock client reads it like any other."""
    broker = start()
    topic = create_topic(broker.address, unique("batches"))
    whole = Batch(records(10), count=10).encode()
    chance = random.Random(SEED)
    accepted = 0
    deadline = time.monotonic() + min(2.0, SECONDS)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(Connection(broker))
        while time.monotonic() < deadline:
            batch = bytearray(whole)
            flip(chance, batch)
            frame = produce(topic, bytes(batch))
            connection.send(frame)
            answer = connection.receive()
            if answer is None:
                connection = stack.enter_context(Connection(broker))
                continue
            (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
            accepted += 10 if code == 0 else 0
    assert broker.is_alive(), broker.log()[-4000:]
    assert not broker.complaints(), broker.complaints()
    found = confluent_read(broker.address, topic, accepted) if accepted else []
    assert {(one.key, (one.value or b"")[:6]) for one in found} <= {(b"key", b"value ")}
    assert len(found) == accepted


def test_random_bytes_do_no_harm(start: StartBroker) -> None:
    broker = start()
    bystander = Bystander(broker)
    chance = random.Random(SEED)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection((broker.host, broker.port), timeout=5) as raw:
                raw.sendall(chance.randbytes(chance.randrange(1, 5000)))
        bystander.goes_on()
    finally:
        bystander.close()
    assert not broker.complaints(), broker.complaints()
