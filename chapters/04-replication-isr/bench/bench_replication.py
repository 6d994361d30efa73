"""What replication costs: three nodes in processes of their own, a topic with one replica beside one with three.

Node 1 leads every topic, nodes 2 and 3 follow. On a machine with two cores the client and the nodes share them: what
three replicas do to the speed there is above all that three brokers work instead of one. The CPU time of the leader
and of its followers tells more than the speed.
"""

import select
import socket
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self

from bench.exchange import Exchange, Latencies, start_echo
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.bench import (
    GB,
    KIB,
    MB,
    MIB,
    Bar,
    BarChart,
    BarRow,
    Benchmark,
    Case,
    Context,
    Fact,
    Line,
    LineChart,
    Point,
    children,
    is_quick,
    limits,
    network,
    scaled,
)
from minibroker.bench.context import quick_note
from minibroker.bench.launcher import Server
from minibroker.bench.plot import LIMIT
from minibroker.bench.sending import produce_all
from minibroker.bench.watching import until
from minibroker.log.batch import BatchBuilder
from minibroker.wire.headers import frame_request
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

Settings = dict[str, str | int | float | bool]
QUIET: Settings = {"log_level": 0}
LEADER, FOLLOWERS = 1, (2, 3)
ALONE, ALL = [LEADER], [LEADER, *FOLLOWERS]
RECORD_BYTES = 1000
POLL_S = 0.005
TIMEOUT_S = 60


class Cluster:
    """Three nodes, the first of which is the controller, and clients, which end first."""

    def __init__(self, context: Context, name: str = "node", *, settings: Sequence[str] = ()) -> None:
        self._context = context
        self._name = name
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._numbers = count()
        self.nodes: dict[int, Server] = {}
        self.start(LEADER)
        with ThreadPoolExecutor(len(FOLLOWERS)) as threads:
            list(threads.map(self.start, FOLLOWERS))
        self.bootstrap: Settings = QUIET | {"bootstrap.servers": self.nodes[LEADER].address}
        # A client of librdkafka ends when no reference to it is left.
        self._admins = [AdminClient(self.bootstrap)]
        self._readers = [Consumer(self.bootstrap | {"group.id": "unused"})]
        self._producers: dict[str, Producer] = {}
        for clients in (self._admins, self._producers, self._readers):
            context.on_close(clients.clear)

    # Nodes ------------------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Start a node on its data directory, and any free port."""
        program = [sys.executable, "-m", "minibroker.replicas", "serve", str(node_id), str(self.data(node_id))]
        controller = [] if node_id == LEADER else [f"{LEADER}@{self.nodes[LEADER].address}"]
        options = [*controller, *self._settings]
        self.nodes[node_id] = children.start(self._context, lambda listen: [*program, listen, *options])

    def data(self, node_id: int) -> Path:
        """Where a node has its logs."""
        return self._context.directory / f"{self._name}-{node_id}"

    def bytes_of(self, node_id: int, topic: str) -> int:
        """The size of the topic's log on a node, read from the files at no cost for the node."""
        return sum(path.stat().st_size for path in self.files(node_id, topic))

    def files(self, node_id: int, topic: str) -> list[Path]:
        """The files of the topic's log on a node."""
        return sorted(self.data(node_id).glob(f"{topic}-0/*.log"))

    def cpu_s(self, *node_ids: int) -> float:
        """The CPU time of some nodes."""
        return sum(self.nodes[node_id].cpu_s() for node_id in node_ids)

    # Topics -----------------------------------------------------------------------------------------------------------

    def new_topic(self, nodes: Sequence[int], partitions: int = 1) -> str:
        """A topic with replicas on these nodes, and a name of its own. They lead its partitions in turn."""
        name = f"topic-{next(self._numbers)}"
        firsts = [number % len(nodes) for number in range(partitions)]
        assignment = [[*nodes[first:], *nodes[:first]] for first in firsts]
        topic = NewTopic(name, partitions, replica_assignment=assignment)
        self._admins[0].create_topics([topic])[name].result(TIMEOUT_S)
        return name

    def delete(self, topic: str) -> None:
        """Remove a topic and its files."""
        self._admins[0].delete_topics([topic])[topic].result(TIMEOUT_S)

    def wait_for(self, topic: str, records: int) -> None:
        """Return once all in-sync replicas have so many records."""
        wait_until(lambda: self._high_watermark(topic) >= records, f"{records} records in {topic}")
        assert self._high_watermark(topic) == records, f"{topic} has more than {records} records"

    def _high_watermark(self, topic: str) -> int:
        offsets = self._readers[0].get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        assert offsets is not None, f"node {LEADER} does not say where {topic} ends"
        return int(offsets[1])

    def in_sync(self, topic: str) -> int:
        """How many replicas of the topic are in sync."""
        return len(self._admins[0].list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].isrs)

    def producer(self, acks: str) -> Producer:
        """The client that wants so many acknowledgements."""
        if acks not in self._producers:
            self._producers[acks] = Producer(self.bootstrap | {"acks": acks})
        return self._producers[acks]


