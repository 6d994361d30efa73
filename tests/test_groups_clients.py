"""Stock consumers in groups: they subscribe, read, commit, and go on where they stopped."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import clients_stock as stock
import pytest
from aiokafka import AIOKafkaConsumer
from brokers import Broker, eventually, unique
from cases import case
from clusters import QuorumCluster
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata

pytest_plugins = ["clients_fixtures", "clusters_fixtures"]

READ_S_MAX = 60
PARTITIONS = 4
QUICK_REBALANCE = "group.initial.rebalance.delay.ms=0"
KINDS: dict[str, dict[str, object]] = {
    "range": {"partition.assignment.strategy": "range"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker whose classic groups do not wait for a second member."""
    from brokers import BOOTSTRAP, ForeignBroker, start_broker

    if BOOTSTRAP:
        yield ForeignBroker(BOOTSTRAP)
        return
    broker = start_broker(tmp_path_factory.mktemp("groups") / "data", QUICK_REBALANCE)
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()


def fill(bootstrap: str, topic: str, count: int, *, first: int = 0) -> None:
    """Write numbers to the partitions in turn."""
    for partition in range(PARTITIONS):
        numbers = range(first + partition, first + count, PARTITIONS)
        stock.confluent_write(bootstrap, topic, [stock.Message(b"%d" % it) for it in numbers], partition=partition)


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
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
    )
    found: list[int] = []
    try:
        deadline = time.monotonic() + READ_S_MAX
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200, max_records=count - len(found)).values():
                found += [int(record.value) for record in records]
        consumer.commit()
        return sorted(found)
    finally:
        consumer.close()


async def _aiokafka_round(bootstrap: str, topic: str, group: str, count: int) -> list[int]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
    )
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


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_members_share_the_partitions_and_each_partition_has_one_owner(grouped: Broker, kind: str) -> None:
    topic, group = stock.create_topic(grouped.address, unique("share"), PARTITIONS), unique(kind)
    members = [subscriber(grouped.address, [topic], group, **KINDS[kind]) for _ in range(2)]

    def owned() -> list[set[int]]:
        for member in members:
            member.poll(0.05)
        return [{it.partition for it in member.assignment()} for member in members]

    def is_shared() -> bool:
        one, other = owned()
        return len(one) == len(other) == 2 and one | other == set(range(PARTITIONS))

    eventually(is_shared, "each member has two partitions", seconds=READ_S_MAX)
    members.pop().close()
    eventually(lambda: owned() == [set(range(PARTITIONS))], "the last member has all", seconds=READ_S_MAX)
    members.pop().close()


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


def test_clients_may_not_write_to_the_topic_of_offsets(grouped: Broker) -> None:
    stock.confluent_consumer(grouped.address, **{"group.id": unique("any")}).committed(
        [TopicPartition(stock.create_topic(grouped.address, unique("any")), 0)], timeout=30
    )
    with pytest.raises(KafkaException) as refused:
        stock.confluent_write(grouped.address, "__consumer_offsets", [stock.Message(b"x", b"k")])
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_a_group_goes_on_when_its_coordinator_is_killed(quorum: QuorumCluster, kind: str) -> None:
    topic, group = quorum.create(unique("killed"), [[1, 2, 3]] * PARTITIONS), unique("killed")
    fill(quorum.bootstrap, topic, 40)
    consumer = subscriber(quorum.bootstrap, [topic], group, **KINDS[kind])
    assert numbers_of(consumer, 40) == list(range(40))
    consumer.commit(asynchronous=False)
    client = stock.admin(quorum.bootstrap)  # held until the answer is there
    coordinator = client.describe_consumer_groups([group])[group].result(30).coordinator.id
    quorum.nodes[coordinator].kill()
    fill(quorum.bootstrap, topic, 20, first=40)
    assert numbers_of(consumer, 20) == list(range(40, 60))
    eventually(lambda: _commits(consumer), "the new coordinator has the commit", seconds=READ_S_MAX)
    consumer.close()
    found = stock.confluent_consumer(quorum.bootstrap, **{"group.id": group}).committed(
        [TopicPartition(topic, it) for it in range(PARTITIONS)], timeout=30
    )
    assert [it.offset for it in found] == [15] * PARTITIONS


def test_a_coordinator_that_stops_hands_its_groups_over_without_an_error(quorum: QuorumCluster) -> None:
    topic, group = quorum.create(unique("stopped"), [[1, 2, 3]]), unique("stopped")
    stock.confluent_write(quorum.bootstrap, topic, [stock.Message(b"1")])
    consumer = subscriber(quorum.bootstrap, [topic], group, **KINDS["consumer"])
    assert numbers_of(consumer, 1) == [1]
    client = stock.admin(quorum.bootstrap)  # held until the answer is there
    coordinator = client.describe_consumer_groups([group])[group].result(30).coordinator.id
    stopping = threading.Thread(target=quorum.nodes[coordinator].stop)
    stopping.start()
    # librdkafka finds the new coordinator by itself: no commit fails, before, during and after the hand-over.
    offset = 1
    while stopping.is_alive():
        offset += 1
        consumer.poll(0)
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    assert found.offset == offset
    consumer.close()


def _commits(consumer: Consumer) -> bool:
    consumer.poll(0.1)
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return False
    return True
