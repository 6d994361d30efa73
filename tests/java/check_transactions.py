"""Kafka's own producer, tools and Streams with transactions against a cluster of ours: `make test-java`.

The Java client uses transaction version 2 (KIP-890): each transaction has an epoch of its own. The name of this file
keeps it out of `make test`.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import eventually, unique
from cases import case
from chaos_transactions import QUICK_TRANSACTIONS
from click.testing import CliRunner
from clients_stock import Message, confluent_write, create_topic
from groups_crews import QUICK_GROUPS
from java_calls import TOOLS, Java, java_beside
from test_transactions_tools import write_late
from transactions_stock import read_all, stable_and_end

from minibroker.cli.main import program
from minibroker.clients import group_admin
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, READ_COMMITTED, Consumer
from minibroker.clients.transactional import TransactionalProducer
from minibroker.segments.checkpoint import TopicPartition

HERE = Path(__file__).parent
WORDS = ("alpha", "beta", "gamma", "delta")
LINES, KILLS = 3000, 4
# The batches of the Java client are not verified anyway, because they add their partitions. Older ones can hang then.
UNVERIFIED = "transaction.partition.verification.enable=false"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """Three nodes, or one of another broker, and Kafka's clients beside them, for all tests of this module."""
    settings = (*QUICK_GROUPS, *QUICK_TRANSACTIONS, UNVERIFIED)
    with java_beside(tmp_path_factory.mktemp("transactions"), *settings) as it:
        yield it


@pytest.fixture
def client(java: Java) -> Iterator[Client]:
    with Client(java.bootstrap) as it:
        yield it


class JavaProducer:
    """A transactional producer in the Java process."""

    def __init__(self, java: Java, name: str, timeout_ms: int = 60_000) -> None:
        self.java, self.name = java, unique("producer")
        settings = {
            "bootstrap.servers": java.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "max.block.ms": 20_000,
        }
        assert java.call("producer", member=self.name, settings=settings) == {}

    def run(self, topic: str, *values: str, end: str, refused: str = "", **more: object) -> None:
        answer = self.java.call("transaction", member=self.name, topic=topic, values=values, end=end, **more)
        if refused:
            assert re.search(refused, answer["error"]), answer
        else:
            assert answer == {}

    def close(self) -> None:
        assert self.java.call("retire", member=self.name) == {}


def tool(java: Java, *arguments: object) -> list[list[str]]:
    """The rows that kafka-transactions prints, without their heading."""
    shown = java.tool(f"{TOOLS}.TransactionsCommand", *arguments)
    return [line.split() for line in shown.splitlines()[1:] if line.strip()]


def epochs(client: Client, topic: str) -> list[int]:
    """The producer epochs of the batches with records in partition 0, each once, in the order of the log."""
    with Consumer(client, max_wait_ms=50) as consumer:
        (partition,) = consumer.assign_topic(topic, EARLIEST)
        end, found = consumer.end_offsets([partition])[partition], list[int]()
        while consumer.position(partition) < end:
            found += [batch.header.producer_epoch for it in consumer.poll(100) for batch in it.batches()]
    return list(dict.fromkeys(found))


def test_each_transaction_of_the_java_client_has_an_epoch_of_its_own(java: Java, client: Client) -> None:
    topic, group = create_topic(java.bootstrap, unique("java")), unique("java")
    producer = JavaProducer(java, unique("java"))
    for number, end in enumerate(("commit", "abort", "commit", "commit")):
        producer.run(topic, f"{number} a", f"{number} b", end=end, group=group, offset=number + 1)
    producer.run(topic, end="commit")
    producer.run(topic, end="abort")
    producer.close()
    expected = [f"{number} {letter}".encode() for number in (0, 2, 3) for letter in "ab"]
    eventually(lambda: read_all(client, topic) == expected, "three transactions are committed")
    eventually(
        lambda: group_admin.committed_offsets(client, group) == {TopicPartition(topic, 0): 4}, "the offset is committed"
    )
    first, *rest = epochs(client, topic)
    assert rest == [first + 1, first + 2, first + 3]


