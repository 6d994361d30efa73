"""At most once: commit, then work. A crash between the two loses the order.

python chapters/06-groups-offsets/examples/at_most_once.py 127.0.0.1:9092
"""

from confluent_kafka import Message
from crashing import Program, Worker, main, number_of


def work(worker: Worker, order: Message) -> None:
    """The group's position moves past the order before anything is done."""
    worker.commit(order)
    worker.crash_if_doomed(order)
    worker.results.add(number_of(order))


if __name__ == "__main__":
    main(Program("at most once", work))
