"""Exactly once in a database: the result and the position are one transaction, and the group only shares partitions.

    python chapters/06-groups-offsets/examples/offsets_in_sqlite.py 127.0.0.1:9092

The worker never commits to the coordinator. When it is given a partition, it asks its own database where to go on. A
crash either has both, result and position, or neither.
"""

from confluent_kafka import Message, TopicPartition
from crashing import Program, Worker, main, number_of


def go_on(worker: Worker, given: list[TopicPartition]) -> None:
    """Begin where the database says; without a row, at the beginning."""
    for partition in given:
        query = worker.results.database.execute("select next from position where part = ?", [partition.partition])
        (partition.offset,) = query.fetchone() or (0,)
    worker.consumer.assign(given)


def work(worker: Worker, order: Message) -> None:
    """The crash comes in the middle of the transaction."""
    database = worker.results.database
    database.execute("begin immediate")
    worker.results.add(number_of(order))
    worker.crash_if_doomed(order)
    database.execute("insert or replace into position values (?, ?)", [order.partition(), (order.offset() or 0) + 1])
    database.execute("commit")


if __name__ == "__main__":
    main(Program("offsets in SQLite", work, on_assigned=go_on))
