"""Records that are written while nodes of a cluster fail, and the count of those that are lost.

The values are numbers, so that each lost record can be named. The labs `acks` and `unclean` use this, with our client.
"""

from minibroker.bench.background import Background
from minibroker.bench.watching import until
from minibroker.clients.accumulator import ACKS_ALL
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import Consumer, OffsetReset
from minibroker.clients.producer import Producer
from minibroker.clients.retries import RetryPolicy
from minibroker.segments.checkpoint import TopicPartition

ACKED_S_MAX = 40.0
_ANSWERED_MS_MAX = 2000
_READ_S_MAX = 30.0
# Leaders change often here: with a long backoff the client would measure itself.
_SOON = RetryPolicy(backoff_ms=20, backoff_ms_max=200)


class Stream(Background):
    """A producer that sends at a steady rate, on a thread of its own, and notes the acknowledged records."""

    def __init__(self, bootstrap: str, topic: str, *, per_second: int, acks: int = ACKS_ALL) -> None:
        super().__init__()
        self.acked: set[bytes] = set()
        """The acknowledged records; with acks=0 the records that were sent."""
        self._topic = topic
        self._pause_s = 1 / per_second
        self._client = Client(bootstrap, timeout_ms=_ANSWERED_MS_MAX, retry=_SOON)
        self._producer = Producer(self._client, acks=acks, linger_ms=0)
        self._sent = 0

    def close(self, *, is_well: bool) -> None:
        """Wait for records under way, unless something has failed already."""
        self._producer.close(timeout_ms=ACKED_S_MAX * 1000 if is_well else 0)
        self._client.close()

    def run(self) -> None:
        """Send at the steady rate."""
        while not self.is_over.wait(self._pause_s):
            self.send()

    def send(self) -> None:
        """Send one record."""
        value = b"%d" % self._sent
        self._sent += 1

        def on_delivery(delivery: Delivery) -> None:
            if delivery.error is None:
                self.acked.add(value)

        self._producer.send(self._topic, value, partition=0, on_delivery=on_delivery)

    def await_acks(self, count: int) -> None:
        """Wait for `count` more acknowledgements."""
        goal = len(self.acked) + count
        what = f"{count} more acknowledgements of {self._topic}"
        until(lambda: len(self.acked) >= goal, what, seconds=ACKED_S_MAX)


def write(bootstrap: str, topic: str, first: int, count: int) -> set[bytes]:
    """Write `count` numbers with acks=all, and return them when all are acknowledged."""
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
