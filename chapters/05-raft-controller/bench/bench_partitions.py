"""The cost of many partitions on three real nodes: creation, failover, start, and an idle cluster.

Every partition has three replicas and a record. A step is over when every live node reports it for every partition. The
cost for a client is one Metadata response that names them all.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from minibroker.bench import Benchmark, Case, Context, Fact, Line, LineChart, Point, Results, scaled
from minibroker.bench.context import quick_note
from minibroker.bench.failover import REPLICAS, SETTINGS, quick_settings
from minibroker.bench.local import LocalCluster
from minibroker.bench.units import tick_text
from minibroker.bench.watching import until
from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.wire.tables.metadata import MetadataResponsePartition as Partition

IS_LONG = True

Rule = Callable[[Partition], bool]

TOPIC = "many"
PATIENCE_S = 180.0
ASK_MS_MAX = 10_000

CREATED = "created, all in sync"
WRITTEN = "a record in each is acknowledged"
KILLED = "a node is killed: others lead its partitions"
RETURNED = "it is back, all in sync"
STOPPED = "a node is stopped cleanly: others lead"
STARTED = "all were killed and start, all in sync"
STEPS = (CREATED, WRITTEN, KILLED, RETURNED, STOPPED, STARTED)
TARGETS_S = {KILLED: 3.0, STARTED: 10.0}
"""The bounds for the largest number of partitions."""


class Idle(NamedTuple):
    """The resources of an idle node, on average of the three."""

    core_percent: float
    resident_mb: float


class Steps:
    """One cluster with one topic of `partitions` partitions, and the time of each step."""

    def __init__(self, context: Context, partitions: int) -> None:
        self.partitions = partitions
        cluster = LocalCluster.within(context, *SETTINGS, *quick_settings(), name=f"cluster-{partitions}")
        self.cluster = context.cleanup.enter_context(cluster)
        self.took_s: dict[str, float] = {}
        self._timed(CREATED, self._create, is_in_sync)
        self._timed(WRITTEN, self._write, is_in_sync)

    def _timed(self, step: str, work: Callable[[], object], rule: Rule) -> None:
        begun_s = time.monotonic()
        work()
        for number in self.cluster.living():
            until(lambda n=number: self._is_all(n, rule), f"{step}, says node {number}", seconds=PATIENCE_S)  # type: ignore[misc]
        self.took_s[step] = time.monotonic() - begun_s

    def _is_all(self, number: int, rule: Rule) -> bool:
        try:
            with Client(self.cluster[number].address, timeout_ms=ASK_MS_MAX) as client:
                found = client.metadata([TOPIC]).topics[0].partitions
        except ClientError:
            return False
        return len(found) == self.partitions and all(map(rule, found))

    def _create(self) -> None:
        self.cluster.create(TOPIC, [REPLICAS[it % len(REPLICAS)] for it in range(self.partitions)])

    def _write(self) -> None:
        with Producer(Client(self.cluster.bootstrap)) as producer:
            deliveries = [producer.send(TOPIC, b"record", partition=it) for it in range(self.partitions)]
            producer.flush()
        assert all(it.is_done and it.error is None for it in deliveries)

    @property
    def text(self) -> str:
        """The number of partitions in words."""
        return f"{self.partitions:,} partitions"

    @cached_property
    def idle(self) -> Idle:
        """The resources of the idle nodes."""
        wait_s = scaled(full=10.0, quick=0.5)
        nodes = self.cluster.nodes.values()
        begun_s = sum(node.cpu_s() for node in nodes)
        time.sleep(wait_s)
        used_s = sum(node.cpu_s() for node in nodes) - begun_s
        return Idle(100 * used_s / wait_s / len(nodes), sum(node.resident_mb() for node in nodes) / len(nodes))

    @cached_property
    def all_s(self) -> dict[str, float]:
        """The time of every step; the steps run once."""
        assert self.idle  # before anything happens to the nodes
        victim = self.cluster[self.cluster.others(self.cluster.controller())[0]]
        is_led_elsewhere: Rule = lambda it: it.leader_id not in (victim.number, -1)  # noqa: E731
        self._timed(KILLED, victim.kill, is_led_elsewhere)
        self._timed(RETURNED, victim.restart, is_in_sync)
        self._timed(STOPPED, victim.stop, is_led_elsewhere)
        for node in self.cluster.nodes.values():
            node.kill()
        self._timed(STARTED, self.cluster.repair, is_in_sync)
        return self.took_s


def is_in_sync(partition: Partition) -> bool:
    return sorted(partition.isr_nodes) == sorted(partition.replica_nodes)


def metadata_case(context: Context, steps: Steps) -> Case:
    """The request of a client when it starts, and after every failover."""
    count = scaled(full=50, quick=2)
    client = Client(steps.cluster.bootstrap)
    context.on_close(client.close)

    def run() -> None:
        for _ in range(count):
            client.metadata([TOPIC])

    return Case(f"Metadata, {steps.text}", run, operations_count=count)


def facts_of(steps: Steps, *, is_largest: bool) -> list[Fact]:
    """The time of each step, of which two are bounded, and the cost of an idle cluster."""
    times = [
        Fact(
            f"{steps.text}: {step}",
            "s",
            lambda step=step: steps.all_s[step],  # type: ignore[misc]
            at_most=TARGETS_S.get(step) if is_largest else None,
        )
        for step in STEPS
    ]
    return [
        *times,
        Fact(f"{steps.text}: a node that does nothing", "% of a core", lambda: steps.idle.core_percent),
        Fact(f"{steps.text}: a node's memory", "MB", lambda: steps.idle.resident_mb),
    ]


def alone(context: Context, partitions: int) -> Steps:
    """Run all steps for one number of partitions, and stop the cluster before the next one."""
    steps = Steps(context, partitions)
    assert steps.all_s
    steps.cluster.close()
    return steps


def benchmark(context: Context) -> Benchmark:
    sizes = scaled(full=(10, 100, 1000), quick=(2, 6))
    trials = [alone(context, it) for it in sizes[:-1]] + [Steps(context, sizes[-1])]

    def figure(_results: Results) -> LineChart:
        return LineChart(
            title="Partitions of three replicas on three nodes",
            x_label="partitions, logarithmic",
            y_label="seconds until all nodes see it, logarithmic",
            lines=[Line(step, [Point(it.partitions, it.all_s[step]) for it in trials]) for step in STEPS],
            log_x=True,
            log_y=True,
            x_ticks=[(it, tick_text(it)) for it in sizes],
            note=quick_note(),
        )

    return Benchmark(
        "Many partitions",
        [metadata_case(context, trials[-1])],
        metric="ms_per_op",
        columns=["ms_per_op"],
        figure=figure,
        facts=[fact for it in trials for fact in facts_of(it, is_largest=it is trials[-1])],
        note="Each partition has three replicas and a record; a node that is killed leads a third of them.",
    )
