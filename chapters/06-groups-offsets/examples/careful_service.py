"""A service with the settings that many guides advise: a careful producer, a manual commit, and a commit from outside.

    python chapters/06-groups-offsets/examples/careful_service.py 127.0.0.1:9092

The producer is idempotent, with acks=all, lz4 and a linger of 5 ms. The consumer begins at the earliest record and
commits nothing by itself. An operator sets the group's position with a consumer that has only a `group.id`: it never
joins, so the coordinator accepts its commit only while the group has no members.
"""

import json
import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from crashing import ANSWER_S_MAX, BROKER, new_topic, orders

ORDERS = 6
IN_HAND = 3


class Service:
    """The calls of a service that works with one topic."""

    def __init__(self, broker: str, topic: str) -> None:
        self.broker, self.topic = broker, topic

    def produce(self, key: str, values: list[dict[str, int]]) -> None:
        """Write records, and wait until all in-sync replicas have them."""
        settings = {"acks": "all", "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
        producer = Producer({"bootstrap.servers": self.broker} | settings)
        for value in values:
            producer.produce(self.topic, json.dumps(value).encode(), key.encode(), on_delivery=on_delivery)
        if producer.flush(ANSWER_S_MAX):
            sys.exit(f"{self.broker} did not take the records within {ANSWER_S_MAX} s")

    def consumer(self, group_id: str) -> Consumer:
        """A member of the group that commits nothing by itself."""
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": group_id} | settings)
        consumer.subscribe([self.topic])
        return consumer

    def commit(self, group_id: str, partition: int, offset: int) -> str:
        """Commit from outside the group that this record is done. Return the code of the answer."""
        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": group_id})
        try:
            consumer.commit(offsets=[TopicPartition(self.topic, partition, offset + 1)], asynchronous=False)
        except KafkaException as refused:
            return str(refused.args[0].name())
        finally:
            consumer.close()
        return "NO_ERROR"


def on_delivery(error: object, record: Message) -> None:
    """Say what became of a record."""
    print(f"not delivered: {error}" if error else f"delivered at offset {record.offset()}")


def read(consumer: Consumer, count: int) -> list[int]:
    """The numbers of the next orders."""
    found = []
    for record in orders(consumer, last=ORDERS - 1):
        found.append(json.loads(record.value() or b"")["number"])
        if len(found) == count:
            break
    return found


def main() -> None:
    """Write, read, commit from outside, read on."""
    broker = sys.argv[1] if len(sys.argv) > 1 else BROKER
    topic = new_topic(broker)
    service = Service(broker, topic)
    service.produce("customer 7", [{"number": number} for number in range(ORDERS)])
    consumer = service.consumer(topic)
    print(f"the first member reads {read(consumer, ORDERS)}, and commits nothing")
    print(f"commit from outside while it is a member: {service.commit(topic, 0, IN_HAND)}")
    consumer.close()
    print(f"commit from outside after it has left: {service.commit(topic, 0, IN_HAND)}")
    consumer = service.consumer(topic)
    print(f"the next member reads {read(consumer, ORDERS - IN_HAND - 1)}")
    consumer.close()


if __name__ == "__main__":
    main()