wait_until = partial(until, seconds=TIMEOUT_S, every_s=POLL_S)


def produce(producer: Producer, topic: str, records: int) -> None:
    produce_all(producer, topic, b"x" * RECORD_BYTES, records)


# Throughput -----------------------------------------------------------------------------------------------------------


def benchmark_throughput(context: Context) -> Benchmark:
    stage = Throughput(context)
    size = stage.records * RECORD_BYTES
    bare = stage.followed(network.receive_append(context, limits.scratch_file(context, "bare"), size))
    read_send = network.read_send(context, limits.scratch_file(context, "sent", size), size)
    alone = stage.case(ALONE, "1", limit=bare.name)
    others = [stage.case(nodes, acks, limit=alone.name) for nodes, acks in ((ALONE, "all"), (ALL, "1"), (ALL, "all"))]
    safest = others[-1].name
    return Benchmark(
        "Produce with 1 and 3 replicas, records of 1 KB",
        [network.loopback(context, size), read_send, bare, alone, *others],
        bars=[
            # Three brokers do three times the work. With a core for each it would be nearly as quick.
            Bar(safest, "ratio", at_least=0.25),
            # The leader also reads everything twice and sends it twice.
            Bar(safest, "cpu_ratio", at_most=4),
        ],
        facts=stage.facts([it.name for it in others if it.name.startswith("3")], bare.name),
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one record. CPU is the leader's, until its followers have everything.",
    )


class Throughput:
    """Producers at full speed, each repeat into a new topic."""

    def __init__(self, context: Context) -> None:
        self._cluster = Cluster(context)
        self._spent_s: dict[str, Spent] = {}
        self.records = scaled(full=100 * MB, quick=2 * MB) // RECORD_BYTES

    def followed(self, case: Case) -> Case:
        """A case whose CPU time is remembered, because a figure of ours is compared with it."""
        assert case.cpu_s is not None
        spent = self._spent_s[case.name] = Spent(case.cpu_s)
        return replace(case, cpu_s=spent.read)

    def case(self, nodes: Sequence[int], acks: str, *, limit: str) -> Case:
        """Produce with so many acknowledgements into topics with replicas on these nodes."""
        cluster, records, topics = self._cluster, self.records, Renewed(self._cluster, nodes)
        name = f"{'1 replica' if len(nodes) == 1 else f'{len(nodes)} replicas'}, acks={acks}"
        followers = self._spent_s[name] = Spent(lambda: cluster.cpu_s(*FOLLOWERS))
        producer = cluster.producer(acks)

        def begin() -> None:
            producer.list_topics(topics.renew(), timeout=TIMEOUT_S)

        def cpu_s() -> float:
            # Followers may have to catch up when the client is done. The wall clock was read before.
            if followers.is_begun:
                cluster.wait_for(topics.name, records + 1)
            followers.read()
            return cluster.cpu_s(LEADER)

        return Case(
            name,
            lambda: produce(producer, topics.name, records),
            bytes_count=records * RECORD_BYTES,
            operations_count=records,
            limit=limit,
            group=name.partition(",")[0],
            before=begin,
            cpu_s=cpu_s,
        )

    def facts(self, names: Sequence[str], bare: str) -> list[Fact]:
        """The CPU time of a follower, and the least that is possible."""

        def s_per_gb(name: str) -> float:
            return self._spent_s[name].median_s() / len(FOLLOWERS) * GB / (self.records * RECORD_BYTES)

        def ratio(name: str) -> float:
            return self._spent_s[name].median_s() / len(FOLLOWERS) / self._spent_s[bare].median_s()

        return [
            *(Fact(f"CPU of a follower, {name}", "s/GB", partial(s_per_gb, name)) for name in names),
            Fact(f"CPU of a follower, {names[-1]}", f"ratio to {bare}", partial(ratio, names[-1]), at_most=4),
            Fact("resident memory of the leader", "MB", self._cluster.nodes[LEADER].resident_mb, at_most=200),
            Fact("resident memory of a follower", "MB", self._cluster.nodes[FOLLOWERS[0]].resident_mb, at_most=200),
        ]


