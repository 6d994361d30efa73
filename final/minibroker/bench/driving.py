"""One run of `minibroker bench produce`, `consume` or `latency` against a cluster.

Our own client sends batches that were built in advance, and reads only the headers of what it fetches. So the client
costs little for each batch and nothing for each record, and the figures are those of the cluster. Either the cluster
runs already, or it is started for this run. In the second case its CPU time and memory are measured, too.
"""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from minibroker.bench import children, limits, network
from minibroker.bench.context import Context
from minibroker.bench.failover import SETTINGS
from minibroker.bench.launcher import Server
from minibroker.bench.local import SIZE, LocalCluster
from minibroker.bench.measure import Case, Result, measure, percentile
from minibroker.bench.units import GB, MB
from minibroker.client.errors import ClientError, RequestTimedOut
from minibroker.clients.admin import NewTopic, create_topics, delete_topics
from minibroker.clients.blocking import Client
from minibroker.clients.consumer import Consumer, OffsetReset
from minibroker.log.batch import BatchBuilder
from minibroker.log.clock import precise_ms
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PERCENTS = (50, 90, 99, 99.9)
ACKS = {"1": 1, "all": -1}
_BY_NAME_MAX = 12  # the last version of Produce with topic names; later ones have topic ids
_ANSWER_MS_MAX = 30_000
_LIMIT_BYTES = 64 * MB
_STAMP = struct.Struct(">q")

MakeRequest = Callable[[int], ProduceRequest]
"""Makes a request; the argument is the time at which it is due, in nanoseconds."""


class Target(NamedTuple):
    """The cluster under load: a client, and its nodes if they were started for this run."""

    client: Client
    nodes: Sequence[Server]

    def cpu_s(self) -> float:
        """The CPU time of the nodes."""
        return sum(it.cpu_s() for it in self.nodes)


@contextmanager
def opened(context: Context, bootstrap: str | None, nodes: int, settings: Sequence[str]) -> Iterator[Target]:
    """The running cluster that `bootstrap` names, or else a new one of one node or three."""
    servers: list[Server] = []
    if bootstrap is None and nodes == SIZE:
        cluster = context.cleanup.enter_context(LocalCluster.within(context, *SETTINGS, *settings))
        bootstrap, servers = cluster.bootstrap, list(cluster.nodes.values())
    elif bootstrap is None:
        servers = [children.serve(context, *settings)]
        bootstrap = servers[0].address
    with Client(bootstrap, client_id="minibroker-bench") as client:
        yield Target(client, servers)


@contextmanager
def new_topic(client: Client, partitions: int) -> Iterator[str]:
    """A topic for this run, which is deleted at the end."""
    topic = f"bench-{os.urandom(4).hex()}"
    create_topics(client, [NewTopic(topic, partitions)])
    try:
        yield topic
    finally:
        delete_topics(client, [topic])


@dataclass
class Run:
    """What one run has measured."""

    records: int = 0
    bytes_count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    resident_mb: float = 0.0
    times_ns: dict[str, list[int]] = field(default_factory=dict)
    """The time of each operation, in a list for each kind of operation."""
    limit: Result | None = None

    def rows(self) -> list[tuple[str, str, float]]:
        """The figures: name, unit, value."""
        rows = [
            ("throughput", "MB/s", self.bytes_count / MB / self.wall_s),
            ("records", "records/s", self.records / self.wall_s),
        ]
        for what, times in self.times_ns.items():
            ordered = sorted(times)
            rows += [(f"{what}, p{percent:g}", "ms", percentile(ordered, percent) / 1e6) for percent in PERCENTS]
            rows.append((f"{what}, max", "ms", ordered[-1] / 1e6))
        operations = max(len(it) for it in self.times_ns.values())
        if self.cpu_s:
            rows.append(("CPU of the nodes", "s/GB", self.cpu_s * GB / self.bytes_count))
            rows.append(("CPU of the nodes", "µs a request", self.cpu_s * 1e6 / operations))
            rows.append(("resident memory of the nodes", "MB", self.resident_mb))
        if self.limit is not None:
            bare = self.limit.speed.median
            rows.append((self.limit.case.name, "MB/s", bare))
            rows.append(("throughput beside that limit", "ratio", rows[0][2] / bare))
        return rows


