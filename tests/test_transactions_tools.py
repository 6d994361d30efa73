"""Our command line with transactions: one for all lines of stdin, isolation, and what hangs is found and ended."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from brokers import Broker, StartBroker, eventually, unique
from click.testing import CliRunner
from clients_stock import create_topic
from test_transactions_bad_input import batch
from transactions_stock import read_all, stable_and_end

from minibroker.cli.main import program
from minibroker.clients.blocking import Client
from minibroker.clients.errors import Fenced
from minibroker.clients.transactional import TransactionalProducer
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

pytest_plugins = ["clients_fixtures"]

Run = Callable[..., str]
ALL = ("--from-beginning", "--exit-at-end")


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as it:
        yield it


def runner(address: str) -> Run:
    """Runs `minibroker` on a broker; what it printed, its errors last."""

    def run(*arguments: str, given: str = "", code: int = 0) -> str:
        words = [*arguments, "--bootstrap-server", address]
        if code == 0:
            # A process of its own costs a second, and only shows errors in another way.
            result = CliRunner().invoke(program, words, input=given, prog_name="minibroker")
            assert result.exit_code == 0, result.output
            return result.stdout + result.stderr
        command = [sys.executable, "-m", "minibroker.cli", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    return run


def listed(run: Run, *arguments: str) -> Any:
    return json.loads(run("transactions", *arguments, "--format", "json"))


def write_late(client: Client, topic: str, producer: TransactionalProducer, partition: int = 0) -> int:
    """Write a batch of a producer outside of any transaction, as a late request does; return the error code."""
    data = PartitionProduceData(index=partition, records=batch(producer.producer_id, producer.producer_epoch))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    late = ProduceRequest(transactional_id="late", acks=-1, timeout_ms=3000, topic_data=topics)
    answer = client.send(late, node_id=client.leader(topic, partition), version_max=11)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_the_lines_of_stdin_are_one_transaction(broker: Broker, client: Client) -> None:
    run, name = runner(broker.address), unique("cli")
    topic = create_topic(broker.address, unique("lines"), 3)
    run("produce", topic, "--transactional-id", name, given="a\nb\nc\n")
    eventually(lambda: sorted(read_all(client, topic)) == [b"a", b"b", b"c"], "the transaction is committed")
    committed = run("consume", topic, *ALL, "--isolation", "read_committed")
    assert sorted(committed.split()) == ["a", "b", "c"]
    state = listed(run, "describe", name)
    assert (state["state"], state["partitions"], state["open_seconds"]) == ("CompleteCommit", [], None)
    assert run("produce", topic, "--transactional-id", name, "--acks", "1", code=2).count("\n") == 1


def test_an_open_transaction_is_listed_described_hidden_and_aborted(broker: Broker, client: Client) -> None:
    run, name = runner(broker.address), unique("cli")
    topic = create_topic(broker.address, unique("open"), 2)
    with TransactionalProducer(client, name) as producer:
        producer.init()
        producer.begin()
        producer.send(topic, b"open", partition=1)
        producer.flush()
        [entry] = [it for it in listed(run, "list") if it["transactional_id"] == name]
        assert (entry["state"], entry["producer_id"]) == ("Ongoing", producer.producer_id)
        assert listed(run, "describe", name)["partitions"] == [{"topic": topic, "partition": 1}]
        assert name in run("transactions", "list")
        assert f"{topic}          1" in run("transactions", "describe", name)
        assert run("consume", topic, *ALL, "--isolation", "read_committed") == ""
        assert run("consume", topic, *ALL) == "open\n"
        # It is open, but it does not hang: its coordinator knows it.
        assert listed(run, "list", "--hanging", "--older-than", "1ms", "--topic", topic) == []
        assert "would be aborted" in run("transactions", "abort", name, "--dry-run")
        assert "fenced" in run("transactions", "abort", name)
        with pytest.raises(Fenced):
            producer.commit()
    eventually(lambda: len({tuple(it) for it in stable_and_end(client, topic)}) == 1, "nothing is open")
    assert read_all(client, topic) == []
    assert run("transactions", "abort", name, code=1).count("\n") == 1
    assert "did you mean" in run("transactions", "describe", name + "x", code=1)
    assert run("transactions", "abort", code=2).count("\n") == 1


def test_a_hanging_transaction_is_found_and_ended(start: StartBroker) -> None:
    """A client wrote after its transaction had ended, to a broker that did not verify the batch (KIP-890)."""
    broker = start("transaction.partition.verification.enable=false")
    run, topic = runner(broker.address), create_topic(broker.address, unique("hanging"), 2)
    with Client(broker.address) as client, TransactionalProducer(client, unique("late")) as producer:
        producer.init()
        assert write_late(client, topic, producer, partition=1) == 0
        assert stable_and_end(client, topic) == ([0, 0], [0, 1])
        assert listed(run, "list", "--hanging") == [], "it is not older than 15 minutes"
        [found] = listed(run, "list", "--hanging", "--older-than", "1ms")
        assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 1, 0)
        assert "1 hanging transaction would" in run(
            "transactions", "abort", "--hanging", "--older-than", "1ms", "--dry-run"
        )
        assert stable_and_end(client, topic) == ([0, 0], [0, 1])
        assert "1 hanging transaction aborted" in run("transactions", "abort", "--hanging", "--older-than", "1ms")
        eventually(lambda: stable_and_end(client, topic) == ([0, 2], [0, 2]), "the marker ends it")
        assert read_all(client, topic) == []
        assert listed(run, "list", "--hanging", "--older-than", "1ms") == []
