"""The exactly-once sink on a real broker: attempts that die, answers that are lost, transactions that take too long.

No Spark is needed: a test calls what a task calls. `test_spark_sink` and `make chaos-spark` use a session.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from brokers import Broker, eventually, unique
from cases import case
from proxy import Exchange, Proxy, Verdict
from transactions_stock import read_all, stable_and_end

from minibroker.client.errors import ClientError
from minibroker.clients import admin
from minibroker.clients.blocking import Client
from minibroker.clients.transactional import TransactionalProducer
from minibroker.spark import exactly_once
from minibroker.spark.connecting import close_clients
from minibroker.spark.errors import InvalidOption
from minibroker.spark.options import ClientSettings
from minibroker.spark.progress import Done, Overtaken, ReplayRefused, Ticket
from minibroker.spark.writing import Delivery, Written

pytest_plugins = ["clients_fixtures"]

PRODUCE, INIT, TXN_OFFSETS, END_TXN, OFFSET_FETCH = 0, 22, 28, 26, 9
VALUES = [b"%d" % number for number in range(300)]


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    close_clients()


class Query:
    """A query that writes to a topic of its own: each call is one attempt at a task."""

    def __init__(self, broker: Broker, address: str = "", delivery_timeout_ms: int = 20_000) -> None:
        self.topic = unique("once")
        self.query_id = unique("query")
        self.client = Client(broker.address)
        admin.create_topics(self.client, [admin.NewTopic(self.topic, partitions=3)])
        quick = ClientSettings(address or broker.address, "sink", 5000, backoff_ms=1, backoff_ms_max=5)
        self.delivery = Delivery(quick, delivery_timeout_ms=delivery_timeout_ms)

    def ticket(self, batch_id: int, *, partition: int = 0, run_id: str = "run") -> Ticket:
        return Ticket("sink", self.query_id, run_id, batch_id, partition)

    def write(
        self,
        batch_id: int,
        values: list[bytes],
        *,
        partition: int = 0,
        rows: Iterator[pa.RecordBatch] | None = None,
        client_id: str = "sink",
    ) -> tuple[Done, Written]:
        """Connections are shared by tasks with equal settings, so attempts at the same time need two client ids."""
        delivery = replace(self.delivery, client=replace(self.delivery.client, client_id=client_id))
        ticket = self.ticket(batch_id, partition=partition)
        return exactly_once.write_once(rows or iter([batch_of(values)]), delivery, topic=self.topic, ticket=ticket)

    def committed(self) -> list[bytes]:
        return sorted(read_all(self.client, self.topic), key=lambda it: int(it))


@pytest.fixture
def query(broker: Broker) -> Iterator[Query]:
    made = Query(broker)
    yield made
    made.client.close()


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(values, pa.binary()), "value": pa.array(values, pa.binary())})


# Attempts ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_repeated_in_any_order_of_its_rows_is_skipped(query: Query) -> None:
    done, written = query.write(0, VALUES)
    assert (done.is_written, written.row_count) == (True, 300)
    done, written = query.write(0, VALUES[::-1])
    assert (done.is_written, written.row_count) == (False, 0)
    assert query.write(1, VALUES[:5])[0].is_known_run
    assert query.committed() == sorted(VALUES + VALUES[:5], key=lambda it: int(it))


def test_each_spark_partition_has_its_own_progress(query: Query) -> None:
    query.write(0, VALUES[:10])
    query.write(0, VALUES[10:20], partition=1)
    assert not query.write(0, VALUES[10:20], partition=1)[0].is_written
    assert query.committed() == VALUES[:20]


def test_an_attempt_that_died_in_the_middle_leaves_nothing(query: Query) -> None:
    def die() -> Iterator[pa.RecordBatch]:
        yield batch_of(VALUES[:200])
        raise RuntimeError("the input fails")

    with pytest.raises(RuntimeError, match="the input fails"):
        query.write(0, [], rows=die())
    stable, end = stable_and_end(query.client, query.topic)
    assert stable == end, "the transaction is aborted at once, so readers do not wait for its timeout"
    query.write(0, VALUES)
    assert query.committed() == VALUES


def test_an_older_attempt_is_fenced_and_takes_the_work_of_the_newer_one_as_its_own(query: Query) -> None:
    newer: list[Done] = []

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch_of(VALUES[:100])
        # A second attempt at the same task begins and commits while this one runs, as with speculation.
        newer.append(query.write(0, VALUES, client_id="newer")[0])
        yield batch_of(VALUES[100:])

    older, _ = query.write(0, [], rows=slow())
    assert [older.is_written, newer[0].is_written] == [False, True]
    assert query.committed() == VALUES


def test_a_fenced_attempt_fails_if_the_other_one_does_not_commit(query: Query) -> None:
    query.delivery = replace(query.delivery, transaction_timeout_ms=1500)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch_of(VALUES[:100])
        with TransactionalProducer(query.client, query.ticket(0).name) as other:
            other.init()
        yield batch_of(VALUES[100:])

    with pytest.raises(Overtaken, match="another attempt has taken over and has not committed"):
        query.write(0, [], rows=overtaken())
    assert query.committed() == []


def test_a_task_that_takes_longer_than_its_transaction_fails_and_says_so(query: Query) -> None:
    query.delivery = replace(query.delivery, transaction_timeout_ms=300, request_bytes_max=1)

    def is_aborted() -> bool:
        stable, end = stable_and_end(query.client, query.topic)
        return stable == end and sum(end) > 0

    def late() -> Iterator[pa.RecordBatch]:
        yield batch_of(VALUES)
        eventually(is_aborted, "the broker aborts the transaction", seconds=30)
        yield batch_of(VALUES)

    told = r"took \d+ s, more than kafka\.transaction\.timeout\.ms, which is 300, .*; set a longer timeout, or make bat"
    with pytest.raises(Overtaken, match=told):
        query.write(0, [], rows=late())
    assert query.committed() == []


# Replays ------------------------------------------------------------------------------------------------------------


def test_a_replay_with_other_rows_is_refused_and_nothing_is_lost_or_repeated(query: Query) -> None:
    query.write(3, VALUES[:10])
    for values in (VALUES[:9], VALUES[1:11], []):
        with case(values), pytest.raises(ReplayRefused, match=r"10 rows are committed, and .* delivery=at-least-once"):
            query.write(3, values)
    with pytest.raises(ReplayRefused, match="batch 3 is in the topic already, so the checkpoint is out of date"):
        query.write(2, VALUES[:10])
    assert query.committed() == VALUES[:10]


def test_a_replay_with_fewer_partitions_is_refused_by_the_driver(query: Query) -> None:
    query.write(3, VALUES[10:20], partition=1)
    tickets = [query.ticket(3, run_id="new")]
    with pytest.raises(ReplayRefused, match=r"batch 3 of query .* has 1 Spark partitions now, but 10 rows of another"):
        exactly_once.demand_no_others(query.delivery.client, tickets)
    exactly_once.demand_no_others(query.delivery.client, [*tickets, query.ticket(3, partition=1)])
    exactly_once.demand_no_others(query.delivery.client, [query.ticket(4)])


def test_rows_for_several_topics_are_one_transaction(query: Query) -> None:
    other = unique("other")
    admin.create_topics(query.client, [admin.NewTopic(other)])
    columns = {"value": pa.array(VALUES[:4], pa.binary()), "topic": pa.array([query.topic, other] * 2)}
    for is_written in (True, False):
        rows = iter([pa.record_batch(columns)])
        done, _ = exactly_once.write_once(rows, query.delivery, topic=None, ticket=query.ticket(0))
        assert done.is_written is is_written
    assert query.committed() == [b"0", b"2"]
    assert read_all(query.client, other) == [b"1", b"3"]


# Failures -----------------------------------------------------------------------------------------------------------


def test_rows_are_there_once_whatever_answer_is_lost(broker: Broker) -> None:
    for api_key in (PRODUCE, INIT, TXN_OFFSETS, END_TXN, OFFSET_FETCH):
        for verdict in (Verdict.CUT, Verdict.TEAR):
            with case(api_key, verdict), Proxy(broker.address) as proxy:
                lost: list[Exchange] = []

                def lose_one(
                    exchange: Exchange,
                    api_key: int = api_key,
                    verdict: Verdict = verdict,
                    lost: list[Exchange] = lost,
                ) -> Verdict:
                    if exchange.api_key != api_key or lost:
                        return Verdict.PASS
                    lost.append(exchange)
                    return verdict

                query = Query(broker, proxy.address)
                proxy.on_response = lose_one
                query.write(0, VALUES)
                assert len(lost) == 1
                assert query.committed() == VALUES
                query.client.close()
                close_clients()


def test_an_attempt_whose_commit_is_in_doubt_fails_and_the_next_one_finds_out(broker: Broker) -> None:
    with Proxy(broker.address) as proxy:
        query = Query(broker, proxy.address, delivery_timeout_ms=300)
        proxy.on_response = lambda exchange: Verdict.CUT if exchange.api_key == END_TXN else Verdict.PASS
        with pytest.raises(ClientError):
            query.write(0, VALUES)
        proxy.on_response = lambda exchange: Verdict.PASS
        assert not query.write(0, VALUES)[0].is_written, "the broker had committed, and only the answer was lost"
        assert query.committed() == VALUES
        query.client.close()


def test_a_timeout_that_the_brokers_do_not_allow_is_one_line_that_names_the_option(query: Query) -> None:
    query.delivery = replace(query.delivery, transaction_timeout_ms=2**31 - 1)
    with pytest.raises(InvalidOption, match=r"^kafka\.transaction\.timeout\.ms: 2147483647 is more than the brokers' "):
        query.write(0, VALUES)
