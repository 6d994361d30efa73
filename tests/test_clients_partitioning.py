"""Every client sends the same key to the same partition."""

import random

from brokers import Broker, unique
from cases import case
from clients_stock import READ_S_MAX, confluent_producer, create_topic
from kafka.partitioner.default import DefaultPartitioner
from kafka.partitioner.default import murmur2 as python_murmur2

from minibroker.client.partitioners import murmur2, partition_of
from minibroker.clients.partitioners import Default

pytest_plugins = ["clients_fixtures"]

SEED = 20_240_301


def random_keys(count: int) -> list[bytes]:
    chance = random.Random(SEED)
    return [b"", b"\x00", *(chance.randbytes(chance.randrange(1, 60)) for _ in range(count - 2))]


class Cluster:
    """The part of a cluster that kafka-python's partitioner asks for."""

    def __init__(self, partitions: int) -> None:
        self.partitions = set(range(partitions))

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self.partitions

    available_partitions_for_topic = partitions_for_topic


def test_murmur2_is_kafka_pythons_on_random_keys() -> None:
    for key in random_keys(10_000):
        assert murmur2(key) & 0xFFFFFFFF == python_murmur2(key) & 0xFFFFFFFF, key


def test_a_key_has_the_partition_that_kafka_python_gives_it() -> None:
    for partitions in (1, 2, 7, 12, 1000):
        with case(partitions):
            stock = DefaultPartitioner()
            cluster = Cluster(partitions)
            for key in random_keys(10_000):
                assert partition_of(key, partitions) == stock.partition("t", key, key, b"", b"", cluster), key


def test_a_key_has_the_partition_that_librdkafka_gives_it(broker: Broker) -> None:
    topic = create_topic(broker.address, unique("murmur"), partitions=13)
    producer = confluent_producer(
        broker.address, partitioner="murmur2_random", **{"queue.buffering.max.messages": 100_000}
    )
    placed: dict[bytes, int] = {}

    def note(error: object, delivered: object) -> None:
        assert error is None
        placed[delivered.key() or b""] = delivered.partition()  # type: ignore[attr-defined]

    # librdkafka chooses any partition for an empty key.
    keys = [key for key in random_keys(10_000) if key]
    for key in keys:
        producer.produce(topic, key=key, on_delivery=note)
    assert producer.flush(READ_S_MAX) == 0
    ours = Default(random.Random(SEED).randrange)
    assert placed == {key: ours.partition(topic, key, 13) for key in keys}
