"""Commits per second of one coordinator on three nodes: a hundred clients, each with one commit under way.

`__consumer_offsets` has one partition here, so one node is the coordinator of all groups. A commit is answered when all
in-sync replicas have it. For comparison, the same clients ask the coordinator for committed offsets, which it
answers from memory. Where Apache Kafka is at hand, the same clients ask three nodes of it in turn.
"""

from collections.abc import Callable
from typing import Any

from bench.wires import Crowd, Wire, find_coordinator, framed, no_errors

from minibroker.bench import Bar, Benchmark, Case, Context, kafka, scaled
from minibroker.bench.failover import REPLICAS, SETTINGS
from minibroker.bench.local import Administered, LocalCluster
from minibroker.bench.plot import OURS
from minibroker.groups.tables.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker.metadata.names import GROUP_METADATA_TOPIC
from minibroker.wire.schema import Request
from minibroker.wire.tables.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)

TOPIC = "orders"
VERSION = 9
COMMITTED, FETCHED = "commit, all in sync", "fetch a committed offset"
ONE_COORDINATOR = "offsets.topic.num.partitions=1"
# A machine that is busy with the clients may delay heartbeats. The coordinator must not move because of that.
PATIENCE = "broker.session.timeout.ms=30000"
# The bar: commits per second beside Kafka's.
OF_KAFKA_MIN = 0.7
WARMUPS = 5


def commit_of(number: int) -> Request:
    """A commit of a client that has a group of its own and is no member."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=number, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    return OffsetCommitRequest(group_id=f"group-{number}", topics=topics)


def fetch_of(number: int) -> Request:
    """A fetch of the committed offset."""
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=f"group-{number}", topics=topics)])


QUESTIONS: dict[str, Callable[[int], Request]] = {COMMITTED: commit_of, FETCHED: fetch_of}


def kafkas(name: str) -> str:
    """The name of Kafka's case beside ours."""
    return f"{name}, {kafka.NAME}"


class Stage:
    """A cluster with one coordinator, and its clients."""

    def __init__(self, context: Context, cluster: Administered[Any], series: str) -> None:
        self._series = series
        self._each_count = scaled(full=100, quick=3)
        self.clients_count = scaled(full=100, quick=5)
        cluster.create(TOPIC, REPLICAS[:1])
        self._crowd = crowd = Crowd(context)
        address = crowd.run(find_coordinator(cluster[1].address, "group-0"))
        cluster.await_isr(GROUP_METADATA_TOPIC, 1, 2, 3)
        crowd.connect(address, self.clients_count)
        self._coordinator = next(node for node in cluster.nodes.values() if node.address == address)
        no_errors(crowd.each(lambda number, wire: wire.insist(commit_of(number), VERSION)))

    def case(self, name: str, question: Callable[[int], Request], *, limit: str = "") -> Case:
        """All clients ask this question again and again."""
        requests = [question(it) for it in range(self.clients_count)]
        frames = [framed(it, VERSION) for it in requests]

        async def repeat(number: int, wire: Wire) -> None:
            for _ in range(self._each_count):
                await wire.send(frames[number])

        def check() -> None:
            no_errors(self._crowd.each(lambda number, wire: wire.ask(requests[number], VERSION)))

        # A JVM compiles code that runs often, so the clients ask before the first round, too.
        for _ in range(scaled(full=WARMUPS, quick=0)):
            self._crowd.each(repeat)
        return Case(
            name,
            lambda: self._crowd.each(repeat),
            operations_count=self.clients_count * self._each_count,
            after=check,
            cpu_s=self._coordinator.cpu_s,
            series=self._series,
            limit=limit,
        )


def benchmark(context: Context) -> Benchmark:
    settings = (*SETTINGS, ONE_COORDINATOR, PATIENCE)
    cluster = LocalCluster.within(context, *settings)
    ours = Stage(context, context.cleanup.enter_context(cluster), OURS)
    peer = kafka.beside(context, *settings, size=3)
    theirs = Stage(context, peer.cluster, kafka.NAME) if peer.cluster else None
    cases = []
    for name, question in QUESTIONS.items():
        # A case comes directly after the one that it is compared with.
        cases += [theirs.case(kafkas(name), question)] if theirs else []
        cases += [ours.case(name, question, limit=kafkas(name) if theirs else "")]
    return Benchmark(
        f"Commits of {ours.clients_count} clients on three nodes",
        cases,
        bars=[Bar(COMMITTED, "ratio", at_least=OF_KAFKA_MIN)] if theirs else [],
        metric="ops_per_s",
        columns=["cpu_us_per_op"],
        note=f"One commit under way for each client; CPU time is the coordinator's. {peer.note}",
    )
