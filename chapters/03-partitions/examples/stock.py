"""Write and read with confluent-kafka, a client that was written for Apache Kafka.

    python chapters/03-partitions/examples/stock.py orders erin:globe

The broker's address is MINIBROKER_BOOTSTRAP_SERVER, or 127.0.0.1:9092.
"""

import os
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

BROKER = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")


def write(topic: str, key: str, value: str) -> None:
    """Send one record and wait until it is acknowledged. Its partition is the one that Kafka's Java client chooses."""
    producer = Producer({"bootstrap.servers": BROKER, "partitioner": "murmur2_random"})
    producer.produce(topic, key=key, value=value)
    if producer.flush(10):
        sys.exit(f"no answer from {BROKER}")


def read(topic: str) -> list[Message]:
    """Read all records of a topic."""
    # The client requires a group id. It is not used: partitions are assigned explicitly. Commits come in chapter 06.
    consumer = Consumer({"bootstrap.servers": BROKER, "group.id": "none", "enable.auto.commit": False})
    partitions = [
        TopicPartition(topic, it, OFFSET_BEGINNING) for it in consumer.list_topics(topic).topics[topic].partitions
    ]
    count = sum(consumer.get_watermark_offsets(it)[1] for it in partitions)
    consumer.assign(partitions)
    records: list[Message] = []
    while len(records) < count:
        records += consumer.consume(count - len(records), timeout=1)
    consumer.close()
    return records


if __name__ == "__main__":
    name, record = sys.argv[1:]
    write(name, *record.split(":"))
    for message in sorted(read(name), key=lambda it: (it.partition(), it.offset())):
        key, value = message.key() or b"", message.value() or b""
        print(message.partition(), message.offset(), key.decode(), value.decode(), sep="\t")