class Spent:
    """CPU time read before and after each repeat; the first repeat is the warm-up and does not count."""

    def __init__(self, source: Callable[[], float]) -> None:
        self._source = source
        self._readings: list[float] = []

    @property
    def is_begun(self) -> bool:
        """Whether the next reading ends a repeat."""
        return len(self._readings) % 2 == 1

    def read(self) -> float:
        """Read it now."""
        self._readings.append(self._source())
        return self._readings[-1]

    def median_s(self) -> float:
        """What a repeat took."""
        readings = self._readings[2:]
        return statistics.median(end - begin for begin, end in zip(readings[::2], readings[1::2], strict=True))


class Renewed:
    """A topic for each repeat. The last one is deleted when the next exists, which then reuses its warm memory."""

    def __init__(self, cluster: Cluster, nodes: Sequence[int]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self.name = ""

    def renew(self) -> str:
        """A new topic with one replicated record, so that all followers fetch from the start."""
        if self.name:
            self._cluster.delete(self.name)
        self.name = self._cluster.new_topic(self._nodes)
        produce(self._cluster.producer("all"), self.name, 1)
        return self.name


# Latency --------------------------------------------------------------------------------------------------------------

BARE = "bare server"
ONE, STEADY = "one at a time", "steady rate"
PERCENTILES = (50, 99, 99.9)
PROMISES = {"1 replica, acks=1": (ALONE, 1), "3 replicas, acks=1": (ALL, 1), "3 replicas, acks=all": (ALL, -1)}
RATE_PER_S = 250
PRODUCE_VERSION = 9  # the last version that names topics by name


def benchmark_latency(context: Context) -> Benchmark:
    cluster, echo = Cluster(context), start_echo(context)
    latencies = {ONE: {BARE: Latencies()}, STEADY: {BARE: Latencies()}}
    cases = latency_cases(context, BARE, echo, framed("topic-0", acks=1), latencies)
    for name, (nodes, acks) in PROMISES.items():
        topic = cluster.new_topic(nodes)
        produce(cluster.producer("all"), topic, 1)
        cases += latency_cases(context, name, cluster.nodes[LEADER], framed(topic, acks), latencies)
    cases.sort(key=lambda case: case.group)
    return Benchmark(
        "Latency of one record of 1 KB",
        cases,
        # For each record two fetches are answered and two more are taken, where one replica has the record alone.
        bars=[Bar(f"3 replicas, acks=all, {ONE}", "cpu_ratio", at_most=12, against=f"1 replica, acks=1, {ONE}")],
        metric="us_per_op",
        columns=["cpu_us_per_op"],
        figure=lambda _results: latency_figure(latencies),
        facts=[
            Fact(f"{name}, {way}: p{percent:g}", "µs", partial(kept.percentile_us, percent))
            for way, by_name in latencies.items()
            for name, kept in by_name.items()
            for percent in PERCENTILES
        ],
        note=f"CPU is the leader's. At a steady rate of {RATE_PER_S}/s a record's time runs from when it was due.",
    )


def framed(topic: str, acks: int) -> bytes:
    """A request with one record, in bytes."""
    builder = BatchBuilder()
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"x" * RECORD_BYTES)
    data = PartitionProduceData(index=0, records=builder.build())
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(acks=acks, timeout_ms=TIMEOUT_S * 1000, topic_data=topics)
    parts = frame_request(request, version=PRODUCE_VERSION, correlation_id=1, client_id="bench")
    return b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))


