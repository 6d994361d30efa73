"""The generator: repeatable, skewed, and broken in the ways that it says."""

import json
from collections import Counter

from brokers import Broker, unique

from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, Consumer
from minibroker.pipelines import generating
from minibroker.pipelines.generator import BAD_KINDS, REGIONS, Shape, events

pytest_plugins = ["clients_fixtures"]

START_MS = 1_700_000_000_000


def test_the_same_seed_makes_the_same_events() -> None:
    made = [list(events(Shape(seed=seed), count=200, start_ms=START_MS)) for seed in (7, 7, 8)]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_few_customers_have_most_of_the_orders() -> None:
    counts = Counter(event.key for event in events(Shape(), count=5000, start_ms=START_MS))
    top = sum(count for _, count in counts.most_common(10))
    assert top > 5000 * 0.3
    flat = Counter(event.key for event in events(Shape(skew=0), count=5000, start_ms=START_MS))
    assert sum(count for _, count in flat.most_common(10)) < 5000 * 0.05


def test_a_good_order_has_all_fields_and_its_customer_as_the_key() -> None:
    good = [event for event in events(Shape(), count=1000, start_ms=START_MS) if event.bad is None]
    orders = [json.loads(event.value) for event in good]
    for event, order in zip(good, orders, strict=True):
        assert order.keys() == {"order_id", "customer", "region", "amount", "items", "time"}
        assert event.key == order["customer"].encode()
        assert order["amount"] > 0
        assert order["region"] in REGIONS
    assert len({order["order_id"] for order in orders}) == len(orders)
    assert len({(order["customer"], order["region"]) for order in orders}) == len({it["customer"] for it in orders})


def test_the_shares_of_broken_and_late_orders_are_as_configured() -> None:
    made = list(events(Shape(bad_fraction=0.2, late_fraction=0.5), count=4000, start_ms=START_MS))
    bad = Counter(event.bad for event in made if event.bad)
    assert set(bad) == set(BAD_KINDS)
    assert 600 < bad.total() < 1000
    early = [it for it in made if it.bad is None and json.loads(it.value)["time"] < "2023-11-14T22:13:20"]
    assert len(early) > 1000


def test_generated_orders_are_written_to_the_topic(broker: Broker) -> None:
    topic = unique("orders")
    tally = generating.generate(broker.address, topic, Shape(bad_fraction=0.1), count=500, partitions=2)
    with Client(broker.address) as client, Consumer(client) as consumer:
        partitions = consumer.assign_topic(topic, EARLIEST)
        assert len(partitions) == 2
        assert sum(consumer.end_offsets(partitions).values()) == 500 == tally.kinds.total()
