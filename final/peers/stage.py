"""The brokers of a comparison, and the cases that the same client runs against each of them.

Our nodes and Apache Kafka's have their defaults, except for the settings that a benchmark prints. librdkafka's mock
broker, in C and in the client's own process, shows the most that the client can do: it keeps nothing.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from minibroker.bench import Case, Context, children, kafka, limits, scaled
from minibroker.bench.failover import SETTINGS
from minibroker.bench.launcher import Server
from minibroker.bench.local import LocalCluster
from minibroker.bench.plot import OURS
from minibroker.bench.watching import until
from minibroker.clients.admin import NewTopic, create_topics, delete_topics, describe_topics, list_offsets
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.tables.list_offsets import LATEST_TIMESTAMP
from peers.load import Load, Rounds

MOCK = "mock broker"
SIZE = 3
_PRIMING = 20
_WARM_BYTES_MAX = 2_000_000_000
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Work:
    """What the client does in one round."""

    records: int
    bytes: int
    partitions: int = 1
    rate: int = 0  # records a second; 0 is as fast as it goes
    window: int = 0  # records under way at most; 0 is no limit
    groups: int = 0  # consumer groups that read along
    configs: Mapping[str, str] = field(default_factory=dict)  # of the topic

    def words(self, topic: str) -> list[str | int]:
        """The command of the load program."""
        common: list[str | int] = [topic, self.partitions, self.records, self.bytes, self.rate]
        return ["flow", *common] if self.groups else ["produce", *common, self.window]


class Peer:
    """A broker of one node or of three, with a client that manages its topics."""

    def __init__(self, context: Context, name: str, bootstrap: str, nodes: Sequence[Server]) -> None:
        self.name = name
        self.nodes = nodes
        self.bootstrap = bootstrap
        self._client = Client(bootstrap)
        context.on_close(self._client.close)

    def cpu_s(self) -> float:
        """The CPU time of all nodes."""
        return sum(node.cpu_s() for node in self.nodes)

    def resident_mb(self) -> float:
        """The memory of all nodes."""
        return sum(node.resident_mb() for node in self.nodes)

    def create(self, partitions: int, configs: Mapping[str, str]) -> str:
        """Create a topic with a new name, as many replicas as nodes, all in sync and known to all nodes."""
        topic = f"topic-{next(_numbers)}"
        create_topics(self._client, [NewTopic(topic, partitions, len(self.nodes), configs=configs)])
        for node in self.nodes:
            with Client(node.address) as client:
                until(partial(self._is_whole, client, topic), f"{topic} has all its replicas")
        return topic

    def _is_whole(self, client: Client, topic: str) -> bool:
        found = describe_topics(client).get(topic)
        return found is not None and all(len(it.isr) == len(self.nodes) for it in found.partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic and its files."""
        delete_topics(self._client, [topic])

    def records_in(self, topic: str, partitions: int) -> int:
        """How many records the topic has."""
        ends = list_offsets(self._client, {TopicPartition(topic, it): LATEST_TIMESTAMP for it in range(partitions)})
        return sum(it.offset for it in ends.values())


def one_node(context: Context, *settings: str) -> tuple[list[Peer], str]:
    """Our node, and one of Apache Kafka if it is at hand; and a sentence about their settings."""
    return _beside(context, our_node(context, *settings), settings, size=1)


def our_node(context: Context, *settings: str, name: str = OURS) -> Peer:
    """A node of ours."""
    # A comma would separate two directories.
    node = children.serve(context, *settings, name=f"data of {name}".replace(",", ""))
    return Peer(context, name, node.address, [node])


def three_nodes(context: Context) -> tuple[list[Peer], str]:
    """Our three nodes, and three of Apache Kafka if it is at hand; and a sentence about their settings."""
    cluster = context.cleanup.enter_context(LocalCluster.within(context, *SETTINGS))
    ours = Peer(context, OURS, cluster.bootstrap, list(cluster.nodes.values()))
    return _beside(context, ours, SETTINGS, size=SIZE)


def _beside(context: Context, ours: Peer, settings: Sequence[str], *, size: int) -> tuple[list[Peer], str]:
    other = kafka.beside(context, *settings, size=size)
    told = f"minibroker: {', '.join(settings) or 'defaults'}. {other.note}"
    if other.cluster is None:
        return [ours], told
    return [Peer(context, kafka.NAME, other.cluster.bootstrap, list(other.cluster.nodes.values())), ours], told


# Cases ----------------------------------------------------------------------------------------------------------------


def case(context: Context, peer: Peer, work: Work, *settings: str, name: str = "", **more: Any) -> tuple[Case, Rounds]:
    """The work of a load program against a broker, each round into a new topic; and what it reports."""
    load = Load(context, f"bootstrap.servers={peer.bootstrap}", *settings)
    topics: list[str] = []
    rounds = Rounds()

    def begin() -> None:
        if topics:
            peer.delete(topics.pop())
        topics.append(peer.create(work.partitions, work.configs))
        # The client connects to the leaders before the measurement, or its groups have their partitions.
        if work.groups:
            load.run("join", topics[0], work.groups, work.records)
        else:
            load.run("produce", topics[0], work.partitions, _PRIMING, work.bytes, 0, 0)
        # A round that writes more than this deletes old segments, and uses their memory again.
        limits.warm_memory(context, min(work.records * work.bytes * len(peer.nodes), _WARM_BYTES_MAX))

    def run() -> None:
        rounds.reports.append(load.run(*work.words(topics[0])))

    def found() -> int:
        return peer.records_in(topics[0], work.partitions)

    def check() -> None:
        if work.groups:
            load.run("leave")
        # A client that lost records would look fast. Old segments may be gone, but offsets still count them.
        # With acks=0 the client does not wait, so the last records may still be on their way.
        expected = work.records + (0 if work.groups else _PRIMING)
        until(lambda: found() >= expected, f"{peer.name} has all {expected} records that were produced")
        assert found() == expected, f"{peer.name}: {expected} records were produced, the topic has {found()}"

    # A JVM compiles code that runs often, so there is some work before the first round, too.
    if not work.groups:
        begin()
        count = scaled(full=20_000 if work.window else 200_000, quick=0)
        load.run("produce", topics[0], work.partitions, count, work.bytes, 0, work.window)
    made = Case(
        name or peer.name,
        run,
        bytes_count=work.records * work.bytes,
        operations_count=work.records,
        series=peer.name,
        before=begin,
        after=check,
        cpu_s=peer.cpu_s,
        wall_s=rounds.last_s,
        **more,
    )
    return made, rounds


def mock_case(context: Context, work: Work, *settings: str, name: str = MOCK, **more: Any) -> tuple[Case, Rounds]:
    """The same work with librdkafka's mock broker; the CPU time is that of broker and client."""
    load = Load(context, "test.mock.num.brokers=1", *settings)
    rounds = Rounds()
    load.run("produce", "mock", work.partitions, _PRIMING, work.bytes, 0, 0)

    def run() -> None:
        rounds.reports.append(load.run(*work.words("mock")))

    bytes_count = work.records * work.bytes
    return Case(
        name, run, bytes_count, work.records, series=MOCK, cpu_s=load.cpu_s, wall_s=rounds.last_s, **more
    ), rounds