def latency_cases(
    context: Context, name: str, child: Server, request: bytes, latencies: dict[str, dict[str, Latencies]]
) -> list[Case]:
    one, steady = (by_name.setdefault(name, Latencies()) for by_name in latencies.values())
    exchange, schedule = Exchange(context, child.host, child.port), Schedule(context, child, request)
    answer_bytes = len(exchange.ask(request))
    count_one, count_steady = scaled(full=1_000, quick=20), scaled(full=RATE_PER_S * 3 // 2, quick=20)

    def case(way: str, run: Callable[[], None], operations: int) -> Case:
        limit = "" if name == BARE else f"{BARE}, {way}"
        return Case(f"{name}, {way}", run, operations_count=operations, limit=limit, group=way, cpu_s=child.cpu_s)

    return [
        case(ONE, lambda: exchange.repeat(request, answer_bytes, count=count_one, latencies=one), count_one),
        case(STEADY, lambda: schedule.run(answer_bytes, count_steady, steady.begin_round()), count_steady),
    ]


class Schedule:
    """Requests sent when they are due, whether or not those before are answered; answers counted as they come.

    A client that waited for a slow answer before it sent the next request would leave out just the bad times.
    """

    def __init__(self, context: Context, child: Server, request: bytes) -> None:
        self._request = request
        self._socket = socket.create_connection((child.host, child.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context.on_close(self._socket.close)
        self._buffer = bytearray(64 * KIB)

    def run(self, answer_bytes: int, requests: int, times_ns: "array[int]") -> None:
        """Send so many requests, and append to `times_ns` how long after its due time each was answered."""
        begin_ns, interval_ns = time.perf_counter_ns(), 10**9 // RATE_PER_S
        sent = received_bytes = 0
        while len(times_ns) < requests:
            now_ns = time.perf_counter_ns()
            while sent < requests and begin_ns + sent * interval_ns <= now_ns:
                self._socket.sendall(self._request)
                sent += 1
            due_ns = begin_ns + sent * interval_ns
            wait_s = TIMEOUT_S if sent == requests else max(due_ns - time.perf_counter_ns(), 0) / 1e9
            if select.select([self._socket], [], [], wait_s)[0]:
                received_bytes += self._receive()
                now_ns = time.perf_counter_ns()
                for number in range(len(times_ns), received_bytes // answer_bytes):
                    times_ns.append(now_ns - begin_ns - number * interval_ns)

    def _receive(self) -> int:
        received = self._socket.recv_into(self._buffer)
        if received == 0:
            raise ConnectionError("the server has hung up")
        return received


def latency_figure(latencies: Mapping[str, Mapping[str, Latencies]]) -> BarChart:
    rows = [
        BarRow(f"{name}, p{percent:g}", kept.percentile_us(percent), series=f"p{percent:g}", group=way)
        for way, by_name in latencies.items()
        for name, kept in by_name.items()
        for percent in PERCENTILES
    ]
    note = quick_note()
    return BarChart("Latency of one record of 1 KB", "µs, logarithmic; median of the rounds", rows, log=True, note=note)


# Catching up ----------------------------------------------------------------------------------------------------------

AWAY = FOLLOWERS[-1]
COPY = "copy of the file"
SAMPLE_S = 0.01
POINTS_MAX = 30


def benchmark_catch_up(context: Context) -> Benchmark:
    stage = CatchUp(context)
    back, copy = stage.case(), stage.copy_case()
    return Benchmark(
        "A follower that was away catches up",
        [back, copy],
        facts=[
            Fact("from its start to its first byte", "ms", lambda: stage.median(Return.first_ms)),
            Fact("from its first byte to its last", "MB/s", lambda: stage.median(Return.mb_per_s)),
            Fact("from its last byte to in sync", "ms", lambda: stage.median(Return.in_sync_ms)),
            # One request at a time: while the follower writes a megabyte the leader waits, and the other way round.
            Fact("from its first byte to its last", f"ratio to {copy.name}", stage.ratio, at_least=0.25),
        ],
        figure=lambda _results: stage.figure(),
        note="A repeat runs from the start of the killed follower's process until it is in sync. CPU is the leader's.",
    )


class Sample(NamedTuple):
    """How many bytes there were at a time."""

    time_s: float
    bytes_count: int


class Return(NamedTuple):
    """The return of a follower: its bytes over time, and when it was in sync."""

    samples: list[Sample]
    in_sync_s: float

    @property
    def first(self) -> Sample:
        """The last time at which it had no more than before."""
        return [it for it in self.samples if it.bytes_count == self.samples[0].bytes_count][-1]

    @property
    def last(self) -> Sample:
        """The first time at which it had everything."""
        return next(it for it in self.samples if it.bytes_count == self.samples[-1].bytes_count)

    def first_ms(self) -> float:
        """How long until it had the first bytes."""
        return self.first.time_s * 1000

    def mb_per_s(self) -> float:
        """How fast it copied."""
        return self.last.bytes_count / MB / (self.last.time_s - self.first.time_s)

    def in_sync_ms(self) -> float:
        """How long from the last byte until it was in sync again."""
        return (self.in_sync_s - self.last.time_s) * 1000


class Sampler:
    """Samples a number of bytes on a thread of its own."""

    def __init__(self, find: Callable[[], int]) -> None:
        self._find = find
        self._begin_s = time.perf_counter()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def now_s(self) -> float:
        """The seconds since it began."""
        return time.perf_counter() - self._begin_s

    def _run(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.samples.append(Sample(self.now_s(), self._find()))

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()


class CatchUp:
    """Node 3 is killed, misses a topic, and comes back; each repeat with a new topic."""

    def __init__(self, context: Context) -> None:
        # A follower that is away leaves the in-sync set sooner than by default, which would be half a minute.
        self._cluster = Cluster(context, settings=[f"replica.lag.time.max.ms={scaled(full=1000, quick=200)}"])
        self._topics = Renewed(self._cluster, [LEADER, AWAY])
        self._copy = context.directory / "copy"
        self._returns: list[Return] = []
        self._copies_s: list[float] = []
        self._records = scaled(full=256 * MB, quick=2 * MB) // RECORD_BYTES

    def case(self) -> Case:
        """The follower's return."""
        size = self._records * RECORD_BYTES
        return Case(
            "a follower comes back",
            self._come_back,
            bytes_count=size,
            before=self._leave,
            cpu_s=lambda: self._cluster.cpu_s(LEADER),
            limit=COPY,
        )

    def _leave(self) -> None:
        cluster, topic = self._cluster, self._topics.renew()
        cluster.nodes[AWAY].kill()
        produce(cluster.producer("1"), topic, self._records)
        wait_until(lambda: cluster.in_sync(topic) == 1, f"node {AWAY} out of sync")

    def _come_back(self) -> None:
        cluster, topic = self._cluster, self._topics.name
        with Sampler(lambda: cluster.bytes_of(AWAY, topic)) as sampler:
            cluster.start(AWAY)
            size = cluster.bytes_of(LEADER, topic)
            wait_until(lambda: cluster.bytes_of(AWAY, topic) == size, f"all {size} bytes of {topic} at node {AWAY}")
            wait_until(lambda: cluster.in_sync(topic) == 2, f"node {AWAY} in sync")
            in_sync_s = sampler.now_s()
        self._returns.append(Return(sampler.samples, in_sync_s))

    def copy_case(self) -> Case:
        """The same bytes, copied by one process from file to file."""
        return Case(COPY, self._copy_all, bytes_count=self._records * RECORD_BYTES, series=LIMIT, before=self._empty)

    def _empty(self) -> None:
        self._copy.write_bytes(b"")

    def _copy_all(self) -> None:
        begin_s = time.perf_counter()
        buffer = memoryview(bytearray(MIB))
        with self._copy.open("wb", buffering=0) as target:
            for path in self._cluster.files(LEADER, self._topics.name):
                with path.open("rb", buffering=0) as source:
                    while count := source.readinto(buffer):
                        target.write(buffer[:count])
        self._copies_s.append(time.perf_counter() - begin_s)

    # Results ----------------------------------------------------------------------------------------------------------

    def median(self, figure: Callable[[Return], float]) -> float:
        """The median of a figure over the repeats; the first one was the warm-up."""
        return statistics.median(figure(it) for it in self._returns[1:])

    def ratio(self) -> float:
        """The speed of the follower compared with the copy of the same repeat."""
        pairs = zip(self._returns[1:], self._copies_s[1:], strict=True)
        return statistics.median(copy_s / (it.last.time_s - it.first.time_s) for it, copy_s in pairs)

    def figure(self) -> LineChart:
        """The lag of the follower over time in the median repeat, and that of the copy."""
        chosen = sorted(self._returns[1:], key=lambda it: it.last.time_s)[len(self._returns[1:]) // 2]
        size, first_s = chosen.last.bytes_count, chosen.first.time_s
        step = max(len(chosen.samples) // POINTS_MAX, 1)
        behind = [Point(it.time_s, (size - it.bytes_count) / MB) for it in chosen.samples[::step]]
        copied_s = statistics.median(self._copies_s[1:])
        return LineChart(
            "A follower that was away catches up",
            f"seconds since it was started; in sync after {chosen.in_sync_s:.2f} s",
            "MB behind its leader",
            [
                Line("follower", behind),
                Line(COPY, [Point(first_s, size / MB), Point(first_s + copied_s, 0)]),
            ],
            note=quick_note(),
        )


# Idle -----------------------------------------------------------------------------------------------------------------

PARTITIONS = 100


def benchmark_idle(context: Context) -> Benchmark:
    cluster, wait_ms = Cluster(context), scaled(full=2000, quick=200)
    topic = cluster.new_topic(ALL, PARTITIONS)
    produce(cluster.producer("all"), topic, 1)
    name = f"3 nodes, {PARTITIONS} partitions"

    def without_partitions() -> float:
        empty = Cluster(context, "empty")
        # Work that is left over from the start is not measured.
        time.sleep(wait_ms / 1000)
        begin_s = empty.cpu_s(*ALL)
        time.sleep(wait_ms / 1000)
        return (empty.cpu_s(*ALL) - begin_s) * 1e6 / wait_ms

    case = Case(name, lambda: time.sleep(wait_ms / 1000), operations_count=wait_ms, cpu_s=lambda: cluster.cpu_s(*ALL))
    return Benchmark(
        "CPU of three nodes without traffic",
        [case],
        # Every node asks both others twice a second for a third of all partitions: a tenth of a core for all.
        bars=[Bar(name, "cpu_us_per_op", at_most=60)],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op"],
        facts=[] if is_quick() else [Fact("3 nodes, no partitions", "CPU µs/op", without_partitions)],
        note="An operation is a millisecond: 10 µs of CPU in it are 1 % of a core. All three nodes together.",
    )
