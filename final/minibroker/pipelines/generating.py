"""Writes generated orders into a topic with the client's producer, at a given rate or as fast as possible."""

import sys
import time
from collections import Counter
from typing import TextIO

from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.pipelines.generator import Shape, events
from minibroker.pipelines.running import prepare_topics

REPORT_EVERY_S = 1.0


class Tally:
    """Counts the records by kind, and keeps the first error of a delivery."""

    def __init__(self) -> None:
        self.made = 0
        self.kinds: Counter[str] = Counter()
        self.failed: list[Exception] = []

    def on_delivery(self, delivery: Delivery) -> None:
        """Keep the first error. The producer may call this on another thread."""
        if delivery.error is not None and len(self.failed) < 1:
            self.failed.append(delivery.error)


def generate(
    bootstrap: str,
    topic: str,
    shape: Shape,
    *,
    count: int,
    partitions: int = 3,
    rate: float = 0,
    start_ms: int | None = None,
    out: TextIO | None = None,
) -> Tally:
    """Write `count` orders, `rate` a second (0: as fast as possible), and return when all are acknowledged."""
    prepare_topics(bootstrap, written={topic: partitions})
    tally, told_s, begun_s = Tally(), time.monotonic(), time.monotonic()
    begin_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
    with Client(bootstrap, client_id="minibroker-generate") as client, Producer(client, batch_size=65_536) as producer:
        for event in events(shape, count=count, start_ms=begin_ms, first=begin_ms):
            if rate > 0:
                time.sleep(max(0.0, begun_s + tally.made / rate - time.monotonic()))
            producer.send(topic, event.value, key=event.key, on_delivery=tally.on_delivery)
            tally.made += 1
            tally.kinds[event.bad or "good"] += 1
            if tally.failed:
                raise tally.failed[0]
            if time.monotonic() - told_s >= REPORT_EVERY_S:
                told_s = time.monotonic()
                print(f"generate: {tally.made} of {count} orders", file=out or sys.stderr, flush=True)
        producer.flush()
    if tally.failed:
        raise tally.failed[0]
    return tally
