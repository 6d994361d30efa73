"""What transactions cost: a stream of them, one for each record, reading past them, and a take-over.

Throughput and reading use librdkafka. Transactions of one record use Kafka's own client, which has transaction version
2. Where Apache Kafka is at hand, the same clients use three nodes of it in turn.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.wires import Crowd, find_coordinator, no_errors
from confluent_kafka import Consumer, Producer, TopicPartition

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, children, jars, kafka, scaled
from minibroker.bench.context import is_quick
from minibroker.bench.failover import REPLICAS, SETTINGS
from minibroker.bench.local import Administered, LocalCluster
from minibroker.bench.plot import OURS
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients import transaction_admin
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer as BlockingProducer
from minibroker.clients.transactional import TransactionalProducer
from minibroker.metadata.names import TRANSACTION_STATE_TOPIC
from minibroker.transactions.tables.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from minibroker.wire.tables.init_producer_id import InitProducerIdRequest

HERE = Path(__file__).parent
TEST_FOLDERS = [str(HERE.parents[it] / "tests") for it in (0, 2)] + [str(HERE.parents[1] / "03-partitions" / "tests")]
TOPIC = "orders"
VALUE = bytes(1024)
TRANSACTION_S = 0.1
PATIENCE = "broker.session.timeout.ms=30000"
ONE_COORDINATOR = "transaction.state.log.num.partitions=1"
OF_PLAIN_MIN = 0.7
TIMES_PLAIN_MAX = 5.0
OF_UNCOMMITTED_MIN = 0.95
TAKE_OVER_S_MAX = 3.0
COST_MAX = 1.02
_ANSWER_S_MAX = 60


def _clusters(context: Context) -> tuple[dict[str, Administered[Any]], str]:
    """Kafka's three nodes if they are at hand, and ours, by series; and a note about Kafka."""
    peer = kafka.beside(context, *SETTINGS, PATIENCE, size=3)
    ours = context.cleanup.enter_context(LocalCluster.within(context, *SETTINGS, PATIENCE))
    found: dict[str, Administered[Any]] = {kafka.NAME: peer.cluster} if peer.cluster else {}
    return found | {OURS: ours}, peer.note


def _named(name: str, series: str) -> str:
    return name if series == OURS else f"{name}, {series}"


# A stream of transactions ---------------------------------------------------------------------------------------------

PLAIN, TRANSACTIONS = "idempotent", "transactions of 100 ms"


