"""Many partitions on one node are created, written and found again, with few open files; many idle connections."""

import os
import random
from contextlib import ExitStack

from brokers import IS_OURS, StartBroker, unique
from clients_raw import Connection
from clients_stock import READ_S_MAX, Message, admin, bounds, confluent_producer, confluent_read, confluent_write
from confluent_kafka.admin import NewTopic

pytest_plugins = ["clients_fixtures"]

# The full size is ten thousand: MINIBROKER_TEST_PARTITIONS=10000. A smaller one proves the same with less waiting, as
# long as the partitions that are written have more files than may be open.
PARTITIONS = int(os.environ.get("MINIBROKER_TEST_PARTITIONS", "600"))
TOPICS = 10
OPEN_FILES_MAX = 300
CONNECTIONS = 1000
IDLE_BYTES_MAX = 15 * 1024


def test_hundreds_of_partitions_with_few_open_files(start: StartBroker) -> None:
    broker = start(open_files_max=OPEN_FILES_MAX) if IS_OURS else start()
    each = PARTITIONS // TOPICS
    names = [unique("many") for _ in range(TOPICS)]
    client = admin(broker.address)
    for name in names:
        client.create_topics([NewTopic(name, each, 1)], request_timeout=120)[name].result(120)
    chance = random.Random(7)
    some = sorted({(chance.choice(names), chance.randrange(each)) for _ in range(400)})
    producer = confluent_producer(broker.address, **{"linger.ms": 5, "enable.idempotence": True})
    failed: list[object] = []
    for name, partition in some:
        for n in range(3):
            producer.produce(
                name,
                b"%d" % n,
                partition=partition,
                on_delivery=lambda error, _: failed.extend([error] if error else []),
            )
    assert producer.flush(READ_S_MAX) == 0
    assert failed == []
    if IS_OURS:
        assert broker.open_files() <= OPEN_FILES_MAX
    broker.stop()
    broker.restart()
    client = admin(broker.address)
    found = client.list_topics(timeout=READ_S_MAX).topics
    assert {name: len(found[name].partitions) for name in names} == dict.fromkeys(names, each)
    for name, partition in some[:: len(some) // 10]:
        assert [one.value for one in confluent_read(broker.address, name, 3, partition=partition)] == [b"0", b"1", b"2"]
        assert confluent_write(broker.address, name, [Message(b"3")], partition=partition) == [3]
        assert bounds(broker.address, name, partition) == (0, 4)
    if IS_OURS:
        assert broker.open_files() <= OPEN_FILES_MAX


def test_a_thousand_idle_connections_take_little_memory(start: StartBroker) -> None:
    broker = start(f"max.connections={2 * CONNECTIONS}")
    with ExitStack() as held:

        def connect(count: int) -> None:
            for _ in range(count):
                assert held.enter_context(Connection(broker)).is_answered()

        # The first connections load code and fill caches.
        connect(100)
        before = broker.resident_bytes()
        connect(CONNECTIONS)
        assert broker.resident_bytes() - before <= CONNECTIONS * IDLE_BYTES_MAX
