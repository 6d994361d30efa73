"""Throughput with a stock client: confluent-kafka, which uses librdkafka. The broker is in another process.

The same rounds measure two other things. One is librdkafka's mock broker, which is written in C, runs in the client's
process and keeps only a few megabytes. The other is the least work that any broker does with the bytes. The client
needs most of a core. On two cores it is often the bottleneck, so the broker's CPU time is more meaningful.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import count

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.bench import GB, MB, Bar, Benchmark, Case, Context, Fact, children, limits, network, scaled
from minibroker.bench.sending import produce_all

SIZES = {"1 KB": 1000, "100 B": 100}
Settings = dict[str, str | int | float | bool]
QUIET: Settings = {"log_level": 0}
ACKS_1: Settings = {"acks": 1}
IDEMPOTENT: Settings = {"enable.idempotence": True}
# librdkafka requires a group, which is not used. Its default pause when its queue is full, one second, is too long.
READING: Settings = {"group.id": "unused", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
CHUNK_RECORDS = 10_000
TIMEOUT_S = 60


def records_of(size: int) -> int:
    full, quick = (120 * MB, 2 * MB) if size == 1000 else (40 * MB, MB // 5)
    return scaled(full, quick) // size


def benchmark_produce(context: Context) -> Benchmark:
    stage = Stage(context)
    bare = network.receive_append(context, limits.scratch_file(context, "bare"), 1000 * records_of(1000))
    cases = [network.loopback(context, bare.bytes_count), bare]
    for name, size in SIZES.items():
        mock = mock_case(f"{name}, mock broker", size)
        acks_1 = stage.produce_case(f"{name}, acks=1", size, ACKS_1, limit=mock.name)
        cases += [mock, acks_1, stage.produce_case(f"{name}, idempotent", size, IDEMPOTENT, limit=mock.name)]
    return Benchmark(
        "Produce with confluent-kafka",
        cases,
        bars=[
            # A prototype reached 380 to 500 MB/s on streams, where the mock broker reached 812 to 1,137.
            Bar("1 KB, acks=1", "ratio", at_least=0.3),
            # It took 1.17 CPU s/GB for requests of 1 MB. Receiving, checking and appending alone takes 0.41.
            Bar("1 KB, acks=1", "cpu_ratio", at_most=4, against=bare.name),
        ],
        facts=stage.facts("1 KB, acks=1"),
        columns=["cpu_us_per_op"],
        note="An operation is one record. CPU is the broker's; that of the mock broker includes the client.",
    )


def benchmark_consume(context: Context) -> Benchmark:
    stage = Stage(context)
    size = 1000 * records_of(1000)
    bare = network.read_send(context, limits.scratch_file(context, "bare", size), size)
    cases = [bare, *(stage.consume_case(name, size, limit=bare.name) for name, size in SIZES.items())]
    return Benchmark(
        "Consume with confluent-kafka",
        cases,
        bars=[Bar("1 KB", "cpu_ratio", at_most=4)],
        facts=stage.facts("1 KB"),
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one record. CPU is the broker's. The client makes a Python object of every record.",
    )


class Stage:
    """A broker and its clients, which are closed before it."""

    def __init__(self, context: Context) -> None:
        self._broker = children.serve(context)
        self._bootstrap: Settings = QUIET | {"bootstrap.servers": self._broker.address}
        self._numbers = count()
        self._client_cpu_s: dict[str, list[float]] = {}
        # A client of librdkafka ends when its last reference is dropped.
        self._admins = [AdminClient(self._bootstrap)]
        self._producers: dict[str, Producer] = {}
        self._readers = [Consumer(self._bootstrap | READING)]
        for clients in (self._admins, self._producers, self._readers):
            context.on_close(clients.clear)

    # Topics -----------------------------------------------------------------------------------------------------------

    def new_topic(self) -> str:
        """Create a topic with one partition and a new name."""
        name = f"topic-{next(self._numbers)}"
        self._admins[0].create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)
        return name

    def check(self, topic: str, records: int) -> None:
        """Check that all records are in the log. A client that lost some would look fast."""
        offsets = self._readers[0].get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        assert offsets == (0, records), f"{records} records were produced, the log has offsets {offsets}"

    def delete(self, topic: str) -> None:
        """Remove a topic and its files."""
        self._admins[0].delete_topics([topic])[topic].result(TIMEOUT_S)

    # Cases ------------------------------------------------------------------------------------------------------------

    def produce_case(self, name: str, size: int, settings: Settings, *, limit: str) -> Case:
        """Produce records of `size` bytes, each repeat into a new topic."""
        self._producers[name] = Producer(self._bootstrap | settings)
        topics: list[str] = []

        def begin() -> None:
            # The topic of the last repeat is deleted only now, so that its warm memory is reused for the new one.
            if topics:
                self.delete(topics.pop())
            topics.append(self.new_topic())
            # The client gets the topic's metadata before the measurement.
            self._producers[name].list_topics(topics[0], timeout=TIMEOUT_S)

        def run() -> None:
            produce(self._producers[name], topics[0], size)

        return self._case(
            name, run, size, limit=limit, before=begin, after=lambda: self.check(topics[0], records_of(size))
        )

    def consume_case(self, name: str, size: int, *, limit: str) -> Case:
        """Read a topic from its start, each repeat with a new consumer."""
        topic, records = self.new_topic(), records_of(size)
        produce(Producer(self._bootstrap), topic, size)
        self.check(topic, records)
        readers: list[Consumer] = []

        def begin() -> None:
            readers.append(Consumer(self._bootstrap | READING))
            readers[0].get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)

        def end() -> None:
            readers.pop().close()

        return self._case(name, lambda: consume(readers[0], topic, records), size, limit=limit, before=begin, after=end)

    def _case(
        self,
        name: str,
        run: Callable[[], None],
        size: int,
        *,
        limit: str,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> Case:
        records = records_of(size)
        client_cpu_s = self._client_cpu_s[name] = []

        def run_and_note() -> None:
            begin_s = time.process_time()
            run()
            client_cpu_s.append((time.process_time() - begin_s) * GB / (records * size))

        return Case(
            name,
            run_and_note,
            bytes_count=records * size,
            operations_count=records,
            limit=limit,
            group=name.partition(",")[0],
            before=before,
            after=after,
            cpu_s=self._broker.cpu_s,
        )

    def facts(self, case: str) -> list[Fact]:
        """Other figures of the run."""

        def client_cpu_s() -> float:
            rounds = sorted(self._client_cpu_s[case][1:])
            return rounds[len(rounds) // 2]

        return [
            Fact("resident memory of the broker", "MB", self._broker.resident_mb, at_most=200),
            Fact(f"CPU of the client, {case}", "s/GB", client_cpu_s),
        ]


def mock_case(name: str, size: int) -> Case:
    producer = Producer({"test.mock.num.brokers": 1} | QUIET | ACKS_1)
    producer.list_topics("mock", timeout=TIMEOUT_S)
    records = records_of(size)
    return Case(
        name,
        partial(produce, producer, "mock", size),
        bytes_count=records * size,
        operations_count=records,
        series="mock broker of librdkafka",
        group=name.partition(",")[0],
    )


def produce(producer: Producer, topic: str, size: int) -> None:
    produce_all(producer, topic, b"x" * size, records_of(size))


def consume(reader: Consumer, topic: str, records: int) -> None:
    reader.assign([TopicPartition(topic, 0, 0)])
    left = records
    while left > 0:
        messages = reader.consume(min(left, CHUNK_RECORDS), timeout=TIMEOUT_S)
        assert messages, f"{left} of {records} records did not come within {TIMEOUT_S} s"
        assert messages[-1].error() is None, messages[-1].error()
        left -= len(messages)
    reader.unassign()
