"""What more nodes and more consumers bring: two nodes instead of one, and one to six consumers on four partitions.

A node is one process on one core, so small requests show what a second one brings. A consumer here needs a millisecond
for each record, as a program that does something with it; so one consumer is slow, and only more of them help.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from bench.bench_chapters import start
from bench.bench_requests import framed, produce
from bench.exchange import Exchange
from confluent_kafka import Consumer, Producer

from minibroker.bench import Bar, Benchmark, Case, Context, Line, LineChart, Point, Results, children, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.failover import await_ack
from minibroker.bench.watching import until
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client

TOPIC = "spread"
IN_FLIGHT = 32
TIMES_MIN = 1.6
PARTITIONS = 4
CONSUMERS = (1, 2, 4, 6)
WORK_S = 0.001
_numbers = itertools.count(1)


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Do all of this at the same time, each on a thread."""
    threads = [threading.Thread(target=it, daemon=True) for it in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Nodes ----------------------------------------------------------------------------------------------------------------


def benchmark_nodes(context: Context) -> Benchmark:
    nodes = start(context, "final", 2)
    with Client(nodes[0].address) as client:
        create_topics(client, [NewTopic(TOPIC, assignments={0: [1], 1: [2]})])
        for partition in range(len(nodes)):
            await_ack(client, TOPIC, partition)
    exchanges = [Exchange(context, node.host, node.port) for node in nodes]
    requests = [framed(produce(TOPIC, partition)) for partition in range(len(nodes))]
    answer_bytes = [len(exchange.ask(request)) for exchange, request in zip(exchanges, requests, strict=True)]
    count = scaled(full=32_000, quick=64)

    def case(name: str, used: int, limit: str = "") -> Case:
        def send(number: int) -> None:
            exchanges[number].repeat(requests[number], answer_bytes[number], count=count // used, in_flight=IN_FLIGHT)

        return Case(
            name,
            lambda: at_once([lambda it=it: send(it) for it in range(used)]),  # type: ignore[misc]
            operations_count=count,
            limit=limit,
            cpu_s=lambda: sum(it.cpu_s() for it in nodes),
        )

    cases = [case("one node", 1), case("two nodes", 2, limit="one node")]
    return Benchmark(
        "Small requests to one node and to two",
        cases,
        bars=[Bar("two nodes", "ratio", at_least=TIMES_MIN)],
        metric="ops_per_s",
        columns=["cpu_us_per_op"],
        note=f"An operation is a Produce of one record of 100 B, {IN_FLIGHT} in flight, to a partition of each node. "
        "The client shares the machine; its frames are built before.",
    )


# Consumers ------------------------------------------------------------------------------------------------------------


def benchmark_consumers(context: Context) -> Benchmark:
    broker = children.serve(context, "group.initial.rebalance.delay.ms=0")
    with Client(broker.address) as client:
        create_topics(client, [NewTopic(TOPIC, PARTITIONS)])
    count = scaled(full=2_000, quick=40)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(count):
        producer.produce(TOPIC, b"x", partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    crews = {size: Crew(broker.address, size, count) for size in CONSUMERS}
    cases = [
        Case(named(size), crew.read, operations_count=count, before=crew.join, after=crew.leave, cpu_s=broker.cpu_s)
        for size, crew in crews.items()
    ]
    return Benchmark(
        f"Consumers of one group on {PARTITIONS} partitions",
        cases,
        bars=[
            Bar(named(PARTITIONS), "ratio", at_least=0.8 * PARTITIONS, against=named(1)),
            Bar(named(CONSUMERS[-1]), "ratio", at_most=1.1, against=named(PARTITIONS)),
        ],
        metric="ops_per_s",
        figure=figure,
        note="An operation is a record, for which a consumer needs a millisecond.",
        repeats_max=3,
    )


def named(size: int) -> str:
    return f"{size} consumer{'s' if size > 1 else ''}"


def figure(results: Results) -> LineChart:
    points = [Point(size, *results[named(size)].speed) for size in CONSUMERS]
    title, x, y = f"Consumers of one group on {PARTITIONS} partitions", "consumers", "records/s"
    return LineChart(title, x, y, [Line("minibroker", points)], note=quick_note())


class Crew:
    """A group of some consumers, each on a thread of its own."""

    def __init__(self, bootstrap: str, size: int, count: int) -> None:
        self._bootstrap, self._size, self._count = bootstrap, size, count
        self._consumers: list[Consumer] = []
        self._left = 0
        self._lock = threading.Lock()

    def join(self) -> None:
        """Join a new group, and wait until every partition has its consumer."""
        settings = {"group.id": f"crew-{next(_numbers)}", "auto.offset.reset": "earliest", "log_level": 0}
        settings |= {"group.protocol": "consumer", "bootstrap.servers": self._bootstrap, "fetch.wait.max.ms": 10}
        self._consumers = [Consumer(settings) for _ in range(self._size)]
        for consumer in self._consumers:
            consumer.subscribe([TOPIC])
        busy = min(self._size, PARTITIONS)
        until(
            lambda: self._assigned() == (PARTITIONS, busy), f"{self._size} consumers have their partitions", seconds=60
        )
        self._left = self._count

    def _assigned(self) -> tuple[int, int]:
        """The number of assigned partitions, and of consumers that have some."""
        for consumer in self._consumers:
            # A consumer without partitions for now gets no record; polling lets it take part in the assignment.
            consumer.pause(consumer.assignment())
            assert consumer.poll(0) is None
        counts = [len(it.assignment()) for it in self._consumers]
        return sum(counts), sum(it > 0 for it in counts)

    def read(self) -> None:
        """Read all records, with a millisecond of work for each."""
        at_once([lambda it=it: self._work(it) for it in self._consumers])  # type: ignore[misc]

    def _work(self, consumer: Consumer) -> None:
        consumer.resume(consumer.assignment())
        while self._left > 0:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                time.sleep(WORK_S)
                with self._lock:
                    self._left -= 1

    def leave(self) -> None:
        """Leave the group."""
        for consumer in self._consumers:
            consumer.close()
        self._consumers.clear()
