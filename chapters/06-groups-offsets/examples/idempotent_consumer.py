"""An idempotent consumer: at least once, and the work notices that it has been done before.

    python chapters/06-groups-offsets/examples/idempotent_consumer.py 127.0.0.1:9092

The order has a number of its own, which the outside world keeps with the result, in one transaction. A duplicate then
finds the number there, and changes nothing. The number must come from the order: an offset would not do, because a
producer without idempotence may write an order twice.
"""

from confluent_kafka import Message
from crashing import Program, Worker, main, number_of


def work(worker: Worker, order: Message) -> None:
    """The order is read twice and done once."""
    number, database = number_of(order), worker.results.database
    database.execute("begin")
    is_new = database.execute("insert or ignore into seen values (?)", [number]).rowcount
    if is_new:
        worker.results.add(number)
    database.execute("commit")
    worker.crash_if_doomed(order)
    worker.commit(order)


if __name__ == "__main__":
    main(Program("idempotent consumer", work))
