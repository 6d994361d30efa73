"""Kill a broker under load, several times, and count lost and duplicated records.

    python chapters/03-partitions/examples/killed.py

The producer does not know about the kills. It sends, gets no answer and retries, until another process has replaced
the killed one. Afterwards every partition is read from its first record to its last.
"""

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from minibroker.bench.launcher import Server
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


def kill_often(broker: Server, is_over: threading.Event) -> None:
    """Kill the broker and start it again on the same data and port, several times."""
    try:
        for _ in range(KILLS):
            time.sleep(PAUSE_S)
            # This is SIGKILL: no signal handler runs, and no file is closed.
            broker.kill()
            broker.restart()
    finally:
        is_over.set()


def produce(producer: Producer, is_over: threading.Event) -> list[tuple[bytes, Delivery]]:
    """Send numbered orders until the kills are over. Then wait until each is acknowledged or has failed."""
    sent: list[tuple[bytes, Delivery]] = []
    while not is_over.is_set():
        value = b"%d" % len(sent)
        sent.append((value, producer.send(TOPIC, value, key=b"user-%d" % (len(sent) % 100))))
        if len(sent) % 100 == 0:
            time.sleep(0.01)  # about ten thousand per second
    producer.flush()
    return sent


def read_all(client: Client) -> Counter[bytes]:
    """Count how often each order is in the topic."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    with Consumer(client) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions, dict.fromkeys(partitions, EARLIEST))
        found: Counter[bytes] = Counter()
        while sum(found.values()) < sum(ends.values()):
            for fetched in consumer.poll(1000):
                found.update(record.value or b"" for record in fetched)
    return found


def run(broker: Server) -> tuple[list[tuple[bytes, Delivery]], Counter[bytes]]:
    """Produce while the broker is killed. Return the orders that were sent and those that were read afterwards."""
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
    """Run the test, and print the counts."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        broker = Server(lambda listen: [sys.executable, "-m", "minibroker.partitions", str(data), listen], data)
        broker.start()
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
