"""The time from `subscribe` to the first record, on an idle node, with a stock client.

Each operation has a consumer of librdkafka in a new group, which subscribes and waits for a record. The consumer is
made before the clock runs and closed after it has stopped. For comparison, a consumer without a group is given the
partition by hand. Where Apache Kafka is at hand, the same consumers read from a node of it in turn.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from minibroker.bench import Bar, Benchmark, Case, Context, children, kafka, scaled
from minibroker.bench.plot import OURS
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer

TOPIC = "orders"
BY_HAND, NEW, CLASSIC = "assign by hand", "subscribe, KIP-848", "subscribe, classic"
# The bar: the time beside Kafka's.
SLOWER_MAX = 1.1
WARMUPS = 10
_RECORD_S_MAX = 30
_numbers = itertools.count(1)

Begin = Callable[[Consumer], object]


@dataclass
class Reader:
    """Makes consumers, and waits for their first records."""

    address: str
    settings: Mapping[str, str]
    begin: Begin
    per_repeat: int
    _consumers: list[Consumer] = field(default_factory=list)

    def make(self) -> None:
        """Make consumers that know the cluster."""
        for _ in range(self.per_repeat):
            common = {
                "bootstrap.servers": self.address,
                "group.id": f"group-{next(_numbers)}",
                "auto.offset.reset": "earliest",
            }
            self._consumers.append(Consumer(common | dict(self.settings)))
            self._consumers[-1].list_topics(TOPIC)

    def read_first(self) -> None:
        """Wait for the first record of each consumer, one consumer after the other."""
        for consumer in self._consumers:
            self.begin(consumer)
            record = consumer.poll(_RECORD_S_MAX)
            assert record is not None
            assert record.error() is None, record.error()

    def close(self) -> None:
        """Leave the groups."""
        while self._consumers:
            self._consumers.pop().close()

    def case(self, name: str, *, series: str = "", limit: str = "") -> Case:
        """The time of a first record."""
        return Case(
            name,
            self.read_first,
            operations_count=self.per_repeat,
            before=self.make,
            after=self.close,
            series=series,
            limit=limit,
        )


def subscribe(consumer: Consumer) -> None:
    """Join the group."""
    consumer.subscribe([TOPIC])


def assign(consumer: Consumer) -> None:
    """Read the partition without a group."""
    consumer.assign([TopicPartition(TOPIC, 0, 0)])


KINDS: dict[str, tuple[dict[str, str], Begin]] = {
    BY_HAND: ({}, assign),
    NEW: ({"group.protocol": "consumer"}, subscribe),
    CLASSIC: ({"group.protocol": "classic"}, subscribe),
}


def readers_of(address: str) -> dict[str, Reader]:
    """Write one record to a broker. Then read it in each way until the broker has warmed up."""
    with Client(address) as client:
        create_topics(client, [NewTopic(TOPIC, 1, 1)])
        with Producer(client) as producer:
            producer.wait(producer.send(TOPIC, b"order", partition=0))
    # Two for each of the usual eleven repeats: about twenty in all.
    per_repeat = scaled(full=2, quick=1)
    readers = {name: Reader(address, settings, begin, per_repeat) for name, (settings, begin) in KINDS.items()}
    for reader in readers.values():
        for _ in range(scaled(full=WARMUPS, quick=0)):
            reader.make()
            reader.read_first()
            reader.close()
    return readers


def benchmark(context: Context) -> Benchmark:
    settings = ("group.initial.rebalance.delay.ms=0",)
    ours = readers_of(children.serve(context, *settings).address)
    peer = kafka.beside(context, *settings)
    theirs = readers_of(peer.cluster.bootstrap) if peer.cluster else {}
    cases = []
    for name, reader in ours.items():
        # A case comes directly after the one that it is compared with.
        cases += [it.case(f"{name}, {kafka.NAME}", series=kafka.NAME) for it in [theirs.get(name)] if it]
        limit = f"{name}, {kafka.NAME}" if theirs else BY_HAND
        cases += [reader.case(name, series=OURS, limit=limit if name != BY_HAND else "")]
    return Benchmark(
        "The first record after subscribe",
        cases,
        bars=[Bar(it, "ratio", at_least=round(1 / SLOWER_MAX, 2)) for it in (NEW, CLASSIC) if theirs],
        metric="ms_per_op",
        columns=["ms_per_op"],
        note=f"librdkafka, one node, a new group each time, {settings[0]}. {peer.note}",
    )
