"""Three nodes, three replicas, acks=all: one request under way, a steady stream, a flood, and the way to a consumer."""

from functools import partial

from minibroker.bench import Bar, BarChart, BarRow, Benchmark, Case, Context, Fact, kafka, scaled
from minibroker.bench.plot import OURS
from peers.load import Rounds
from peers.stage import Work, case, three_nodes

ONE = ("acks=all", "linger.ms=0", "batch.num.messages=1")
STEADY = ("acks=all", "linger.ms=1")
FLOOD = {
    "acks=all": ("acks=all", "queue.buffering.max.messages=1000000", "delivery.report.only.error=true"),
    "idempotent": (
        "enable.idempotence=true",
        "queue.buffering.max.messages=1000000",
        "delivery.report.only.error=true",
    ),
}
ACKS_P99_MS_MAX = {"0": 1, "1": 5, "all": 15}
"""The latencies that the course's sources name for one record."""
STEADY_RATE = 20_000
STEADY_S = 10
OF_KAFKA_MIN = {"acks=all": 3.5, "idempotent": 3.0}


def benchmark_one(context: Context) -> Benchmark:
    peers, note = three_nodes(context)
    work = Work(scaled(full=2_000, quick=32), 100, window=1)
    made = {peer.name: case(context, peer, work, *ONE) for peer in peers}
    rounds = {name: it for name, (_case, it) in made.items()}
    return Benchmark(
        "One record of 100 B a request, three nodes, acks=all, one in flight",
        [it for it, _rounds in made.values()],
        bars=[Bar(OURS, "cpu_us_per_op", at_most=400)],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op"],
        facts=[*percentiles(rounds), *ratio_facts("p50", rounds, at_most=0.9)],
        note=f"CPU is that of all nodes. One partition; client: {', '.join(ONE)}. {note}",
    )


def benchmark_acks(context: Context) -> Benchmark:
    peers, note = three_nodes(context)
    work = Work(scaled(full=2_000, quick=32), 100, window=1)
    groups: dict[str, dict[str, Rounds]] = {}
    cases: list[Case] = []
    for acks in ACKS_P99_MS_MAX:
        settings = (f"acks={acks}", *ONE[1:])
        made = {it.name: case(context, it, work, *settings, name=f"acks={acks}, {it.name}") for it in peers}
        cases += [each for each, _rounds in made.values()]
        groups[f"acks={acks}"] = {name: rounds for name, (_case, rounds) in made.items()}
    return Benchmark(
        "One record of 100 B a request, three nodes, by acks",
        cases,
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op"],
        figure=lambda _results: latency_chart("Latency by acks, three nodes, one record at a time", groups),
        facts=[
            Fact(f"{it.name}, acks={acks}", it.unit, it.find, at_most=it.at_most)
            for acks, most in ACKS_P99_MS_MAX.items()
            for it in percentiles(groups[f"acks={acks}"], p99_ms_max=most)
        ],
        note=f"CPU is that of all nodes. One partition; client: {', '.join(ONE[1:])}. {note}",
    )


def benchmark_steady(context: Context) -> Benchmark:
    work = steady_work()
    peers, note = three_nodes(context)
    made = {peer.name: case(context, peer, work, *STEADY) for peer in peers}
    rounds = {name: it for name, (_case, it) in made.items()}
    return Benchmark(
        "A steady 20 MB/s of 1 KB records to three nodes, acks=all",
        [it for it, _rounds in made.values()],
        figure=lambda _results: latency_chart("Steady 20 MB/s, three nodes, acks=all", {"": rounds}),
        columns=["cpu_us_per_op"],
        facts=[*percentiles(rounds, p99_ms_max=10), *ratio_facts("p99", rounds)],
        note=steady_note(note),
        repeats_max=3,
    )


