"""The time until `minibroker serve` reports that it is ready, and until `minibroker --help` ends.

The limit to compare with is an interpreter that does nothing. The directories with partitions were written by a broker
that was shut down cleanly. Every partition has one batch.
"""

import statistics
import subprocess
import sys
import time
from functools import cached_property
from itertools import count
from pathlib import Path

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, children, is_quick, scaled
from minibroker.bench.launcher import Server
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

MANY = 10_000
MANY_STARTS = 3
PARTITIONS_PER_TOPIC = 100
TIMEOUT_MS = 120_000

PASS = "python -c pass"
HELP = "minibroker --help"
EMPTY = "serve, nothing there"


def benchmark(context: Context) -> Benchmark:
    partitions = scaled(full=1_000, quick=20)
    some = f"serve, {partitions:,} partitions"
    return Benchmark(
        "Time to start",
        [
            command_case(context, PASS, ["-c", "pass"]),
            command_case(context, HELP, ["-m", "minibroker.cli", "--help"]),
            serve_case(context, EMPTY, 0),
            serve_case(context, some, partitions),
        ],
        bars=[
            Bar(HELP, "ms_per_op", at_most=100),
            Bar(EMPTY, "ms_per_op", at_most=500),
            Bar(some, "ms_per_op", at_most=1000),
        ],
        metric="ms_per_op",
        columns=["ms_per_op"],
        facts=[] if is_quick() else Many(context).facts(),
        note="From the start of a process to its end, or to the line that says that clients are served.",
    )


def command_case(context: Context, name: str, arguments: list[str]) -> Case:
    command, environment = [sys.executable, *arguments], children.environment(context)
    return Case(
        name,
        lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment),
        operations_count=1,
        limit="" if name == PASS else PASS,
    )


def serve_case(context: Context, name: str, partitions: int) -> Case:
    """Start a broker on a directory with `partitions` partitions. If there are none, the directory is new each time."""
    data, numbers = context.directory / f"data-{partitions}", count()
    if partitions:
        fill(context, data, partitions)
    started: list[Server] = []

    def start() -> None:
        path = data if partitions else data.with_suffix(f".{next(numbers)}")
        started.append(children.start(context, children.broker_on(path)))

    return Case(name, start, operations_count=1, limit=PASS, after=lambda: started.pop().stop())


class Many:
    """A broker with ten thousand partitions."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def facts(self) -> list[Fact]:
        """Its time to start, its open files and its memory."""
        return [
            Fact(f"ready with {MANY:,} partitions", "ms", lambda: self._ready_ms),
            Fact(f"open files with {MANY:,} partitions", "handles", lambda: self._broker.open_files()),
            Fact(f"resident memory with {MANY:,} partitions", "MB", lambda: self._broker.resident_mb()),
        ]

    @cached_property
    def _data(self) -> Path:
        data = self._context.directory / f"data-{MANY}"
        fill(self._context, data, MANY)
        return data

    @cached_property
    def _ready_ms(self) -> float:
        times_ms = []
        for _ in range(MANY_STARTS):
            begin_s = time.perf_counter()
            self._broker = children.start(self._context, children.broker_on(self._data))
            times_ms.append((time.perf_counter() - begin_s) * 1000)
            if len(times_ms) < MANY_STARTS:
                self._broker.stop()
        return statistics.median(times_ms)


def fill(context: Context, data: Path, partitions: int) -> None:
    """Start a broker, create partitions, write a batch into each, and stop it."""
    per_topic = min(PARTITIONS_PER_TOPIC, partitions)
    names = [f"topic-{number}" for number in range(partitions // per_topic)]
    broker = children.start(context, children.broker_on(data))
    with Client(broker.address, timeout_ms=TIMEOUT_MS) as client:
        for name in names:
            create_topics(client, [NewTopic(name, per_topic)])
            write(client, name, per_topic)
    broker.stop()


def write(client: Client, topic: str, partitions: int) -> None:
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"x" * 100)
    batch = builder.build()
    left = list(range(partitions))
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    # A node opens many new partitions a few at a time, so retry those that are not open yet.
    while left:
        assert time.monotonic() < deadline, f"{len(left)} partitions of {topic} take no records"
        data = [PartitionProduceData(index=index, records=batch) for index in left]
        topics = [TopicProduceData(name=topic, partition_data=data)]
        response = client.send(ProduceRequest(acks=1, timeout_ms=TIMEOUT_MS, topic_data=topics))
        assert isinstance(response, ProduceResponse)
        left = [it.index for it in response.responses[0].partition_responses if it.error_code]