def test_a_zombie_of_the_java_client_is_fenced(java: Java, client: Client) -> None:
    topic, name = create_topic(java.bootstrap, unique("zombie")), unique("zombie")
    zombie = JavaProducer(java, name)
    zombie.run(topic, "zombie", end="")
    heir = JavaProducer(java, name)
    zombie.run(topic, "late", begins=False, end="commit", refused="Fenced|InvalidProducerEpoch|fatal")
    heir.run(topic, "heir", end="commit")
    eventually(lambda: read_all(client, topic) == [b"heir"], "only the heir is read")
    heir.close()
    zombie.close()


def test_kafka_transactions_shows_what_is_open_and_the_timeout_ends_it(java: Java, client: Client) -> None:
    topic, name = create_topic(java.bootstrap, unique("open"), 2), unique("open")
    producer = JavaProducer(java, name, timeout_ms=8000)
    producer.run(topic, "open", end="", partition=1)
    [listed] = [row for row in tool(java, "list") if row[0] == name]
    assert listed[3] == "Ongoing"
    [described] = tool(java, "describe", "--transactional-id", name)
    assert (described[1], described[4], described[-1]) == (name, "Ongoing", f"{topic}-1")
    [active] = tool(java, "describe-producers", "--topic", topic, "--partition", "1")
    assert (active[0], active[-1]) == (listed[2], "0"), "the producer id, and the first offset of the transaction"
    assert tool(java, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []
    eventually(
        lambda: stable_and_end(client, topic) == ([0, 2], [0, 2]), "the timeout ends the transaction", seconds=60
    )
    assert read_all(client, topic) == []
    producer.close()


def test_kafka_transactions_finds_what_hangs_and_aborts_it(java: Java, client: Client) -> None:
    topic = create_topic(java.bootstrap, unique("hanging"))
    with TransactionalProducer(client, unique("hanging")) as producer:
        producer.init()
        assert write_late(client, topic, producer) == 0
    assert stable_and_end(client, topic) == ([0], [1])
    [found] = tool(java, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert found[:2] == [topic, "0"]
    java.tool(f"{TOOLS}.TransactionsCommand", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    eventually(lambda: stable_and_end(client, topic) == ([2], [2]), "the marker ends it")
    assert read_all(client, topic) == []
    assert tool(java, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []


# Files --------------------------------------------------------------------------------------------------------------


def dump(java: Java, *words: str) -> str:
    ended = java.call("tool", name=f"{TOOLS}.DumpLogSegments", arguments=words)
    assert (ended["code"], ended["err"]) == (0, ""), ended
    return str(ended["out"])


def files_with(data: Path, pattern: str, name: str) -> list[str]:
    return [str(path) for path in data.glob(pattern) if name.encode() in path.read_bytes()]


def test_kafkas_dump_reads_the_files_of_transactions_of_every_replica(java: Java, client: Client) -> None:
    topic, name = create_topic(java.bootstrap, unique("files")), unique("files")
    producer = JavaProducer(java, name)
    for end in ("commit", "abort", "commit"):
        producer.run(topic, "x", "y", end=end)
    producer.close()
    eventually(lambda: len({tuple(it) for it in stable_and_end(client, topic)}) == 1, "all transactions have ended")
    holders = [data for data in java.data.values() if (data / f"{topic}-0").exists()]
    assert holders
    for data in java.data.values():
        states = files_with(data, "__transaction_state-*/*.log", name)
        if not states:
            continue
        shown = dump(java, "--transaction-log-decoder", "--files", ",".join(states))
        statuses = [line.split("payload:")[1] for line in shown.splitlines() if name in line and "payload:" in line]
        with case(data):
            assert statuses, shown
            assert "CompleteCommit" in statuses[-1] or '"transactionStatus":4' in statuses[-1], statuses[-1]
    for data in holders:
        folder = data / f"{topic}-0"
        with case(folder):
            shown = dump(java, "--deep-iteration", "--files", str(folder / "00000000000000000000.log"))
            assert Counter(re.findall(r"endTxnMarker: (\w+)", shown)) == {"COMMIT": 2, "ABORT": 1}
            index = folder / "00000000000000000000.txnindex"
            assert index.stat().st_size == 34
            entry = dump(java, "--files", str(index))
            assert re.search(r"producerId: \d+ firstOffset: 3 lastOffset: 5 lastStableOffset: 6", entry), entry
            assert "6" in our_dump(index)


def our_dump(path: Path) -> str:
    """What `minibroker dump` shows of a file of ours or of Kafka's. It finds nothing damaged."""
    result = CliRunner().invoke(program, ["dump", str(path)], prog_name="minibroker")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_our_dump_reads_the_states_of_transactions(java: Java, client: Client) -> None:
    """On Apache Kafka's files as well, with `make test-kafka`."""
    topic, name = create_topic(java.bootstrap, unique("states")), unique("states")
    producer = JavaProducer(java, name)
    producer.run(topic, "x", end="commit")
    producer.close()
    eventually(lambda: len({tuple(it) for it in stable_and_end(client, topic)}) == 1, "the transaction has ended")
    shown = [
        our_dump(Path(path))
        for data in java.data.values()
        for path in files_with(data, "__transaction_state-*/*.log", name)
    ]
    assert shown
    for it in shown:
        lines = [line for line in it.splitlines() if name in line]
        assert "complete" in lines[-1].lower(), lines


# Streams ------------------------------------------------------------------------------------------------------------


class Streams:
    """A process with a Streams program, which is killed and started again."""

    def __init__(self, java: Java, source: str, target: str, folder: Path) -> None:
        self._env = os.environ | {"CLASSPATH": os.environ["KAFKA_CLASSPATH"]}
        arguments = [java.bootstrap, unique("words"), source, target, str(folder)]
        self._command = ["java", "-XX:TieredStopAtLevel=1", str(HERE / "WordCount.java"), *arguments]
        self._log = (folder / "streams.log").open("wb")
        self._process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, env=self._env, stdout=self._log, stderr=self._log)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._begin()

    def close(self) -> None:
        self.kill()
        self._log.close()


def counts(client: Client, topic: str) -> dict[str, list[int]]:
    """The counts of each word, in the order in which they were committed."""
    found: dict[str, list[int]] = defaultdict(list)
    with Consumer(client, isolation_level=READ_COMMITTED, max_wait_ms=50) as consumer:
        partitions = consumer.assign_topic(topic, EARLIEST)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(it) < ends[it] for it in partitions):
            for record in (record for it in consumer.poll(100) for record in it):
                found[(record.key or b"").decode()].append(int(record.value or b"0"))
    return found


def test_a_word_count_of_kafka_streams_is_exact_through_kills(java: Java, client: Client, tmp_path: Path) -> None:
    """exactly_once_v2: every count of every word is committed once, whatever is killed."""
    chance = random.Random(5)
    source, target = (create_topic(java.bootstrap, unique(it), 2) for it in ("lines", "counts"))
    lines = [" ".join(chance.choices(WORDS, k=3)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    streams = Streams(java, source, target, tmp_path)
    try:
        for kill in range(KILLS + 1):
            part = lines[kill * LINES // (KILLS + 1) : (kill + 1) * LINES // (KILLS + 1)]
            before = sum(map(len, counts(client, target).values()))
            for partition in (0, 1):
                values = [Message(line.encode()) for line in part[partition::2]]
                confluent_write(java.bootstrap, source, values, partition=partition)
            # The program is in the middle of its work when it is killed.
            eventually(
                lambda before=before: sum(map(len, counts(client, target).values())) > before,  # type: ignore[misc]
                "words are counted",
                seconds=120,
            )
            if kill < KILLS:
                time.sleep(chance.uniform(0, 0.3))
                streams.restart()
        total = sum(expected.values())
        eventually(
            lambda: sum(map(len, counts(client, target).values())) >= total, "all words are counted", seconds=120
        )
    finally:
        streams.close()
    assert counts(client, target) == {word: list(range(1, count + 1)) for word, count in expected.items()}