def benchmark_end_to_end(context: Context) -> Benchmark:
    work = steady_work(groups=1)
    peers, note = three_nodes(context)
    made = {peer.name: case(context, peer, work, *STEADY) for peer in peers}
    rounds = {name: it for name, (_case, it) in made.items()}
    return Benchmark(
        "From producer to consumer: 20 MB/s of 1 KB records, three nodes, acks=all",
        [it for it, _rounds in made.values()],
        figure=lambda _results: latency_chart("From producer to consumer at 20 MB/s", {"": rounds}, prefix="read_"),
        columns=["cpu_us_per_op"],
        facts=[*percentiles(rounds, prefix="read_", p99_ms_max=15), *percentiles(rounds)],
        note=f"read_ is the time from producer to consumer, the others are those of the producer. {steady_note(note)}",
        repeats_max=3,
    )


def benchmark_flood(context: Context) -> Benchmark:
    peers, note = three_nodes(context)
    work = Work(scaled(full=150_000, quick=1_000), 1000, partitions=4)
    cases: list[Case] = []
    facts: list[Fact] = []
    for kind, settings in FLOOD.items():
        names = {peer.name: f"{kind}, {peer.name}" for peer in peers}
        more = {"group": kind}
        made = {it.name: case(context, it, work, *settings, name=names[it.name], **more) for it in peers}
        cases += [each for each, _rounds in made.values()]
        ours = made[OURS][1]
        facts.append(Fact(f"spread, {kind}", "%", partial(ours.spread_percent, "wall_us"), at_most=20))
    return Benchmark(
        "Produce 1 KB records to three nodes as fast as the client can",
        cases,
        bars=[
            Bar(f"{kind}, {OURS}", "ratio", at_least=least, against=f"{kind}, {kafka.NAME}")
            for kind, least in OF_KAFKA_MIN.items()
            if len(peers) > 1
        ],
        facts=facts,
        note=f"CPU is that of all nodes. Four partitions; client: {', '.join(FLOOD['acks=all'][1:])}. {note}",
    )


# The facts of a row ---------------------------------------------------------------------------------------------------


def steady_work(groups: int = 0) -> Work:
    return Work(scaled(full=STEADY_RATE * STEADY_S, quick=2_000), 1000, partitions=4, rate=STEADY_RATE, groups=groups)


def steady_note(note: str) -> str:
    return f"CPU is that of all nodes. Four partitions; client: {', '.join(STEADY)}. {note}"


def percentiles(rounds: dict[str, Rounds], *, prefix: str = "", p99_ms_max: float | None = None) -> list[Fact]:
    """The latencies of all; the bound is on our p99."""
    return [
        Fact(
            f"{prefix}{percent}, {name}",
            "ms",
            partial(it.ms, f"{prefix}{percent}_us"),
            at_most=p99_ms_max if (name, percent) == (OURS, "p99") else None,
        )
        for name, it in rounds.items()
        for percent in ("p50", "p99", "max")
    ]


def ratio_facts(percent: str, rounds: dict[str, Rounds], *, at_most: float | None = None) -> list[Fact]:
    """Our percentile beside Kafka's, if Kafka is at hand."""
    if kafka.NAME not in rounds:
        return []
    ours, theirs = rounds[OURS], rounds[kafka.NAME]
    return [
        Fact(f"{percent} beside {kafka.NAME}", "ratio", lambda: ours.ratio(theirs, f"{percent}_us"), at_most=at_most)
    ]


def latency_chart(title: str, groups: dict[str, dict[str, Rounds]], *, prefix: str = "") -> BarChart:
    """Bars of p50 and p99 for each broker."""
    rows = [
        BarRow(f"{percent}, {name}", *it.ms(f"{prefix}{percent}_us"), series=name, group=group)
        for group, rounds in groups.items()
        for percent in ("p50", "p99")
        for name, it in rounds.items()
    ]
    return BarChart(title, "milliseconds, logarithmic, median and quartiles of the rounds", rows, log=True)
