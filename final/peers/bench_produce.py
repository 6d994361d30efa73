"""Produce to one node as fast as the client can, with records of 1 KB and of 100 B, acks=1."""

from minibroker.bench import MB, Bar, Benchmark, Case, Context, Fact, limits, network, scaled
from minibroker.bench.plot import OURS
from peers.stage import MOCK, Work, case, mock_case, one_node

SETTINGS = ("acks=1", "queue.buffering.max.messages=1000000", "delivery.report.only.error=true")


def benchmark_1kb(context: Context) -> Benchmark:
    bare = network.receive_append(context, limits.scratch_file(context, "bare"), scaled(full=250 * MB, quick=2 * MB))
    bars = [
        Bar(OURS, "ratio", at_least=0.8, against=MOCK),
        Bar(OURS, "cpu_s_per_gb", at_most=0.65),
        Bar(OURS, "cpu_ratio", at_most=1.6, against=bare.name),
    ]
    work = Work(scaled(full=250_000, quick=2_000), 1000)
    return produce(context, work, "Produce 1 KB records to one node, acks=1", bars, bare)


def benchmark_100b(context: Context) -> Benchmark:
    bars = [Bar(OURS, "ratio", at_least=0.95, against=MOCK)]
    work = Work(scaled(full=1_000_000, quick=5_000), 100)
    return produce(context, work, "Produce 100 B records to one node, acks=1", bars)


def produce(context: Context, work: Work, title: str, bars: list[Bar], *limits_: Case) -> Benchmark:
    mock, _ = mock_case(context, work, *SETTINGS)
    peers, note = one_node(context)
    cases = [case(context, peer, work, *SETTINGS)[0] for peer in peers]
    return Benchmark(
        title,
        [*limits_, mock, *cases],
        bars=bars,
        columns=["cpu_us_per_op"],
        facts=[Fact(f"resident memory, {peer.name}", "MB", peer.resident_mb) for peer in peers],
        note=f"An operation is a record. CPU is the broker's; the mock broker's includes the client. "
        f"One partition; client: {', '.join(SETTINGS)}. {note}",
    )