@contextmanager
def timed(target: Target, run: Run) -> Iterator[None]:
    """Measure the time and the CPU time of what happens inside."""
    begun_s, cpu_s = time.monotonic(), target.cpu_s()
    yield
    run.wall_s, run.cpu_s = time.monotonic() - begun_s, target.cpu_s() - cpu_s
    run.resident_mb = sum(it.resident_mb() for it in target.nodes)


def limit_of(case: Case) -> Result:
    """Measure a physical limit."""
    return measure([case], repeats=3)[case.name]


# Produce --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What a producer sends."""

    partitions: int
    record_bytes: int
    batch_bytes: int
    acks: str
    in_flight: int
    rate_mb: float  # MB/s over all partitions; 0 is as fast as it goes

    @property
    def batch_records(self) -> int:
        """The number of records of a batch."""
        return max(self.batch_bytes // self.record_bytes, 1)

    def requests(self, topic: str, partition: int) -> MakeRequest:
        """Return a function that makes the same request each time, with a batch that is built once."""
        builder = BatchBuilder()
        for _ in range(self.batch_records):
            builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=os.urandom(self.record_bytes))
        made = request_of(topic, partition, bytes(builder.build()), ACKS[self.acks])
        return lambda _due_ns: made

    def pause_ns(self) -> int:
        """The time between two batches of one partition; 0 is none."""
        return round(self.batch_records * self.record_bytes * self.partitions * 1e9 / (self.rate_mb * MB or 1e99))


def request_of(topic: str, partition: int, batch: bytes, acks: int) -> ProduceRequest:
    """A Produce of one batch."""
    data = [PartitionProduceData(index=partition, records=batch)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=_ANSWER_MS_MAX, topic_data=topics)


class Pipeline(threading.Thread):
    """A connection to the leader of a partition that keeps several requests in flight."""

    def __init__(
        self, client: Client, topic: str, partition: int, make: MakeRequest, *, in_flight: int, pause_ns: int
    ) -> None:
        super().__init__(daemon=True)
        self._client = client.twin()
        self._link = self._client.link(self._client.leader(topic, partition))
        self._make, self._in_flight, self._pause_ns = make, in_flight, pause_ns
        self._due_ns: dict[int, int] = {}
        self.is_over = threading.Event()
        self.times_ns: list[int] = []
        self.error: ClientError | None = None

    def run(self) -> None:
        """Send until `end` is called, then wait for the last answers."""
        try:
            due_ns = time.monotonic_ns()
            while not self.is_over.is_set():
                left_ns = due_ns - time.monotonic_ns()
                if len(self._due_ns) >= self._in_flight:
                    self._take(_ANSWER_MS_MAX)
                elif left_ns > 0:
                    self._idle(left_ns)
                else:
                    self._send(due_ns)
                    # With a rate, the time of a request is counted from when it was due, even if it is sent late.
                    due_ns = due_ns + self._pause_ns if self._pause_ns else time.monotonic_ns()
            while self._due_ns:
                self._take(_ANSWER_MS_MAX)
        except ClientError as error:
            self.error = error
        finally:
            self._client.close()

    def _idle(self, left_ns: int) -> None:
        """Wait until the next request is due; take answers meanwhile."""
        if not self._due_ns:
            self.is_over.wait(left_ns / 1e9)
            return
        with suppress(RequestTimedOut):
            self._take(left_ns / 1e6)

    def _send(self, due_ns: int) -> None:
        deadline_ms = precise_ms() + _ANSWER_MS_MAX
        sent = self._link.send(self._make(due_ns), deadline_ms=deadline_ms, version_max=_BY_NAME_MAX)
        self._due_ns[sent] = due_ns

    def _take(self, wait_ms: float) -> None:
        for sent, response in self._link.receive(precise_ms() + wait_ms):
            code = ErrorCode(response.responses[0].partition_responses[0].error_code)
            if code is not ErrorCode.NONE:
                raise ClientError(f"a Produce was refused: {code.name}")
            self.times_ns.append(time.monotonic_ns() - self._due_ns.pop(sent))

    def end(self) -> list[int]:
        """Stop, wait for the last answers, and return the times of all requests."""
        self.is_over.set()
        self.join()
        if self.error is not None:
            raise self.error
        return self.times_ns


