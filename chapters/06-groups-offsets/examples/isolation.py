"""Two transactions and a plain record in one partition: how far each reader may read after each step.

    python chapters/06-groups-offsets/examples/isolation.py payments

Transaction a commits, transaction b aborts. The broker's address is MINIBROKER_BOOTSTRAP_SERVER.
"""

import sys

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from crashing import ANSWER_S_MAX, BROKER, PARTITION


def producer(**settings: str) -> Producer:
    """A producer that sends each record at once."""
    return Producer({"bootstrap.servers": BROKER, "linger.ms": 0, **settings})


def transactional(name: str) -> Producer:
    """A producer that has begun a transaction."""
    made = producer(**{"transactional.id": name})
    made.init_transactions(ANSWER_S_MAX)
    made.begin_transaction()
    return made


class Partition:
    """The partition that all write to."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        # As it ends, librdkafka may log an event that it did not deliver; such notes stay out of the table.
        self._admin = AdminClient({"bootstrap.servers": BROKER, "log_level": 5})

    def write(self, writer: Producer, value: str) -> None:
        """Write one record, and wait until it is in the log."""
        writer.produce(self._topic, value, partition=PARTITION)
        if writer.flush(ANSWER_S_MAX):
            sys.exit(f"the record was not written within {ANSWER_S_MAX} s")

    def show(self, step: str) -> None:
        """Print the offset at which the readers of each isolation level stop."""
        ends = [self._end(level) for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)]
        print(f"{step:22} {ends[0]:18} {ends[1]:19}")

    def _end(self, level: IsolationLevel) -> int:
        name = TopicPartition(self._topic, PARTITION)
        found = self._admin.list_offsets({name: OffsetSpec.latest()}, isolation_level=level)
        return int(found[name].result(ANSWER_S_MAX).offset)


def main(topic: str) -> None:
    """Play the steps."""
    partition = Partition(topic)
    print(f"{'':22} {'high watermark':>18} {'last stable offset':>19}")
    a, b = transactional("a"), transactional("b")
    for name, writer in (("a", a), ("b", b), ("plain", producer())):
        partition.write(writer, name)
        partition.show(f"{name} writes")
    a.commit_transaction(ANSWER_S_MAX)
    partition.show("a commits")
    partition.write(b, "b")
    partition.show("b writes again")
    b.abort_transaction(ANSWER_S_MAX)
    partition.show("b aborts")


if __name__ == "__main__":
    main(sys.argv[1])
