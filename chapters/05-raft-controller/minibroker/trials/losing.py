"""Records written while a cluster breaks, and what is left of them: what the labs `acks` and `unclean` count with.

The values are numbers, so that each can be missed by its name. The client is the one of chapter 03.
"""

import threading
from types import TracebackType
from typing import Self

from minibroker.client.retries import RetryPolicy
from minibroker.clients.accumulator import ACKS_ALL
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import Consumer, OffsetReset
from minibroker.clients.producer import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.trials.watching import until

ACKED_S_MAX = 40.0
_ANSWERED_MS_MAX = 2000
_READ_S_MAX = 30.0
# Leaders come and go here: who asks late would show its own patience.
_SOON = RetryPolicy(backoff_ms=20, backoff_ms_max=200)


class Stream:
    """A producer that sends at a steady rate, on a thread of its own, and notes what it was told is written."""

    def __init__(self, bootstrap: str, topic: str, *, per_second: int, acks: int = ACKS_ALL) -> None:
        self.acked: set[bytes] = set()
        """With acks=0 it is told nothing: then it is what has left."""
        self._topic = topic
        self._pause_s = 1 / per_second
        self._client = Client(bootstrap, timeout_ms=_ANSWERED_MS_MAX, retry=_SOON)
        self._producer = Producer(self._client, acks=acks, linger_ms=0)
        self._sent = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sends no more; waits for what is under way, unless something has failed already."""
        self._is_over.set()
        self._thread.join()
        self._producer.close(timeout_ms=ACKED_S_MAX * 1000 if kind is None else 0)
        self._client.close()

    def _run(self) -> None:
        while not self._is_over.wait(self._pause_s):
            self.send()

    def send(self) -> None:
        """One record more."""
        value = b"%d" % self._sent
        self._sent += 1

        def on_delivery(delivery: Delivery) -> None:
            if delivery.error is None:
                self.acked.add(value)

        self._producer.send(self._topic, value, partition=0, on_delivery=on_delivery)

    def await_acks(self, count: int) -> None:
        """Waits for so many acknowledgements more."""
        goal = len(self.acked) + count
        what = f"{count} more acknowledgements of {self._topic}"
        until(lambda: len(self.acked) >= goal, what, seconds=ACKED_S_MAX)


def write(bootstrap: str, topic: str, first: int, count: int) -> set[bytes]:
    """Write so many numbers with acks=all, and return them when all are acknowledged."""
    values = [b"%d" % number for number in range(first, first + count)]
    with Client(bootstrap, retry=_SOON) as client, Producer(client) as producer:
        for delivery in [producer.send(topic, value, partition=0) for value in values]:
            producer.wait(delivery)
    return set(values)


def read(bootstrap: str, topic: str) -> set[bytes]:
    """All values of a topic's only partition."""
    partition = TopicPartition(topic, 0)
    found: set[bytes] = set()
    with Client(bootstrap, retry=_SOON) as client, Consumer(client, offset_reset=OffsetReset.EARLIEST) as consumer:
        end = consumer.end_offsets([partition])[partition]
        consumer.assign([partition], {partition: 0})

        def is_read() -> bool:
            if consumer.position(partition) < end:
                found.update(bytes(record.value or b"") for batch in consumer.poll(100) for record in batch)
            return consumer.position(partition) >= end

        until(is_read, f"all {end} records of {topic} are read", seconds=_READ_S_MAX)
    return found
