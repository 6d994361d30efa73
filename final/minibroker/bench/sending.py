"""A stock client that writes all the time and keeps the time of each acknowledgement.

The client is librdkafka, in the package confluent-kafka. `is_installed` tells whether that package is installed; it is
imported only when a sender is made. `failover` and the tests of clusters measure with this client.
"""

import importlib.util
import time
from typing import Any

from minibroker.bench.background import Background
from minibroker.bench.watching import until

ACKED_S_MAX = 40.0
_FLUSHED_S_MAX = 60
_QUEUE_IS_FULL_S = 0.002


def is_installed() -> bool:
    """Tell whether confluent-kafka is installed."""
    return importlib.util.find_spec("confluent_kafka") is not None


def produce_all(producer: Any, topic: str, value: bytes, records: int) -> None:
    """Write a value `records` times to the first partition, as fast as the client accepts it; wait for all acks."""
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(_QUEUE_IS_FULL_S)
    left = producer.flush(_FLUSHED_S_MAX)
    assert left == 0, f"{left} records are not acknowledged after {_FLUSHED_S_MAX} s"


class StockSender(Background):
    """An idempotent producer that sends numbered values to every partition of a topic until `finish` is called."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int = 1, pause_s: float = 0.002, timeout_ms: int = 4000
    ) -> None:
        super().__init__()
        # The package is not installed everywhere, and is slow to import.
        from confluent_kafka import Producer  # noqa: PLC0415

        self.topic = topic
        self.partitions = partitions
        self.sent = 0
        self.acked: dict[tuple[int, bytes], int | None] = {}
        self.failed: list[str] = []
        self.acked_s: list[list[float]] = [[] for _ in range(partitions)]
        """The times of the acknowledgements, for each partition."""
        self._pause_s = pause_s
        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 5, "delivery.timeout.ms": 120_000}
        settings |= {"retry.backoff.ms": 50, "retry.backoff.max.ms": 200}
        settings |= {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        quiet = {"socket.timeout.ms": timeout_ms + 1000, "request.timeout.ms": timeout_ms, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings, **quiet})

    def run(self) -> None:
        """Send records and receive acknowledgements."""
        while not self.is_over.is_set():
            for partition in range(self.partitions):
                self._producer.produce(
                    self.topic, b"%d" % self.sent, partition=partition, on_delivery=self._on_delivery
                )
            self.sent += 1
            self._producer.poll(self._pause_s)
            self.is_over.wait(self._pause_s)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acked[message.partition(), message.value()] = message.offset()
            self.acked_s[message.partition()].append(time.monotonic())

    def await_acks(self, count: int = 50, *, seconds: float = ACKED_S_MAX) -> None:
        """Wait for `count` more acknowledgements of every partition."""
        goals = [len(times) + count for times in self.acked_s]
        what = f"{count} more acknowledgements of {self.topic}"
        until(lambda: all(len(self.acked_s[it]) >= goal for it, goal in enumerate(goals)), what, seconds=seconds)

    def finish(self) -> None:
        """Stop sending, and wait for the acknowledgements of all records."""
        self.end()
        left = self._producer.flush(_FLUSHED_S_MAX)
        if left or self.failed:
            raise OSError(f"{left} records of {self.topic} are not acknowledged, {len(self.failed)} were refused")
