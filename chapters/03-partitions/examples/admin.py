"""Create, describe, change, grow and delete a topic with an AdminClient that was written for Apache Kafka.

    python chapters/03-partitions/examples/admin.py 127.0.0.1:9092

Between the steps a producer writes to it, with the settings of a careful service: idempotent, acks=all, lz4, and a
linger of 5 ms. Consumer groups and commits come in chapter 06.
"""

import json
import sys
import time
import uuid

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

ANSWER_S_MAX = 10
ORDERS = 200


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create a topic with a configuration. Creating it again is refused."""
    new = NewTopic(topic, partitions, replication_factor=1, config={"retention.ms": "86400000"})
    admin.create_topics([new])[topic].result(ANSWER_S_MAX)
    print(f"created {topic} with {partitions} partitions, records are kept for a day")
    try:
        admin.create_topics([new])[topic].result(ANSWER_S_MAX)
    except KafkaException as refused:
        print(f"created it again: {refused.args[0].name()}")


def describe(admin: AdminClient, topic: str) -> None:
    """Print the nodes of the cluster and the leaders of a topic."""
    cluster = admin.describe_cluster().result(ANSWER_S_MAX)
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(ANSWER_S_MAX)
    leaders = {partition.leader.id for partition in found.partitions}
    print(f"{len(cluster.nodes)} node; {len(found.partitions)} partitions, led by {sorted(leaders)}")


def write(bootstrap: str, topic: str) -> dict[int, int]:
    """Write orders of ten customers. The customer is the key, so that the orders of each stay in order."""
    settings = {"enable.idempotence": True, "acks": "all", "compression.type": "lz4", "linger.ms": 5}
    producer = Producer({"bootstrap.servers": bootstrap} | settings)
    written: dict[int, int] = {}

    def note(error: KafkaError | None, delivered: Message) -> None:
        partition = delivered.partition()
        if error is not None or partition is None:
            raise KafkaException(error)
        written[partition] = written.get(partition, 0) + 1

    for number in range(ORDERS):
        customer = f"customer-{number % 10}"
        order = {"order": number, "customer": customer}
        producer.produce(topic, key=customer, value=json.dumps(order), on_delivery=note)
    if producer.flush(ANSWER_S_MAX):
        sys.exit(f"no answer from {bootstrap}")
    print(f"wrote {sum(written.values())} orders to {len(written)} partitions")
    return written


def change(admin: AdminClient, topic: str) -> None:
    """Change one setting and keep the others. An invalid value is refused."""
    for value in ("3600000", "a while"):
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        try:
            admin.incremental_alter_configs([resource])[resource].result(ANSWER_S_MAX)
        except KafkaException as refused:
            print(f"retention.ms={value}: {refused.args[0].name()}")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(ANSWER_S_MAX)
    print(f"retention.ms is {found['retention.ms'].value}, cleanup.policy is {found['cleanup.policy'].value}")


def grow(admin: AdminClient, topic: str, partitions: int) -> None:
    """Add partitions. Fewer partitions are refused, because records would be lost."""
    for count in (partitions, 1):
        try:
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(ANSWER_S_MAX)
            print(f"grown to {count} partitions: keys may move, old records stay where they are")
        except KafkaException as refused:
            print(f"{count} partition: {refused.args[0].name()}")


def delete_records(admin: AdminClient, topic: str, partition: int) -> None:
    """Delete the older half of a partition's records."""
    where = TopicPartition(topic, partition)
    first = admin.list_offsets({where: OffsetSpec.earliest()})[where].result(ANSWER_S_MAX).offset
    end = admin.list_offsets({where: OffsetSpec.latest()})[where].result(ANSWER_S_MAX).offset
    before = TopicPartition(topic, partition, (first + end) // 2)
    low = admin.delete_records([before])[before].result(ANSWER_S_MAX).low_watermark
    print(f"partition {partition} had offsets {first} to {end}, and begins at {low} now")


def delete(admin: AdminClient, topic: str) -> None:
    """Delete the topic, and wait until no node lists it."""
    admin.delete_topics([topic])[topic].result(ANSWER_S_MAX)
    deadline = time.monotonic() + ANSWER_S_MAX
    while topic in admin.list_topics(timeout=ANSWER_S_MAX).topics and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"deleted; listed still: {topic in admin.list_topics(timeout=ANSWER_S_MAX).topics}")


def main(bootstrap: str) -> None:
    """Run all steps."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    create(admin, topic, partitions=3)
    describe(admin, topic)
    written = write(bootstrap, topic)
    change(admin, topic)
    grow(admin, topic, partitions=5)
    delete_records(admin, topic, max(written, key=written.__getitem__))
    delete(admin, topic)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
