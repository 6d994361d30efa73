"""Measures how long writes stop when a node fails: the faults, the watchers and the rounds.

Topics have three partitions, and each node leads one partition of each topic. In every round one node fails, and the
result is the longest time without an acknowledgement for a partition that it led. Two clients measure this time. A
prober with short timeouts shows how long the cluster needs to recover. An idempotent producer of librdkafka, if that is
installed, adds pauses of its own. If the failed node is the active controller, the time until a new controller has
created a topic is measured as well. The lab `failover`, the benchmark of the same name and `minibroker bench failover`
use this module.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Self

from minibroker.bench.background import Background
from minibroker.bench.context import scaled
from minibroker.bench.launcher import Server
from minibroker.bench.local import Administered
from minibroker.bench.outages import Outages, longest_gap_ms
from minibroker.bench.report import Table
from minibroker.bench.sending import StockSender, is_installed
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.log.batch import BatchBuilder
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TARGET_MS = 3000
STOP_TARGET_MS = 500
SETTINGS = ("default.replication.factor=3", "min.insync.replicas=2")
"""The settings that `minibroker up` uses for three nodes."""
REPLICAS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
_SETTLED_ACKS = 20
# A probe that a silent node does not answer ends after this time, so no pause is measured more exactly than this.
_PROBE_MS = 100
_PROBE_PAUSE_S = 0.005
# This timeout is short. Otherwise a client might wait for a silent node for longer than the cluster needs to recover.
CLIENT_TIMEOUT_MS = 1000
_names = itertools.count(1)

Cluster = Administered[Any]
"""Three nodes of ours, or of Apache Kafka."""


def quick_settings() -> tuple[str, ...]:
    """Shorter timeouts for a quick run, in which a silent node is fenced sooner."""
    return scaled(full=(), quick=("broker.session.timeout.ms=1000", "broker.heartbeat.interval.ms=250"))


# Faults ---------------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """The calls that make a node fail and that repair it, and whether the node is the active controller."""

    name: str
    begin: Callable[[Server], object]
    end: Callable[[Server], object]
    is_controller: bool
    target_ms: int = TARGET_MS


KILLED = Fault("leader killed", Server.kill, Server.restart, is_controller=False)
PAUSED = Fault("leader paused", Server.pause, Server.resume, is_controller=False)
STOPPED = Fault("leader stopped", Server.stop, Server.restart, is_controller=False, target_ms=STOP_TARGET_MS)
LEADER_FAULTS = (KILLED, PAUSED, STOPPED)


def of_the_controller(fault: Fault) -> Fault:
    """The same fault, on a node that is also the active controller."""
    return fault._replace(name=fault.name.replace("leader", "leader and controller"), is_controller=True)


FAULTS = (*LEADER_FAULTS, *map(of_the_controller, LEADER_FAULTS))


# The watchers ---------------------------------------------------------------------------------------------------------


class Prober(Background):
    """Writes one record after the other with short timeouts. Any node that answers names the leader."""

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        super().__init__()
        self.acked_s: list[float] = []
        self._where = (topic, partition)
        self._clients = [Client(node.address, timeout_ms=_PROBE_MS) for node in cluster.nodes.values()]

    def __enter__(self) -> Self:
        super().__enter__()
        self.await_acks()
        return self

    def close(self, *, is_well: bool) -> None:  # noqa: ARG002
        """Close the clients."""
        for client in self._clients:
            client.close()

    def run(self) -> None:
        """Write probes; after a failure, ask the next node for the leader."""
        for client in itertools.cycle(self._clients):
            while not self.is_over.wait(_PROBE_PAUSE_S) and is_acked(client, *self._where):
                self.acked_s.append(time.monotonic())
            if self.is_over.is_set():
                return

    def await_acks(self, count: int = _SETTLED_ACKS) -> None:
        """Wait for `count` more acknowledgements."""
        goal = len(self.acked_s) + count
        until(lambda: len(self.acked_s) >= goal, "probes are acknowledged", seconds=40)


def is_acked(client: Client, topic: str, partition: int) -> bool:
    """Write one record with acks=all to the leader that the client's node names; tell whether it was acknowledged."""
    batch = BatchBuilder()
    batch.append(timestamp=0, key=None, value=b"probe")
    data = PartitionProduceData(index=partition, records=bytes(batch.build()))
    request = ProduceRequest(
        acks=-1, timeout_ms=_PROBE_MS, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    try:
        client.core.routes.doubt(topic)
        leader_id = client.leader(topic, partition)
        response = client.send(request, node_id=leader_id, timeout_ms=_PROBE_MS)
        return bool(response.responses[0].partition_responses[0].error_code == ErrorCode.NONE)
    except ClientError:
        return False


def await_ack(client: Client, topic: str, partition: int) -> None:
    """Write records until one is acknowledged. Timeouts are short, so a write can fail on a healthy cluster, too."""
    until(lambda: is_acked(client, topic, partition), f"a record of {topic}-{partition} is acknowledged")


def until_topic_created_ms(cluster: Cluster, left: list[int], begun_s: float) -> int:
    """The time until one of the remaining nodes has created a topic, which needs a new controller."""
    while True:
        for number in left:
            try:
                with Client(cluster[number].address, timeout_ms=500) as client:
                    create_topics(client, [NewTopic(f"decided-{next(_names)}", 1, 1)])
                return round((time.monotonic() - begun_s) * 1000)
            except ClientError:
                time.sleep(0.02)


MakeSender = Callable[[Cluster, str], StockSender]
"""Makes a stock client that writes to the given topic."""


def stock_sender(cluster: Cluster, topic: str) -> StockSender:
    """Make a producer of librdkafka with short timeouts."""
    return StockSender(cluster.bootstrap, topic, partitions=len(REPLICAS), timeout_ms=CLIENT_TIMEOUT_MS)


def sender_at_hand() -> MakeSender | None:
    """The function that makes a stock client; None if confluent-kafka is not installed."""
    return stock_sender if is_installed() else None


# Rounds ---------------------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """The pauses that one fault caused, in milliseconds; a pause that was not measured is -1."""

    cluster_ms: int
    client_ms: int = -1
    decided_ms: int = -1

    def text(self) -> str:
        """The pauses in one line."""
        seen = {
            "the prober": self.cluster_ms,
            "librdkafka": self.client_ms,
            "until a topic is created": self.decided_ms,
        }
        return ", ".join(f"{name} {lasted_ms} ms" for name, lasted_ms in seen.items() if lasted_ms >= 0)


class Stage:
    """A cluster, a topic for the prober, and, if there is a stock client, a second topic that it writes to."""

    def __init__(self, cluster: Cluster, make_sender: MakeSender | None) -> None:
        number = next(_names)
        self._cluster = cluster
        self._topics = [f"probe-{number}"] + ([f"failover-{number}"] if make_sender else [])
        for topic in self._topics:
            cluster.create(topic, REPLICAS, min_insync_replicas=2)
        self._settle()
        self.sender = make_sender(cluster, self._topics[1]) if make_sender else None

    def _settle(self) -> None:
        for topic in self._topics:
            self._cluster.lead_as_preferred(topic, REPLICAS)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Let the client write, if there is one; at the end, wait until every record is acknowledged."""
        with self.sender or nullcontext():
            yield
            if self.sender:
                self.sender.finish()

    def play(self, fault: Fault) -> Round:
        """Play one round: the node fails, writes continue, the node comes back and leads its partitions again."""
        controller = self._cluster.controller()
        victim = controller if fault.is_controller else controller % len(REPLICAS) + 1
        self._await_acks()
        with Prober(self._cluster, self._topics[0], victim - 1) as prober:
            begun_s = time.monotonic()
            fault.begin(self._cluster[victim])
            others = self._cluster.others(victim)
            decided_ms = until_topic_created_ms(self._cluster, others, begun_s) if fault.is_controller else -1
            self._await_acks()
            prober.await_acks()
            ended_s = time.monotonic()
            fault.end(self._cluster[victim])
        self._settle()
        seen = [prober.acked_s, *([self.sender.acked_s[victim - 1]] if self.sender else [])]
        pauses_ms = [longest_gap_ms(times_s, begun_s=begun_s, ended_s=ended_s) for times_s in seen]
        return Round(pauses_ms[0], pauses_ms[1] if self.sender else -1, decided_ms)

    def _await_acks(self) -> None:
        if self.sender:
            self.sender.await_acks(_SETTLED_ACKS)


OnRound = Callable[[Fault, int, Round], None]
"""Called after each round with the fault, the number of the round, and its pauses."""


def measure(
    cluster: Cluster,
    faults: Sequence[Fault],
    rounds: int,
    *,
    say: OnRound = lambda _fault, _number, _round: None,
    make_sender: MakeSender | None = None,
) -> list[list[Outages]]:
    """Play each fault in turn, `rounds` times; return the outages of each fault, as `outages_of` lists them."""
    stage = Stage(cluster, make_sender)
    found: list[list[Round]] = [[] for _ in faults]
    with stage.sending():
        for number in range(1, rounds + 1):
            for fault, costs in zip(faults, found, strict=True):
                costs.append(stage.play(fault))
                say(fault, number, costs[-1])
    return [outages_of(fault, costs) for fault, costs in zip(faults, found, strict=True)]


def outages_of(fault: Fault, costs: Sequence[Round]) -> list[Outages]:
    """The outages of one fault for each watcher that measured: prober, stock client, creation of a topic."""
    seen = {
        fault.name: [it.cluster_ms for it in costs],
        f"{fault.name}, librdkafka": [it.client_ms for it in costs],
        f"{fault.name}, decided": [it.decided_ms for it in costs],
    }
    return [Outages(name, tuple(lasted_ms)) for name, lasted_ms in seen.items() if min(lasted_ms) >= 0]


def table(found: Sequence[Sequence[Outages]]) -> Table:
    """The pauses of each fault, as the prober and as the stock client saw them, as a table."""
    columns = ["fault, seen by", "rounds", "p50, ms", "p99, ms", "max, ms"]
    rows = [
        [each.name, str(len(each.lasted_ms)), f"{each.at(50):,}", f"{each.at(99):,}", f"{max(each.lasted_ms):,}"]
        for fault in found
        for each in fault
    ]
    return Table(columns, rows)
