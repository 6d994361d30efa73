"""What the examples of delivery share: a worker is killed in the worst place, comes back, and its results are counted.

Each example is a program of its own, which says what its worker does with one order, and where the worst place for a
crash is. The worker is a process; `crash_at` kills it there with kill -9, once. The results are rows in a file of
SQLite, which stands for the outside world: whatever the worker has written there has happened.

The worker has a `group.instance.id`. So the coordinator knows it again at once when it comes back, and nobody waits for
the session of the killed process to end.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = os.environ.get("MINIBROKER_BOOTSTRAP_SERVER", "127.0.0.1:9092")
ANSWER_S_MAX = 30
PARTITION = 0
NEVER = -1

Settings = Mapping[str, str | int | bool]
Assigned = Callable[["Worker", list[TopicPartition]], None]


class Results:
    """The outside world: what has been done, and how often."""

    def __init__(self, path: Path) -> None:
        # Every statement is a transaction of its own, unless a program begins one.
        self.database = sqlite3.connect(path, isolation_level=None)

    def create(self) -> None:
        """Begin with nothing."""
        self.database.execute("create table done (number integer)")
        self.database.execute("create table seen (number integer primary key)")
        self.database.execute("create table position (part integer primary key, next integer)")

    def add(self, number: int) -> None:
        """Do it: whoever calls this twice has done it twice."""
        self.database.execute("insert into done values (?)", [number])

    def numbers(self) -> list[int]:
        """All that has been done."""
        return [number for (number,) in self.database.execute("select number from done")]


class Worker:
    """A consumer in a group, and the place where it is killed."""

    def __init__(self, consumer: Consumer, results: Results, crash_at: int) -> None:
        self.consumer, self.results, self._crash_at = consumer, results, crash_at

    def commit(self, order: Message) -> None:
        """Commit the offset after this order, and wait for the coordinator."""
        self.consumer.commit(offsets=[after(order)], asynchronous=False)

    def committed(self) -> int:
        """The offset that the coordinator has."""
        (found,) = self.consumer.committed(self.consumer.assignment(), ANSWER_S_MAX)
        return int(found.offset)

    def is_doomed(self, order: Message) -> bool:
        """Whether the crash comes with this order."""
        return order.offset() == self._crash_at

    def crash_if_doomed(self, order: Message) -> None:
        """The worst place: kill -9 comes here, if it comes with this order."""
        if self.is_doomed(order):
            os.kill(os.getpid(), signal.SIGKILL)


def number_of(order: Message) -> int:
    """The number of an order."""
    return int(order.value() or b"")


def after(order: Message) -> TopicPartition:
    """The position after an order. A committed offset is the one of the record to read next."""
    return TopicPartition(order.topic(), order.partition(), order.offset() + 1)


@dataclass(frozen=True)
class Program:
    """A worker: its work on one order, its settings, and what it does with partitions that it is given."""

    name: str
    work: Callable[[Worker, Message], None]
    settings: Settings = field(default_factory=dict)
    on_assigned: Assigned | None = None


# The worker: one process ----------------------------------------------------------------------------------------------


def run_worker(program: Program, options: argparse.Namespace) -> None:
    """Work until the last order is done, or until the crash."""
    settings = {
        "bootstrap.servers": options.broker,
        "group.id": options.topic,
        "group.instance.id": "worker",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    worker = Worker(Consumer(settings | dict(program.settings)), Results(options.results), options.crash_at)
    on_assigned = program.on_assigned
    if on_assigned is None:
        worker.consumer.subscribe([options.topic])
    else:
        worker.consumer.subscribe([options.topic], on_assign=lambda _consumer, given: on_assigned(worker, given))
    for order in orders(worker.consumer, last=options.orders - 1):
        program.work(worker, order)
    worker.consumer.close()


def orders(consumer: Consumer, *, last: int) -> Iterator[Message]:
    """The orders from the group's position on, up to the last one."""
    offset = -1
    while offset < last:
        order = consumer.poll(ANSWER_S_MAX)
        if order is None:
            sys.exit(f"no order within {ANSWER_S_MAX} s")
        if order.error() is not None:
            raise KafkaException(order.error())
        offset = order.offset() or 0
        yield order


# The experiment -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """What the crash has done."""

    orders: int
    lost: int
    duplicated: int

    def __str__(self) -> str:
        return f"{self.orders} orders, lost {self.lost}, duplicated {self.duplicated}"


def count(orders_count: int, done: Iterable[int]) -> Counted:
    """How many orders were not done, and how many were done again."""
    numbers = list(done)
    return Counted(orders_count, orders_count - len(set(numbers)), len(numbers) - len(set(numbers)))


def new_topic(broker: str) -> str:
    """Make a topic of one partition, and return its name."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(ANSWER_S_MAX)
    return topic


def write_orders(broker: str, orders_count: int) -> str:
    """Make a topic with so many orders, and return its name."""
    topic = new_topic(broker)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(orders_count):
        producer.produce(topic, str(number).encode(), partition=PARTITION)
    if producer.flush(ANSWER_S_MAX):
        sys.exit(f"{broker} did not take the orders within {ANSWER_S_MAX} s")
    return topic


def crash_and_count(name: str, options: argparse.Namespace) -> Counted:
    """Let the worker be killed once, start it again, and count its results."""
    topic = write_orders(options.broker, options.orders)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.sqlite")
        results = Results(path)
        results.create()
        for crash_at, ended_with in ((options.orders // 2, -signal.SIGKILL), (NEVER, 0)):
            command = [sys.executable, sys.argv[0], options.broker, "--orders", str(options.orders)]
            command += ["--program", name, "--topic", topic, "--results", str(path), "--crash-at", str(crash_at)]
            if (code := subprocess.run(command, check=False).returncode) != ended_with:
                sys.exit(f"the worker ended with {code} instead of {ended_with}")
        done = results.numbers()
        results.database.close()
    return count(options.orders, done)


def main(*programs: Program) -> None:
    """Run each program with a crash, and print what was lost and duplicated."""
    parser = argparse.ArgumentParser(description=f"A worker that is killed: {', '.join(it.name for it in programs)}.")
    parser.add_argument("broker", nargs="?", default=BROKER)
    parser.add_argument("--orders", type=int, default=10, help="how many orders there are; the crash is in the middle")
    for option in ("--program", "--topic", "--results"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--crash-at", type=int, default=NEVER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for program in programs:
        if options.program == program.name:
            run_worker(program, options)
        elif options.program is None:
            print(f"{program.name}: {crash_and_count(program.name, options)}", flush=True)