class Sender:
    """Producers of librdkafka: a plain one, and a transactional one."""

    def __init__(self, cluster: Administered[Any], count: int) -> None:
        self._count = count
        cluster.create(TOPIC, REPLICAS)
        common = {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        self._plain = Producer(common | {"enable.idempotence": True})
        self._transactional = Producer(common | {"transactional.id": "stream"})
        self._transactional.init_transactions(_ANSWER_S_MAX)

    def send_plain(self) -> None:
        """Send all records, and wait for them."""
        for number in range(self._count):
            self._plain.produce(TOPIC, VALUE, partition=number % len(REPLICAS))
            self._plain.poll(0)
        assert self._plain.flush(_ANSWER_S_MAX) == 0

    def send_in_transactions(self) -> None:
        """Send all records, and commit ten times a second."""
        producer, sent = self._transactional, 0
        while sent < self._count:
            producer.begin_transaction()
            ends_s = time.monotonic() + TRANSACTION_S
            while sent < self._count and time.monotonic() < ends_s:
                producer.produce(TOPIC, VALUE, partition=sent % len(REPLICAS))
                producer.poll(0)
                sent += 1
            producer.commit_transaction(_ANSWER_S_MAX)


def benchmark_stream(context: Context) -> Benchmark:
    """Transactions against a plain idempotent producer."""
    count = scaled(full=40_000, quick=500)
    cases = []
    clusters, note = _clusters(context)
    for series, cluster in clusters.items():
        sender = Sender(cluster, count)
        plain = _named(PLAIN, series)
        size = {"bytes_count": count * len(VALUE), "operations_count": count, "series": series}
        cases.append(Case(plain, sender.send_plain, **size))  # type: ignore[arg-type]
        cases.append(Case(_named(TRANSACTIONS, series), sender.send_in_transactions, limit=plain, **size))  # type: ignore[arg-type]
    return Benchmark(
        "A stream of transactions, 1 KB records, three nodes",
        cases,
        bars=[Bar(TRANSACTIONS, "ratio", at_least=OF_PLAIN_MIN)],
        metric="mb_per_s",
        note=f"librdkafka, acks=all, three partitions. {note}",
    )


# One record a transaction ---------------------------------------------------------------------------------------------


@contextmanager
def java_times(bootstrap: str, classpath: str) -> Iterator[Callable[[str, int], float]]:
    """The median time of records, in milliseconds, with Kafka's own client in a process of its own."""
    # By the environment, so that an error that shows the command does not show a page of jars.
    env = os.environ | {"CLASSPATH": classpath}
    command = ["java", str(HERE / "OneRecord.java"), bootstrap, TOPIC]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answered = process.stdin, process.stdout

        def median_ms(kind: str, count: int) -> float:
            asked.write(f"{kind} {count}\n")
            asked.flush()
            return int(answered.readline()) / 1000

        try:
            yield median_ms
        finally:
            process.kill()


@contextmanager
def our_times(bootstrap: str) -> Iterator[Callable[[str, int], float]]:
    """The same with our client, where there is no Java."""
    with (
        Client(bootstrap) as client,
        BlockingProducer(client, linger_ms=0) as plain,
        TransactionalProducer(client, "one-record", linger_ms=0) as producer,
    ):
        producer.init()

        def median_ms(kind: str, count: int) -> float:
            times_s = []
            for _ in range(count):
                begun_s = time.perf_counter()
                if kind == "plain":
                    plain.wait(plain.send(TOPIC, VALUE, partition=0))
                else:
                    producer.begin()
                    producer.send(TOPIC, VALUE, partition=0)
                    producer.commit()
                times_s.append(time.perf_counter() - begun_s)
            return sorted(times_s)[count // 2] * 1000

        yield median_ms


def benchmark_one_record(context: Context) -> Benchmark:
    """The median time of a transaction with one record, against a plain record."""
    count = scaled(full=300, quick=5)
    try:
        classpath = "" if is_quick() else jars.classpath(kafka.POM)
    except jars.Missing:
        classpath = ""
    found: dict[str, dict[str, float]] = {}
    cases = []
    clusters, note = _clusters(context)
    for series, cluster in clusters.items():
        cluster.create(TOPIC, REPLICAS[:1])
        opened = java_times(cluster.bootstrap, classpath) if classpath else our_times(cluster.bootstrap)
        median_ms = context.cleanup.enter_context(opened)
        for kind in ("plain", "transaction"):

            def ask(kind: str = kind, series: str = series, median_ms: Callable[[str, int], float] = median_ms) -> None:
                times = found.setdefault(series, {})
                times[kind] = min(median_ms(kind, count), times.get(kind, float("inf")))

            name, limit = _named(kind, series), _named("plain", series) if kind != "plain" else ""
            cases.append(Case(name, ask, operations_count=count, series=series, limit=limit))

    def factor(series: str) -> float:
        return found[series]["transaction"] / found[series]["plain"]

    facts = []
    for series in clusters:
        for kind in ("plain", "transaction"):
            find = partial(lambda *names: found[names[0]][names[1]], series, kind)
            facts.append(Fact(f"{_named(kind, series)}: p50 of the best round", "ms", find))
        at_most = TIMES_PLAIN_MAX if series == OURS else None
        times = _named("a transaction in plain records", series)
        facts.append(Fact(times, "times", partial(factor, series), at_most=at_most))
    client = "Kafka's Java client, transaction version 2" if classpath else "our client, because Java is not used here"
    return Benchmark(
        "One record a transaction, three nodes",
        cases,
        metric="ms_per_op",
        columns=["ms_per_op"],
        facts=facts,
        note=f"{client}, acks=all, 1 KB, one after the other. {note}",
    )


# Reading --------------------------------------------------------------------------------------------------------------


def benchmark_isolation(context: Context) -> Benchmark:
    """read_committed against read_uncommitted, with no aborted transaction and with half of them aborted."""
    count, each = scaled(full=100_000, quick=1000), scaled(full=500, quick=50)
    address = children.serve(context).address
    topics: dict[str, Callable[[int], bool]] = {
        "no aborts": lambda _number: False,
        "half aborted": lambda number: bool(number % 2),
    }
    cases = []
    for topic, is_aborted in topics.items():
        name = topic.replace(" ", "-")
        fill(address, name, count, each, is_aborted)
        limit = f"read_uncommitted, {topic}"
        for level in ("read_uncommitted", "read_committed"):
            shown = sum(each for it in range(count // each) if level == "read_uncommitted" or not is_aborted(it))
            cases.append(
                Case(
                    f"{level}, {topic}",
                    lambda name=name, level=level, shown=shown: read(address, name, level, shown),  # type: ignore[misc]
                    bytes_count=count * len(VALUE),
                    limit="" if level == "read_uncommitted" else limit,
                    group=topic,
                )
            )
    return Benchmark(
        "Reading past transactions",
        cases,
        bars=[Bar("read_committed, no aborts", "ratio", at_least=OF_UNCOMMITTED_MIN)],
        note=f"librdkafka, one node, {each} records of 1 KB in a transaction; bytes of the log, aborted ones included.",
    )


def fill(address: str, topic: str, count: int, each: int, is_aborted: Callable[[int], bool]) -> None:
    """Write transactions of `each` records; some are aborted."""
    with Client(address) as client, TransactionalProducer(client, f"fill-{topic}", batch_size=64 * 1024) as producer:
        producer.init()
        for number in range(count // each):
            producer.begin()
            for _ in range(each):
                producer.send(topic, VALUE, partition=0)
            producer.flush()
            (producer.abort if is_aborted(number) else producer.commit)()


def read(address: str, topic: str, level: str, count: int) -> None:
    """Read so many records from the beginning."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "isolation.level": level})
    consumer.assign([TopicPartition(topic, 0, 0)])
    left = count
    while left:
        messages = consumer.consume(min(left, 10_000), timeout=_ANSWER_S_MAX)
        assert messages, f"{left} records are missing"
        left -= len(messages)
    consumer.close()


# Take-over ------------------------------------------------------------------------------------------------------------


def benchmark_coordinator(context: Context) -> Benchmark:
    """A coordinator stops; another node takes over its transactional ids, of which a hundred have open transactions."""
    count, open_count = scaled(full=10_000, quick=100), scaled(full=100, quick=10)
    settings = (*SETTINGS, PATIENCE, ONE_COORDINATOR)
    cluster = context.cleanup.enter_context(LocalCluster.within(context, *settings))
    cluster.create(TOPIC, REPLICAS)
    crowd = Crowd(context)
    make_ids(cluster, crowd, count, open_count)

    def take_over() -> None:
        number = coordinator_of(cluster)
        assert number is not None
        cluster[number].stop()
        until(lambda: coordinator_of(cluster) not in (None, number) and is_loaded(cluster, open_count), "loaded")
        stopped.append(number)

    def restart() -> None:
        cluster.repair()
        cluster.await_isr(TRANSACTION_STATE_TOPIC, 1, 2, 3)

    stopped: list[int] = []
    case = Case("stop a coordinator until the next one answers", take_over, operations_count=1, after=restart)
    return Benchmark(
        f"The take-over of {count:,} transactional ids, {open_count} open",
        [case],
        bars=[Bar(case.name, "ms_per_op", at_most=TAKE_OVER_S_MAX * 1000)],
        metric="ms_per_op",
        columns=["ms_per_op"],
        note="Three nodes, one partition of __transaction_state; the controlled shutdown of the node is included.",
    )


def make_ids(cluster: LocalCluster, crowd: Crowd, count: int, open_count: int) -> None:
    """Make transactional ids, and begin transactions for some of them."""
    address = crowd.run(find_coordinator(cluster[1].address, "tx-0", key_type=1))
    cluster.await_isr(TRANSACTION_STATE_TOPIC, 1, 2, 3)
    wires = 20
    crowd.connect(address, wires)

    async def make(first: int, wire: Any) -> None:
        for number in range(first, count, wires):
            init = InitProducerIdRequest(transactional_id=f"tx-{number}", transaction_timeout_ms=900_000)
            made = await wire.insist(init, 4)
            if number < open_count:
                topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1, 2])]
                add = AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=f"tx-{number}",
                    v3_and_below_producer_id=made.producer_id,
                    v3_and_below_producer_epoch=made.producer_epoch,
                    v3_and_below_topics=topics,
                )
                no_errors([await wire.insist(add, 3)])

    crowd.each(make)


def coordinator_of(cluster: LocalCluster) -> int | None:
    """The node that coordinates all transactions, if one answers."""
    try:
        with Client(cluster.bootstrap, timeout_ms=2000) as client:
            return client.leader(TRANSACTION_STATE_TOPIC, 0)
    except ClientError:
        return None


def is_loaded(cluster: LocalCluster, open_count: int) -> bool:
    """Whether the new coordinator knows the open transactions."""
    try:
        with Client(cluster.bootstrap, timeout_ms=2000) as client:
            return transaction_admin.list_transactions(client) != [] and _open_count(client) == open_count
    except ClientError:
        return False


def _open_count(client: Client) -> int:
    return sum(it.state == "Ongoing" for it in transaction_admin.list_transactions(client))


# Plain produce --------------------------------------------------------------------------------------------------------


def benchmark_plain(context: Context) -> Benchmark:  # noqa: ARG001
    """Requests of an idempotent producer, to a replicated partition without and with transactions."""
    sys.path += [it for it in TEST_FOLDERS if it not in sys.path]
    from partitions_broker import produce_request  # noqa: PLC0415
    from transactions_broker import PRODUCER, TransactionBroker, batch_of  # noqa: PLC0415

    count = scaled(full=3000, quick=50)
    without, with_rules = "without transactions", "with transactions"
    cases = []
    for name in (without, with_rules):
        broker = TransactionBroker(has_transactions=name == with_rules)
        numbers = itertools.count()

        def produce(broker: TransactionBroker = broker, numbers: Iterator[int] = numbers) -> None:
            for sequence in itertools.islice(numbers, count):
                data = batch_of([VALUE], PRODUCER, 0, sequence, is_transactional=False)
                broker.dispatch(produce_request(TOPIC, data, acks=1))

        limit = without if name == with_rules else ""
        cases.append(Case(name, produce, operations_count=count, limit=limit))
    return Benchmark(
        "Plain produce beside transactions",
        cases,
        bars=[Bar(with_rules, "cpu_ratio", at_most=COST_MAX)],
        metric="us_per_op",
        columns=["cpu_us_per_op"],
        note="One record of 1 KB a request, in memory: the handler, the rules, and the append.",
    )
