"""The time from `subscribe` to the first record, on an idle node, with a stock client.

Each operation has a consumer of librdkafka in a new group, which subscribes and waits for a record. The consumer is
made before the clock runs and closed after it has stopped. For comparison, a consumer without a group is given the
partition by hand.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from minibroker.bench import Benchmark, Case, Context, children, scaled
from minibroker.bench.plot import LIMIT
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer

TOPIC = "orders"
BY_HAND, NEW, CLASSIC = "assign by hand", "subscribe, KIP-848", "subscribe, classic"
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


def benchmark(context: Context) -> Benchmark:
    server = children.serve(context, "group.initial.rebalance.delay.ms=0")
    with Client(server.address) as client:
        create_topics(client, [NewTopic(TOPIC, 1, 1)])
        with Producer(client) as producer:
            producer.wait(producer.send(TOPIC, b"order", partition=0))
    # Two for each of the usual eleven repeats: about twenty in all.
    per_repeat = scaled(full=2, quick=1)
    kinds: list[tuple[str, dict[str, str], Begin]] = [
        (BY_HAND, {}, assign),
        (NEW, {"group.protocol": "consumer"}, subscribe),
        (CLASSIC, {"group.protocol": "classic"}, subscribe),
    ]
    readers = {name: Reader(server.address, settings, begin, per_repeat) for name, settings, begin in kinds}
    return Benchmark(
        "The first record after subscribe",
        [
            readers[BY_HAND].case(BY_HAND, series=LIMIT),
            readers[NEW].case(NEW, limit=BY_HAND),
            readers[CLASSIC].case(CLASSIC, limit=BY_HAND),
        ],
        metric="ms_per_op",
        columns=["ms_per_op"],
        note="librdkafka, one node, a new group each time, group.initial.rebalance.delay.ms=0.",
    )
