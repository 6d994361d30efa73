"""Transactions of stock clients and of ours on one broker: whole or absent, in every partition and for every reader."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from brokers import Broker, eventually, unique
from cases import case
from clients_stock import Message, aiokafka_read, confluent_read, confluent_write, create_topic, python_read
from transactions_stock import FAILURES, TRANSACTING, Transacting, read_all, stable_and_end

from minibroker.clients import group_admin
from minibroker.clients.blocking import Client

pytest_plugins = ["clients_fixtures"]

MANY_PARTITIONS = 30
MANY_RECORDS = 100_000
TIMEOUT_MS = 1500


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as it:
        yield it


def producer(library: str, broker: Broker, name: str = "", **settings: int) -> Transacting:
    made: Transacting = TRANSACTING[library](broker.address, name or unique("tx"), **settings)
    return made


def committed_by_readers(broker: Broker, topic: str, count: int) -> dict[str, list[bytes | None]]:
    """The first records that the readers of three libraries show, in the isolation of committed records."""
    address = broker.address
    found = {
        "confluent": confluent_read(address, topic, count, **{"isolation.level": "read_committed"}),
        "kafka-python": python_read(address, topic, count, isolation_level="read_committed"),
        "aiokafka": aiokafka_read(address, topic, count, isolation_level="read_committed"),
    }
    return {library: [it.value for it in records] for library, records in found.items()}


def test_a_transaction_is_read_when_it_commits_and_never_if_it_aborts(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic = create_topic(broker.address, unique("whole"))
        with case(library), producer(library, broker) as one:
            for outcome in ("aborted", "committed", "aborted", "committed"):
                one.begin()
                for number in range(10):
                    one.send(topic, f"{outcome} {number}".encode())
                one.flush()
                before = read_all(client, topic)
                assert f"{outcome} 9".encode() in read_all(client, topic, is_committed=False)[-10:]
                (one.commit if outcome == "committed" else one.abort)()
                added = [] if outcome == "aborted" else [f"committed {number}".encode() for number in range(10)]
                eventually(
                    lambda topic=topic, expected=before + added: read_all(client, topic) == expected,  # type: ignore[misc]
                    f"the outcome is seen: {outcome}",
                )
            expected = 2 * [f"committed {number}".encode() for number in range(10)]
            assert committed_by_readers(broker, topic, 20) == dict.fromkeys(
                ("confluent", "kafka-python", "aiokafka"), expected
            )
            assert len(read_all(client, topic, is_committed=False)) == 40


def test_a_reader_of_committed_records_stops_at_the_first_open_transaction(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic = create_topic(broker.address, unique("stable"))
        with case(library), producer(library, broker) as one, producer("ours", broker) as other:
            confluent_write(broker.address, topic, [Message(b"plain")])
            one.begin()
            one.send(topic, b"open")
            one.flush()
            other.begin()
            other.send(topic, b"later")
            other.commit()
            assert read_all(client, topic) == [b"plain"]
            one.commit()
            eventually(
                lambda topic=topic: read_all(client, topic) == [b"plain", b"open", b"later"],  # type: ignore[misc]
                "all transactions are shown",
            )


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic, name = create_topic(broker.address, unique("zombie")), unique("zombie")
        with case(library), producer(library, broker, name) as zombie:
            zombie.begin()
            zombie.send(topic, b"zombie")
            zombie.flush()
            with producer(library, broker, name) as heir:
                with pytest.raises(FAILURES):  # noqa: PT012 (some libraries fail at once, others at the end)
                    zombie.send(topic, b"late")
                    zombie.commit()
                heir.begin()
                heir.send(topic, b"heir")
                heir.commit()
            eventually(lambda topic=topic: read_all(client, topic) == [b"heir"], "only the heir is read")  # type: ignore[misc]


def test_offsets_count_if_their_transaction_commits(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic, group = create_topic(broker.address, unique("offsets"), 2), unique("offsets")

        def committed(group: str = group, topic: str = topic) -> dict[int, int]:
            found = group_admin.committed_offsets(client, group)
            return {it.partition: offset for it, offset in found.items() if it.topic == topic}

        with case(library), producer(library, broker) as one:
            for offset, is_commit in ((3, True), (5, False), (7, True)):
                one.begin()
                one.send(topic, b"x")
                one.send_offsets({(topic, 0): offset, (topic, 1): offset + 1}, group)
                if is_commit:
                    one.commit()
                    expected = {0: offset, 1: offset + 1}
                    eventually(lambda expected=expected: committed() == expected, "the offsets are committed")  # type: ignore[misc]
                else:
                    one.abort()
                    assert committed() == {0: 3, 1: 4}


def test_a_transaction_reaches_many_partitions_together(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic = create_topic(broker.address, unique("many"), MANY_PARTITIONS)
        with case(library), producer(library, broker) as one:
            for outcome in ("aborted", "committed"):
                one.begin()
                for partition in range(MANY_PARTITIONS):
                    one.send(topic, f"{outcome} {partition}".encode(), partition)
                (one.commit if outcome == "committed" else one.abort)()
            expected = [f"committed {partition}".encode() for partition in range(MANY_PARTITIONS)]
            eventually(lambda topic=topic, expected=expected: read_all(client, topic) == expected, "all are committed")  # type: ignore[misc]
            eventually(
                lambda topic=topic: len({tuple(it) for it in stable_and_end(client, topic)}) == 1,  # type: ignore[misc]
                "every partition is stable to its end",
            )


def test_a_transaction_of_100000_records_is_whole(broker: Broker, client: Client) -> None:
    for library in ("confluent", "ours"):
        topic = create_topic(broker.address, unique("large"), 4)
        with case(library), producer(library, broker) as one:
            for is_commit in (False, True):
                one.begin()
                for number in range(MANY_RECORDS if is_commit else 1000):
                    one.send(topic, b"%d %d" % (is_commit, number), number % 4)
                (one.commit if is_commit else one.abort)()
            eventually(lambda topic=topic: len(read_all(client, topic)) == MANY_RECORDS, "all records are committed")  # type: ignore[misc]
            expected = [b"1 %d" % number for partition in range(4) for number in range(partition, MANY_RECORDS, 4)]
            assert read_all(client, topic) == expected


def test_an_empty_transaction_commits_and_aborts(broker: Broker, client: Client) -> None:
    for library in TRANSACTING:
        topic = create_topic(broker.address, unique("empty"))
        with case(library), producer(library, broker) as one:
            for end in (one.commit, one.abort, one.abort, one.commit):
                one.begin()
                end()
            one.begin()
            one.send(topic, b"full")
            one.commit()
            eventually(lambda topic=topic: read_all(client, topic) == [b"full"], "the next one is committed")  # type: ignore[misc]


def test_the_broker_aborts_a_transaction_that_is_too_old(broker: Broker, client: Client) -> None:
    with ExitStack() as stack:
        opened = {}
        # All of them wait for the same second.
        for library in TRANSACTING:
            one = stack.enter_context(producer(library, broker, timeout_ms=TIMEOUT_MS))
            topic = create_topic(broker.address, unique("old"))
            one.begin()
            one.send(topic, b"old")
            one.flush()
            opened[library] = one, topic
        for library, (one, topic) in opened.items():
            with case(library):
                eventually(lambda topic=topic: stable_and_end(client, topic) == ([2], [2]), "a marker ends it")  # type: ignore[misc]
                assert read_all(client, topic) == []
                with pytest.raises(FAILURES):
                    one.commit()


def test_a_plain_record_in_a_partition_does_not_wait_for_a_marker(broker: Broker, client: Client) -> None:
    """A reader of uncommitted records sees everything, in the order of the log (trap 12)."""
    topic = create_topic(broker.address, unique("mixed"))
    with producer("ours", broker) as one:
        one.begin()
        one.send(topic, b"aborted")
        one.flush()
        confluent_write(broker.address, topic, [Message(b"plain")])
        one.abort()
    everything = [b"aborted", b"plain"]
    assert read_all(client, topic, is_committed=False) == everything
    assert [it.value for it in confluent_read(broker.address, topic, 2, **{"isolation.level": "read_uncommitted"})] == (
        everything
    )
    eventually(lambda: read_all(client, topic) == [b"plain"], "the aborted record is hidden")
