"""How long writes stop when a leader of three nodes is killed or paused, beside Apache Kafka with both time-outs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from minibroker.bench import Benchmark, Context, Fact, LineChart, Results, kafka, scaled
from minibroker.bench.context import open_context
from minibroker.bench.failover import KILLED, PAUSED, SETTINGS, Fault, measure, quick_settings
from minibroker.bench.local import LocalCluster
from minibroker.bench.outages import Outages, distribution
from minibroker.bench.plot import OURS

IS_LONG = True
ROUNDS = 10
TIMEOUTS = (
    "broker.session.timeout.ms=2000",
    "broker.heartbeat.interval.ms=500",
    "controller.quorum.fetch.timeout.ms=1000",
    "controller.quorum.election.timeout.ms=500",
)
"""Our defaults, for Kafka."""
DEFAULTS, ALIKE = f"{kafka.NAME}, defaults", f"{kafka.NAME}, our time-outs"
OF_KAFKA_MAX = {DEFAULTS: 0.3, ALIKE: 1.0}

Start = Callable[[Context], Any]
"""Starts a cluster that ends with the context."""


def benchmark_killed(context: Context) -> Benchmark:
    return failover(context, KILLED)


def benchmark_paused(context: Context) -> Benchmark:
    return failover(context, PAUSED)


def failover(context: Context, fault: Fault) -> Benchmark:
    rounds = scaled(full=ROUNDS, quick=1)

    @cache
    def found() -> dict[str, Outages]:
        return {name: play(context, fault, name, start, rounds) for name, start in starters().items()}

    def figure(_results: Results) -> LineChart:
        return distribution(
            list(found().values()),
            title=f"Three nodes, {fault.name}: the time until the next write is acknowledged",
            x_label="milliseconds without an acknowledgement",
            y_label="share of the rounds",
        )

    return Benchmark(
        f"Three nodes, {fault.name}",
        figure=figure,
        facts=facts_of(found),
        note=f"{rounds} rounds each; the leader is not the controller; acks=all. {', '.join(SETTINGS)}. "
        f"Our time-outs, for {kafka.NAME}: {', '.join(TIMEOUTS)}.",
    )


def starters() -> dict[str, Start]:
    """How each cluster is started."""
    found: dict[str, Start] = {OURS: lambda own: LocalCluster.within(own, *SETTINGS, *quick_settings())}
    if kafka.is_at_hand():
        found[ALIKE] = lambda own: kafka.beside(own, *SETTINGS, *TIMEOUTS, size=3).cluster
        found[DEFAULTS] = lambda own: kafka.beside(own, *SETTINGS, size=3).cluster
    return found


def play(context: Context, fault: Fault, name: str, start: Start, rounds: int) -> Outages:
    """Play all rounds on a cluster that runs alone: with nine nodes at once, time-outs would expire by themselves."""
    with open_context(directory=context.directory) as own:
        cluster = start(own)
        found = measure(
            own.cleanup.enter_context(cluster) if name == OURS else cluster,
            [fault],
            rounds,
            say=lambda _fault, number, _round: context.progress(number, rounds, name),
        )
    return replace(found[0][0], name=name)


def facts_of(found: Callable[[], dict[str, Outages]]) -> list[Fact]:
    """The pauses of each cluster, and ours beside Kafka's."""

    def pause_ms(name: str, percent: float) -> float:
        return float(found()[name].at(percent))

    def beside(name: str) -> float:
        return pause_ms(OURS, 50) / pause_ms(name, 50)

    return [
        *(Fact(f"median, {name}", "ms", partial(pause_ms, name, 50)) for name in starters()),
        *(Fact(f"longest, {name}", "ms", partial(pause_ms, name, 100)) for name in starters()),
        *(
            Fact(f"median beside {name}", "ratio", partial(beside, name), at_most=most)
            for name, most in OF_KAFKA_MAX.items()
            if name in starters()
        ),
    ]
