"""Stock consumers in groups: they subscribe, read, commit, and go on where they stopped."""

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence

import clients_stock as stock
import pytest
from aiokafka import AIOKafkaConsumer
from brokers import Broker, eventually, unique
from cases import case
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from groups_crews import KINDS, Crew, poll_until
from groups_readers import GROUP_SETTINGS, AioReader, PythonReader, python_subscriber
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

pytest_plugins = ["groups_fixtures"]
# kafka-python 3.0 may leave a socket to the garbage collector when it is closed on a busy machine.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

READ_S_MAX = 60
PARTITIONS = 4


def fill(bootstrap: str, topic: str, count: int, *, first: int = 0) -> None:
    """Write numbers to the partitions in turn."""
    for partition in range(PARTITIONS):
        numbers = range(first + partition, first + count, PARTITIONS)
        stock.confluent_write(bootstrap, topic, [stock.Message(b"%d" % it) for it in numbers], partition=partition)


def write(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Write some records to each partition."""
    for partition in range(partitions):
        stock.confluent_write(bootstrap, topic, [stock.Message(b"x")] * count, partition=partition)


def subscriber(bootstrap: str, topics: Sequence[str], group: str, **settings: object) -> Consumer:
    consumer = stock.confluent_consumer(
        bootstrap, **{"group.id": group, "auto.offset.reset": "earliest"} | {"enable.auto.commit": False} | settings
    )
    consumer.subscribe(list(topics))
    return consumer


def numbers_of(consumer: Consumer, count: int) -> list[int]:
    return sorted(int(it.value or b"") for it in stock.confluent_take(consumer, count, READ_S_MAX))


def confluent_round(bootstrap: str, topic: str, group: str, count: int, **settings: object) -> list[int]:
    """Read that many records in a group, commit, and leave."""
    consumer = subscriber(bootstrap, [topic], group, **settings)
    try:
        found = numbers_of(consumer, count)
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def python_round(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    consumer = python_subscriber(topic, **GROUP_SETTINGS, bootstrap_servers=bootstrap, group_id=group)
    found: list[int] = []
    deadline = time.monotonic() + READ_S_MAX
    try:
        while time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200, max_records=max(count - len(found), 1)).values():
                found += [int(record.value) for record in records]
            # kafka-python may join a second time when metadata arrives. It cannot commit then, and asks for a poll.
            with contextlib.suppress(RebalanceInProgressError):
                if len(found) >= count:
                    consumer.commit()
                    break
        return sorted(found)
    finally:
        consumer.close()
        gc.collect()


async def _aiokafka_round(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    consumer = AIOKafkaConsumer(topic, **GROUP_SETTINGS, bootstrap_servers=bootstrap, group_id=group)
    await consumer.start()
    try:
        found = [int((await asyncio.wait_for(consumer.getone(), READ_S_MAX)).value) for _ in range(count)]
        await consumer.commit()
        return sorted(found)
    finally:
        await consumer.stop()


def aiokafka_round(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    return asyncio.run(_aiokafka_round(bootstrap, topic, group, count))


Round = Callable[[str, str, str, int], list[int]]


def confluent_round_of(kind: str) -> Round:
    return lambda bootstrap, topic, group, count: confluent_round(bootstrap, topic, group, count, **KINDS[kind])


ROUNDS: dict[str, Round] = {
    **{kind: confluent_round_of(kind) for kind in KINDS},
    "kafka-python": python_round,
    "aiokafka": aiokafka_round,
}


@pytest.mark.parametrize("client", list(ROUNDS))
def test_a_group_goes_on_after_a_restart_where_it_has_committed(grouped: Broker, client: str) -> None:
    topic, group = stock.create_topic(grouped.address, unique("resume"), PARTITIONS), unique(client)
    fill(grouped.address, topic, 40)
    assert ROUNDS[client](grouped.address, topic, group, 40) == list(range(40))
    fill(grouped.address, topic, 20, first=40)
    assert ROUNDS[client](grouped.address, topic, group, 20) == list(range(40, 60))


def test_members_of_three_libraries_share_the_partitions_of_a_group(grouped: Broker) -> None:
    topic, group = stock.create_topic(grouped.address, unique("mixed"), 6), unique("mixed")
    with (
        Crew(grouped.address, [topic], group, is_orderly=True, **KINDS["range"]) as crew,
        contextlib.ExitStack() as stack,
    ):
        readers = [it(grouped.address, topic, group) for it in (PythonReader, AioReader)]
        for it in readers:
            stack.callback(it.close)
        crew.hire()

        def own(owned: list[int]) -> bool:
            return sorted([*crew.owned(), *(it.owned for it in readers)]) == owned

        def read() -> list[tuple[int, int]]:
            ours = [
                (partition, offset) for (_, partition), count in crew.history.next.items() for offset in range(count)
            ]
            return sorted({*ours, *(one for it in readers for one in it.read)})

        poll_until([crew], lambda: own([2, 2, 2]), "each has two partitions")
        write(grouped.address, topic, 6, 10)
        poll_until([crew], lambda: read() == [(it, at) for it in range(6) for at in range(10)], "they read all")
        readers[1].close()
        readers[1].owned = 0
        poll_until([crew], lambda: own([0, 3, 3]), "two share the partitions")
        write(grouped.address, topic, 6, 10)
        poll_until([crew], lambda: read() == [(it, at) for it in range(6) for at in range(20)], "they read on")
        twice = [one for one, count in Counter(one for it in readers for one in it.read).items() if count > 1]
        assert twice == []


def test_committed_metadata_come_back_unchanged(grouped: Broker) -> None:
    topic, group, text = stock.create_topic(grouped.address, unique("meta"), PARTITIONS), unique("meta"), "größe {}\n"
    where = PythonTopicPartition(topic, 1)
    python = KafkaConsumer(bootstrap_servers=grouped.address, group_id=group)
    try:
        python.commit({where: OffsetAndMetadata(7, text, -1)})
        again = python.committed(where, metadata=True)
    finally:
        python.close()
    assert (again.offset, again.metadata) == (7, text)
    consumer = stock.confluent_consumer(grouped.address, **{"group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 1)], timeout=30)
    assert (found.offset, found.metadata) == (7, text)


def test_a_group_is_listed_described_and_deleted(grouped: Broker) -> None:
    client: AdminClient = stock.admin(grouped.address)
    topic = stock.create_topic(grouped.address, unique("admin"), PARTITIONS)
    fill(grouped.address, topic, 8)
    for kind, settings in KINDS.items():
        with case(kind):
            group = unique(kind)
            consumer = subscriber(grouped.address, [topic], group, **settings)
            numbers_of(consumer, 8)
            consumer.commit(asynchronous=False)
            described = client.describe_consumer_groups([group])[group].result(30)
            assert described.state.name == "STABLE"
            (member,) = described.members
            assert {it.partition for it in member.assignment.topic_partitions} == set(range(PARTITIONS))
            with pytest.raises(KafkaException) as refused:
                client.delete_consumer_groups([group])[group].result(30)
            assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
            consumer.close()
            offsets = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
            assert {it.partition: it.offset for it in offsets.topic_partitions} == dict.fromkeys(range(PARTITIONS), 2)
            _await_empty(client, group)
            client.delete_consumer_groups([group])[group].result(30)
            assert group not in {it.group_id for it in client.list_consumer_groups().result(30).valid}


def _await_empty(client: AdminClient, group: str) -> None:
    def state() -> str:
        name: str = client.describe_consumer_groups([group])[group].result(30).state.name
        return name

    eventually(lambda: state() == "EMPTY", "the group is empty")
