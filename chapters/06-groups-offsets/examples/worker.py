"""A worker in a consumer group, written with confluent-kafka: it reads orders, does some work, and commits.

    python chapters/06-groups-offsets/examples/worker.py orders shop --count 4
    python chapters/06-groups-offsets/examples/worker.py orders shop --count 4 --commit before --crash

`--commit` says whether it commits before or after its work. `--crash` ends it without a word in the middle of its last
order. The broker's address is MINIBROKER_BOOTSTRAP_SERVER, or 127.0.0.1:9092.
"""

import argparse
import os
import sys
from collections.abc import Iterator

from confluent_kafka import Consumer, Message, TopicPartition

BROKER = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")
SETTINGS = {
    "bootstrap.servers": BROKER,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 6000,
}


def records(consumer: Consumer, count: int) -> Iterator[Message]:
    """So many records, as they come."""
    while count:
        message = consumer.poll(30)
        if message is None:
            sys.exit(f"no record from {BROKER} within 30 s")
        if message.error() is None:
            yield message
            count -= 1


def work(consumer: Consumer, message: Message, *, commits_before: bool, crashes: bool) -> None:
    """Process one record, and commit the offset after it."""
    after = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
    if commits_before:
        consumer.commit(offsets=after, asynchronous=False)
    if crashes and commits_before:
        os._exit(0)
    print(f"order {(message.value() or b'').decode()}, offset {message.offset()}", flush=True)
    if crashes:
        os._exit(0)
    if not commits_before:
        consumer.commit(offsets=after, asynchronous=False)


def main() -> None:
    """Read, work, commit."""
    parser = argparse.ArgumentParser(description="A worker in a consumer group.")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--count", type=int, required=True, help="how many orders it takes before it ends")
    parser.add_argument("--commit", choices=["before", "after"], default="after", help="when it commits")
    parser.add_argument("--crash", action="store_true", help="end without a word in the middle of the last order")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic", help="group.protocol")
    options = parser.parse_args()
    settings = SETTINGS | {"group.id": options.group, "group.protocol": options.protocol}
    if options.protocol == "consumer":
        del settings["session.timeout.ms"]  # the broker decides it
    consumer = Consumer(settings)
    consumer.subscribe([options.topic])
    for number, message in enumerate(records(consumer, options.count), start=1):
        is_last = number == options.count
        work(consumer, message, commits_before=options.commit == "before", crashes=options.crash and is_last)
    consumer.close()


if __name__ == "__main__":
    main()
