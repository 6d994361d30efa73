"""Generates the orders of a shop: a few customers order often, a few orders are large, some are late, some are broken.

The same seed gives the same events. Keys are customers, drawn by Zipf's law, so partitions are as uneven as in
practice. Each kind of broken event has a name, so that the dead letters of a pipeline can be counted by kind.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple

REGIONS = {"eu-central": 30, "us-east": 25, "eu-west": 20, "ap-south": 15, "sa-east": 10}
"""Region → its share of the customers, in percent."""

BAD_KINDS = ("not json", "no region", "negative amount", "no time")


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of the events."""

    seed: int = 1
    customers: int = 1000
    skew: float = 1.1
    per_second: float = 1000.0
    bad_fraction: float = 0.01
    late_fraction: float = 0.05
    late_ms_max: int = 30_000


class Event(NamedTuple):
    """One order as it is written to a topic; `bad` is the kind of a broken order, else None."""

    key: bytes
    value: bytes
    bad: str | None = None


def events(shape: Shape, *, count: int, start_ms: int, first: int = 0) -> Iterator[Event]:
    """Make `count` events. Their times begin at `start_ms`, and their order ids at `first`."""
    chance = random.Random(shape.seed + first)
    regions = _regions(shape)
    weights = list(accumulate(1 / rank**shape.skew for rank in range(1, shape.customers + 1)))
    for number in range(count):
        customer = chance.choices(range(shape.customers), cum_weights=weights)[0]
        time_ms = start_ms + int(number * 1000 / shape.per_second)
        if chance.random() < shape.late_fraction:
            time_ms -= chance.randrange(1, shape.late_ms_max + 1)
        order = {
            "order_id": f"{shape.seed}-{first + number}",
            "customer": f"customer-{customer}",
            "region": regions[customer],
            "amount": _amount(chance),
            "items": min(1 + int(chance.expovariate(0.8)), 20),
            "time": _iso(time_ms),
        }
        bad = chance.choice(BAD_KINDS) if chance.random() < shape.bad_fraction else None
        yield Event(f"customer-{customer}".encode(), _spoil(order, bad), bad)


def _regions(shape: Shape) -> list[str]:
    chance = random.Random(shape.seed)
    return chance.choices(list(REGIONS), weights=list(REGIONS.values()), k=shape.customers)


def _amount(chance: random.Random) -> float:
    # Amounts of money are log-normal: half are below 33, and one in a hundred is above 330.
    return round(min(chance.lognormvariate(3.5, 1.0), 99_999.0) + 0.01, 2)


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _spoil(order: dict[str, object], bad: str | None) -> bytes:
    if bad == "no region":
        order.pop("region")
    elif bad == "no time":
        order.pop("time")
    elif bad == "negative amount":
        order["amount"] = -1.0
    text = json.dumps(order, separators=(",", ":"))
    return (text[: len(text) // 2] if bad == "not json" else text).encode()
