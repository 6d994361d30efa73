"""The pipeline sessions joins a customer's orders across batches and restarts, and writes each session once."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("google.protobuf", reason="the extra `spark` is not installed")

from brokers import unique
from transactions_stock import read_all

from minibroker.clients.producer import Producer
from minibroker.pipelines import sessions
from minibroker.pipelines.sessions import Session, merged

if TYPE_CHECKING:
    from spark_fixtures import Topics

pytest_plugins = ["clients_fixtures", "spark_fixtures"]
pytestmark = pytest.mark.xdist_group("spark")

NOON_S = 1_700_000_000


def test_sessions_are_joined_up_to_the_gap_in_any_order() -> None:
    orders = [Session(at, at, 1, 1.0) for at in (50, 0, 30, 10)]
    assert merged(orders, 20) == [Session(0, 50, 4, 4.0)]
    assert merged(orders, 10) == [Session(0, 10, 2, 2.0), Session(30, 30, 1, 1.0), Session(50, 50, 1, 1.0)]


def order(customer: str, second: int, amount: float = 1.0) -> bytes:
    time = datetime.fromtimestamp(NOON_S + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"order_id": f"{customer}-{second}", "customer": customer, "region": "eu", "amount": amount, "time": time}
    return json.dumps(fields).encode()


def test_a_session_goes_on_after_a_restart_and_is_written_once(topics: "Topics", tmp_path: Path) -> None:
    topic, results = topics.create(), unique("sessions")
    settings = sessions.Sessions(topics.address, str(tmp_path), topic=topic, results=results, gap_ms=10_000, once=True)
    # The first run ends in the middle of a's session. The last order moves the watermark, and its session stays open.
    for orders in ([("a", 0), ("b", 1), ("a", 8)], [("a", 15), ("c", 500)]):
        with Producer(topics.client) as producer:
            for customer, second in orders:
                producer.send(topic, order(customer, second))
        sessions.run(topics.spark, settings)
    found = [json.loads(it) for it in read_all(topics.client, results)]
    assert sorted((it["customer"], it["orders"]) for it in found) == [("a", 3), ("b", 1)]
