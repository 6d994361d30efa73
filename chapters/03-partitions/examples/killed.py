"""Kill a broker under load, several times, and count what became of the records.

    python chapters/03-partitions/examples/killed.py

The producer knows nothing of what happens. It sends, gets no answer, tries again, and another process has taken the
place of the one that was killed. Afterwards every partition is read from its first record to its last.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.batching import Delivery
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import EARLIEST, Consumer
from minibroker.clients.producer import Producer
from minibroker.segments.checkpoint import TopicPartition

QUICK = bool(os.environ.get("MINIBROKER_QUICK"))
KILLS = 2 if QUICK else 10
PAUSE_S = 0.5
PARTITIONS = 4
TOPIC = "orders"


class Broker:
    """A broker process that can be killed and started again in the same place."""

    def __init__(self, data: str) -> None:
        self._data = data
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start, and wait until it can be reached. The port is the same every time."""
        command = [sys.executable, "-m", "minibroker.partitions", self._data, self.address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().removeprefix("ready: ").strip()

    def kill(self) -> None:
        """No signal handler runs, no file is closed."""
        self._process.kill()
        self._process.wait()


def kill_often(broker: Broker, is_over: threading.Event) -> None:
    """Kill the broker and start it again, several times."""
    try:
        for _ in range(KILLS):
            time.sleep(PAUSE_S)
            broker.kill()
            broker.start()
    finally:
        is_over.set()


def produce(producer: Producer, is_over: threading.Event) -> list[tuple[bytes, Delivery]]:
    """Send numbered orders until it is over; then wait until the fate of each is known."""
    sent: list[tuple[bytes, Delivery]] = []
    while not is_over.is_set():
        value = b"%d" % len(sent)
        sent.append((value, producer.send(TOPIC, value, key=b"user-%d" % (len(sent) % 100))))
        if len(sent) % 100 == 0:
            time.sleep(0.01)  # some ten thousand a second
    producer.flush()
    return sent


def read_all(client: Client) -> Counter[bytes]:
    """How often each order is in the topic."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    with Consumer(client) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions, dict.fromkeys(partitions, EARLIEST))
        found: Counter[bytes] = Counter()
        while sum(found.values()) < sum(ends.values()):
            for fetched in consumer.poll(1000):
                found.update(record.value or b"" for record in fetched)
    return found


def run(broker: Broker) -> tuple[list[tuple[bytes, Delivery]], Counter[bytes]]:
    """Produce while the broker is killed; return what was sent, and what is there afterwards."""
    is_over = threading.Event()
    killer = threading.Thread(target=kill_often, args=(broker, is_over))
    with Client(broker.address) as client, Producer(client) as producer:
        create_topics(client, [NewTopic(TOPIC, PARTITIONS)])
        killer.start()
        try:
            sent = produce(producer, is_over)
        finally:
            killer.join()
        return sent, read_all(client)


def main() -> None:
    """Run it, and count."""
    with tempfile.TemporaryDirectory() as data:
        broker = Broker(data)
        try:
            sent, found = run(broker)
        finally:
            broker.kill()
    acked = [value for value, delivery in sent if delivery.is_done and delivery.error is None]
    missing = sum(value not in found for value in acked)
    twice = sum(count > 1 for count in found.values())
    print(f"{KILLS} times killed: {len(acked)} orders acknowledged, {missing} of them missing, {twice} there twice")


if __name__ == "__main__":
    main()
