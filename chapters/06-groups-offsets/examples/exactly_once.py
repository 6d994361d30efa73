"""A copy from one topic to another, killed at every step: with transactions, and without.

python chapters/06-groups-offsets/examples/exactly_once.py 127.0.0.1:9092

The copier reads some orders, writes them to a second topic, and moves the group's position. A transaction makes the
records and the position one thing: readers of committed records see both or neither. The copier that comes back has
the same `transactional.id`, so the broker aborts what the killed one left open.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from crashing import ANSWER_S_MAX, BROKER, PARTITION, Counted, after, count, new_topic, write_orders

BATCH = 5  # orders in one transaction
SIDE_BY_SIDE = 3
BEGUN, SENT, MOVED, DONE = "after the begin", "after the records", "after the position", "after the commit"


class Copier:
    """A consumer in a group, a producer, and the step after which the process is killed, once, in the middle."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._target, self._orders, self._crash = options.target, options.orders, options.crash
        self._half = (options.orders - 1) // 2
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.broker,
                "group.id": options.topic,
                "group.instance.id": "copier",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # The group's position counts only after the transaction that moves it has ended.
                "isolation.level": "read_committed",
            }
        )
        name = {"transactional.id": options.topic} if options.program == EXACTLY_ONCE else {}
        self.producer = Producer({"bootstrap.servers": options.broker, "linger.ms": 0} | name)
        if name:
            self.producer.init_transactions(ANSWER_S_MAX)
        self.consumer.subscribe([options.topic])

    def run(self, copy: Callable[["Copier", Sequence[Message]], None]) -> None:
        """Copy until the last order."""
        offset = -1
        while offset < self._orders - 1:
            orders = self._read(min(BATCH, self._orders - 1 - offset))
            copy(self, orders)
            offset = orders[-1].offset() or 0
        self.consumer.close()

    def _read(self, orders_max: int) -> list[Message]:
        orders = self.consumer.consume(orders_max, ANSWER_S_MAX)
        if not orders:
            sys.exit(f"no order within {ANSWER_S_MAX} s")
        for order in orders:
            if order.error() is not None:
                raise KafkaException(order.error())
        return orders

    def write(self, orders: Sequence[Message]) -> None:
        """Write the orders to the second topic, and wait until they are in its log."""
        for order in orders:
            self.producer.produce(self._target, order.value(), partition=PARTITION)
        if self.producer.flush(ANSWER_S_MAX):
            sys.exit(f"the orders were not written within {ANSWER_S_MAX} s")

    def crash(self, step: str, orders: Sequence[Message]) -> None:
        """Die here, if this is the step, and these orders are in the middle."""
        if step == self._crash and (orders[-1].offset() or 0) >= self._half:
            os.kill(os.getpid(), signal.SIGKILL)


def copy_in_a_transaction(copier: Copier, orders: Sequence[Message]) -> None:
    """The records and the position become visible together."""
    producer = copier.producer
    producer.begin_transaction()
    copier.crash(BEGUN, orders)
    copier.write(orders)
    copier.crash(SENT, orders)
    position = [after(orders[-1])]
    producer.send_offsets_to_transaction(position, copier.consumer.consumer_group_metadata(), ANSWER_S_MAX)
    copier.crash(MOVED, orders)
    producer.commit_transaction(ANSWER_S_MAX)
    copier.crash(DONE, orders)


def copy_then_commit(copier: Copier, orders: Sequence[Message]) -> None:
    """After a crash between the two, the orders are written again."""
    copier.write(orders)
    copier.crash(SENT, orders)
    copier.consumer.commit(offsets=[after(orders[-1])], asynchronous=False)


def commit_then_copy(copier: Copier, orders: Sequence[Message]) -> None:
    """After a crash between the two, the orders are lost."""
    copier.consumer.commit(offsets=[after(orders[-1])], asynchronous=False)
    copier.crash(MOVED, orders)
    copier.write(orders)


EXACTLY_ONCE, COPY_FIRST, COMMIT_FIRST = "exactly once", "copy, then commit", "commit, then copy"
PROGRAMS = {
    EXACTLY_ONCE: (copy_in_a_transaction, (BEGUN, SENT, MOVED, DONE)),
    COPY_FIRST: (copy_then_commit, (SENT,)),
    COMMIT_FIRST: (commit_then_copy, (MOVED,)),
}
"""The ways to copy, and the steps after which each is killed."""


# The experiment -------------------------------------------------------------------------------------------------------


def crash_and_count(program: str, step: str, options: argparse.Namespace) -> Counted:
    """Let the copier be killed after a step, start it again, and count what readers of committed records see."""
    topic, target = write_orders(options.broker, options.orders), new_topic(options.broker)
    for crash, ended_with in ((step, -signal.SIGKILL), ("", 0)):
        command = [sys.executable, sys.argv[0], options.broker, "--orders", str(options.orders), "--program", program]
        command += ["--topic", topic, "--target", target, "--crash", crash]
        if (code := subprocess.run(command, check=False).returncode) != ended_with:
            sys.exit(f"the copier ended with {code} instead of {ended_with}")
    return count(options.orders, read_committed(options.broker, target))


def read_committed(broker: str, topic: str) -> list[int]:
    """The numbers of all orders in a topic, without those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, PARTITION, 0)])
    numbers = []
    while (record := consumer.poll(ANSWER_S_MAX)) is not None and record.error() is None:
        numbers.append(int(record.value() or b""))
    consumer.close()
    return numbers


def main() -> None:
    """Run each way to copy with a crash after each step, and print what was lost and duplicated."""
    parser = argparse.ArgumentParser(description="A copy between topics that is killed at every step.")
    parser.add_argument("broker", nargs="?", default=BROKER)
    parser.add_argument("--orders", type=int, default=20, help="10 or more; the crash is in the middle")
    for option in ("--program", "--topic", "--target", "--crash"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program is not None:
        Copier(options).run(PROGRAMS[options.program][0])
        return
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        runs = [
            (f"{program}, killed {step}", threads.submit(crash_and_count, program, step, options))
            for program, (_copy, steps) in PROGRAMS.items()
            for step in steps
        ]
        for name, counted in runs:
            print(f"{name}: {counted.result()}", flush=True)


if __name__ == "__main__":
    main()
