"""How long writes pause when a leader is killed, paused or stopped: three real nodes with default settings.

The pause is the longest time without an acknowledgement of a partition that the node led. A prober with
short timeouts shows the pause of the cluster; an idempotent producer of librdkafka adds its own timeouts. They are
compared with the latency of one record of the same prober without a fault.
"""

from collections.abc import Callable
from functools import cache

from minibroker.bench import Benchmark, Case, Context, Fact, LineChart, Results, scaled
from minibroker.bench.failover import (
    LEADER_FAULTS,
    REPLICAS,
    SETTINGS,
    Fault,
    MakeSender,
    await_ack,
    measure,
    quick_settings,
    sender_at_hand,
)
from minibroker.bench.local import LocalCluster
from minibroker.bench.outages import Outages, distribution
from minibroker.clients.blocking import Client

IS_LONG = True

Find = Callable[[], list[list[Outages]]]
"""Measures at the first call."""

CALM = "one record, acks=all, nothing happens"
CALM_TOPIC = "calm"
CALM_PARTITION = 0


def sender() -> MakeSender | None:
    """The stock client; its own timeouts are too long for a quick run."""
    return scaled(full=sender_at_hand(), quick=None)


def calm_case(context: Context, cluster: LocalCluster) -> Case:
    count = scaled(full=200, quick=10)
    cluster.create(CALM_TOPIC, REPLICAS, min_insync_replicas=2)
    cluster.await_isr(CALM_TOPIC, *REPLICAS[CALM_PARTITION])
    client = Client(cluster.bootstrap)
    context.on_close(client.close)

    def run() -> None:
        for _ in range(count):
            await_ack(client, CALM_TOPIC, CALM_PARTITION)

    return Case(CALM, run, operations_count=count)


def facts_of(fault: Fault, number: int, found: Find) -> list[Fact]:
    """The pauses that the prober saw, of which the longest is bounded, and those of the stock client."""
    facts = [
        Fact(f"{fault.name}: pause, median", "ms", lambda: float(found()[number][0].at(50))),
        Fact(f"{fault.name}: pause, 99 of 100", "ms", lambda: float(found()[number][0].at(99))),
        Fact(f"{fault.name}: pause, longest", "ms", lambda: float(found()[number][0].at(100)), at_most=fault.target_ms),
    ]
    if sender():
        facts += [
            Fact(f"{fault.name}, librdkafka: pause, median", "ms", lambda: float(found()[number][1].at(50))),
            Fact(f"{fault.name}, librdkafka: pause, longest", "ms", lambda: float(found()[number][1].at(100))),
        ]
    return facts


def benchmark(context: Context) -> Benchmark:
    rounds = scaled(full=10, quick=1)
    cluster = context.cleanup.enter_context(LocalCluster.within(context, *SETTINGS, *quick_settings()))

    @cache
    def found() -> list[list[Outages]]:
        return measure(
            cluster,
            LEADER_FAULTS,
            rounds,
            say=lambda fault, number, _: context.progress(number, rounds, fault.name),
            make_sender=sender(),
        )

    def figure(_results: Results) -> LineChart:
        return distribution(
            [each for outages in found() for each in outages],
            title="The leader of a partition fails or stops",
            x_label="milliseconds without an acknowledgement",
            y_label="share of the rounds",
        )

    return Benchmark(
        "Failover of three nodes",
        [calm_case(context, cluster)],
        metric="ms_per_op",
        columns=["ms_per_op"],
        figure=figure,
        facts=[fact for number, fault in enumerate(LEADER_FAULTS) for fact in facts_of(fault, number, found)],
        note=f"Pauses of {rounds} rounds of each fault: kill -9, SIGSTOP, SIGTERM of a leader, not the controller.",
    )
