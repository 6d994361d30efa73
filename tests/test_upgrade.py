"""A data directory that an earlier version has written opens: its records, its configuration, its producers' state.

`fixtures/data-directory` was written by `minibroker serve` of that version and stopped with SIGTERM. It has a topic
`orders` of two partitions, a compacted topic `table`, and the trace of a topic that was deleted.
"""

import shutil
from pathlib import Path

import pytest
from brokers import Broker, start_broker
from clients_stock import Message, admin, confluent_consumer, confluent_read, confluent_take, confluent_write
from confluent_kafka.admin import ConfigResource, ResourceType

FIXTURE = Path(__file__).parent / "fixtures/data-directory"
ORDERS = {0: [1, 6], 1: [2, 3, 4, 5, 7, 8]}


@pytest.fixture
def upgraded(tmp_path: Path) -> Broker:
    """A broker on a copy of the old directory."""
    data = tmp_path / "data"
    shutil.copytree(FIXTURE, data)
    return start_broker(data)


def read(broker: Broker, topic: str, partition: int, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    found = confluent_read(broker.address, topic, count, partition=partition)
    return [(it.offset, it.key, it.value) for it in found]


def test_a_group_of_the_new_protocol_reads_from_an_old_data_directory(upgraded: Broker) -> None:
    # The old metadata have no group.version: the controller adds it.
    settings = {"group.id": "new", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumer = confluent_consumer(upgraded.address, **settings)
    try:
        consumer.subscribe(["orders"])
        assert len(confluent_take(consumer, 8)) == 8
    finally:
        consumer.close()
        upgraded.stop()


def test_an_old_data_directory_is_served_and_written_on(upgraded: Broker) -> None:
    try:
        for _start in range(2):
            for partition, numbers in ORDERS.items():
                expected = [(at, b"key%d" % it, b"value%d" % it) for at, it in enumerate(numbers)]
                assert read(upgraded, "orders", partition, len(numbers)) == expected
            assert read(upgraded, "table", 0, 3) == [(0, b"a", b"1"), (1, b"b", b"2"), (2, b"a", b"3")]
            client = admin(upgraded.address)
            # The consumers that have read here have groups, so there may be the topic of their offsets.
            assert set(client.list_topics(timeout=10).topics) - {"__consumer_offsets"} == {"orders", "table"}
            (described,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, "table")]).values()
            assert described.result(10)["cleanup.policy"].value == "compact"
            # The next start finds the records of this version as well.
            upgraded.stop()
            upgraded.restart()
        assert confluent_write(upgraded.address, "orders", [Message(b"new", b"key1")], partition=0) == [2]
        assert read(upgraded, "orders", 0, 3)[-1] == (2, b"key1", b"new")
    finally:
        upgraded.stop()
