"""Small requests: one record of 100 B in each Produce, one request under way and 32."""

from dataclasses import replace
from functools import partial

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, kafka, limits, network, scaled
from minibroker.bench.plot import OURS
from peers.load import Rounds
from peers.stage import MOCK, Work, case, mock_case, one_node

SETTINGS = ("acks=1", "linger.ms=0", "batch.num.messages=1", "max.in.flight.requests.per.connection=32")
CPU_US_MAX = {1: 30, 32: 15}
BARE, REQUEST_BYTES = "bare receive + append + send", 260
OF_KAFKA_MAX, OF_MOCK_MAX = 0.9, 1.25


def benchmark(context: Context) -> Benchmark:
    peers, note = one_node(context)
    cases: list[Case] = []
    facts: list[Fact] = []
    for window in CPU_US_MAX:
        work = Work(scaled(full=5_000 if window == 1 else 30_000, quick=64), 100, window=window)
        more = {"group": f"{window} in flight"}
        cases.append(replace(bare(context, work.records, window), group=more["group"]))
        made = {MOCK: mock_case(context, work, *SETTINGS, name=named(MOCK, window), **more)}
        made |= {it.name: case(context, it, work, *SETTINGS, name=named(it.name, window), **more) for it in peers}
        cases += [each for each, _rounds in made.values()]
        facts += facts_of(window, {name: rounds for name, (_case, rounds) in made.items()})
    return Benchmark(
        "One record of 100 B a request, one node, acks=1",
        cases,
        bars=[Bar(named(OURS, window), "cpu_us_per_op", at_most=most) for window, most in CPU_US_MAX.items()],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op"],
        facts=facts,
        note="An operation is a request. CPU is the broker's; the mock broker's includes the client. "
        "The bare server knows no protocol: it appends what it receives, and sends as many bytes back. "
        f"One partition; client: {', '.join(SETTINGS)}. {note}",
    )


def bare(context: Context, count: int, window: int) -> Case:
    file = limits.scratch_file(context, f"bare {window}")
    name = named(BARE, window)
    return network.exchange(context, file, count, in_flight=window, block_bytes=REQUEST_BYTES, name=name)


def named(name: str, window: int) -> str:
    return f"{name}, {window} in flight"


def facts_of(window: int, rounds: dict[str, Rounds]) -> list[Fact]:
    """The latencies of all, and ours beside the others'."""
    ours = rounds[OURS]
    facts = [
        Fact(f"{percent}, {named(name, window)}", "µs", partial(it.us, f"{percent}_us"))
        for name, it in rounds.items()
        for percent in ("p50", "p99")
    ]
    for name, most in ((kafka.NAME, OF_KAFKA_MAX), (MOCK, OF_MOCK_MAX)):
        if name in rounds:
            beside = f"p50 beside {name}, {window} in flight"
            facts.append(Fact(beside, "ratio", partial(ours.ratio, rounds[name], "p50_us"), at_most=most))
    return facts