def produce(context: Context, target: Target, load: Load, seconds: float) -> Run:
    """Write for some seconds, with one connection for each partition."""
    run = Run()
    with new_topic(target.client, load.partitions) as topic:
        times_ns = _write(target, run, topic, load, seconds)
    run.times_ns["request"] = times_ns
    file = limits.scratch_file(context, "limit")
    run.limit = limit_of(network.receive_append(context, file, _LIMIT_BYTES, load.batch_bytes))
    return run


def _write(target: Target, run: Run, topic: str, load: Load, seconds: float) -> list[int]:
    """Fill a topic for some seconds; return the times of the requests."""
    pipelines = [
        Pipeline(target.client, topic, it, load.requests(topic, it), in_flight=load.in_flight, pause_ns=load.pause_ns())
        for it in range(load.partitions)
    ]
    with timed(target, run):
        for pipeline in pipelines:
            pipeline.start()
        pipelines[0].is_over.wait(seconds)
        for pipeline in pipelines:
            pipeline.is_over.set()
        times_ns = [it for pipeline in pipelines for it in pipeline.end()]
    run.records = len(times_ns) * load.batch_records
    run.bytes_count = run.records * load.record_bytes
    return times_ns


# Consume --------------------------------------------------------------------------------------------------------------


def consume(context: Context, target: Target, load: Load, seconds: float) -> Run:
    """Write for some seconds, then read all of it from the start; only the reading counts."""
    run = Run()
    with new_topic(target.client, load.partitions) as topic:
        _write(target, run, topic, load, seconds)
        times_ns: list[int] = []
        with Consumer(target.client, offset_reset=OffsetReset.EARLIEST, check_crcs=False) as consumer:
            consumer.assign_topic(topic)
            with timed(target, run):
                left = run.records
                while left > 0:
                    begun_ns = time.monotonic_ns()
                    fetched = consumer.poll()
                    times_ns.append(time.monotonic_ns() - begun_ns)
                    left -= sum(it.next_offset - it.fetch_offset for it in fetched)
    run.times_ns["poll"] = times_ns
    file = limits.scratch_file(context, "limit", _LIMIT_BYTES)
    run.limit = limit_of(network.read_send(context, file, _LIMIT_BYTES))
    return run


# Latency --------------------------------------------------------------------------------------------------------------


def latency(target: Target, *, record_bytes: int, acks: str, rate: float, seconds: float) -> Run:
    """Send one record at a time at a rate, and time each until it is acknowledged and until a consumer has it."""
    run = Run()

    def stamped(due_ns: int) -> ProduceRequest:
        builder = BatchBuilder()
        padding = bytes(max(record_bytes - _STAMP.size, 0))
        builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=_STAMP.pack(due_ns) + padding)
        return request_of(topic, 0, bytes(builder.build()), ACKS[acks])

    with new_topic(target.client, 1) as topic, Consumer(target.client, offset_reset=OffsetReset.EARLIEST) as consumer:
        consumer.assign_topic(topic)
        consumer.poll(timeout_ms=0)
        sender = Pipeline(target.client, topic, 0, stamped, in_flight=1_000, pause_ns=round(1e9 / rate))
        received_ns: list[int] = []

        def receive() -> None:
            for fetched in consumer.poll(timeout_ms=100):
                now_ns = time.monotonic_ns()
                received_ns.extend(now_ns - _STAMP.unpack_from(it.value or b"")[0] for it in fetched)

        with timed(target, run):
            sender.start()
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s and sender.is_alive():
                receive()
            acked_ns = sender.end()
            while len(received_ns) < len(acked_ns):
                receive()
    run.records = len(acked_ns)
    run.bytes_count = run.records * max(record_bytes, _STAMP.size)
    run.times_ns = {"acknowledged": acked_ns, "received": received_ns}
    return run
