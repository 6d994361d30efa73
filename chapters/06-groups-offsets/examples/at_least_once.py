"""At least once: work, then commit. After a crash between the two, the order is done again.

python chapters/06-groups-offsets/examples/at_least_once.py 127.0.0.1:9092
"""

from confluent_kafka import Message
from crashing import Program, Worker, main, number_of


def work(worker: Worker, order: Message) -> None:
    """The order is done before the group's position moves."""
    worker.results.add(number_of(order))
    worker.crash_if_doomed(order)
    worker.commit(order)


if __name__ == "__main__":
    main(Program("at least once", work))
