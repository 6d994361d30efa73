"""The life of a topic, by an AdminClient that was written for Apache Kafka: created, described, changed, grown, gone.

    python chapters/03-partitions/examples/admin.py 127.0.0.1:9092

Between the steps a producer with the settings of a careful service writes to it: idempotent, acks=all, lz4, batches
of up to 5 ms. What needs a consumer group, a commit above all, is chapter 06.
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
    """Create a topic with a configuration of its own; a second time it is refused."""
    new = NewTopic(topic, partitions, replication_factor=1, config={"retention.ms": "86400000"})
    admin.create_topics([new])[topic].result(ANSWER_S_MAX)
    print(f"created {topic} with {partitions} partitions, records are kept for a day")
    try:
        admin.create_topics([new])[topic].result(ANSWER_S_MAX)
    except KafkaException as refused:
        print(f"created it again: {refused.args[0].name()}")


def describe(admin: AdminClient, topic: str) -> None:
    """Show where a topic is."""
    cluster = admin.describe_cluster().result(ANSWER_S_MAX)
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(ANSWER_S_MAX)
    leaders = {partition.leader.id for partition in found.partitions}
    print(f"{len(cluster.nodes)} node; {len(found.partitions)} partitions, led by {sorted(leaders)}")


def write(bootstrap: str, topic: str) -> dict[int, int]:
    """Orders of ten customers; the customer is the key, so the orders of each stay in their order."""
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
    """Change one setting and leave the others; what makes no sense is refused."""
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
    """A topic grows; it never shrinks, for then records would have to go."""
    for count in (partitions, 1):
        try:
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(ANSWER_S_MAX)
            print(f"grown to {count} partitions: keys may move, old records stay where they are")
        except KafkaException as refused:
            print(f"{count} partition: {refused.args[0].name()}")


def delete_records(admin: AdminClient, topic: str, partition: int) -> None:
    """Give up the older half of a partition, as retention would."""
    where = TopicPartition(topic, partition)
    first = admin.list_offsets({where: OffsetSpec.earliest()})[where].result(ANSWER_S_MAX).offset
    end = admin.list_offsets({where: OffsetSpec.latest()})[where].result(ANSWER_S_MAX).offset
    before = TopicPartition(topic, partition, (first + end) // 2)
    low = admin.delete_records([before])[before].result(ANSWER_S_MAX).low_watermark
    print(f"partition {partition} had offsets {first} to {end}, and begins at {low} now")


def delete(admin: AdminClient, topic: str) -> None:
    """All of it. A cluster may need a moment until every node has heard of it."""
    admin.delete_topics([topic])[topic].result(ANSWER_S_MAX)
    deadline = time.monotonic() + ANSWER_S_MAX
    while topic in admin.list_topics(timeout=ANSWER_S_MAX).topics and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"deleted; listed still: {topic in admin.list_topics(timeout=ANSWER_S_MAX).topics}")


def main(bootstrap: str) -> None:
    """From the first step to the last."""
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
