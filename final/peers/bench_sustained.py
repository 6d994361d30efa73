"""A load that one node holds for long: 115 MB/s in with five groups reading, and 350,000 records of 1 KB a second."""

from minibroker.bench import Benchmark, Context, Fact, scaled
from peers.stage import Work, case, our_node

SETTINGS = ("acks=1", "queue.buffering.max.messages=1000000")
GROUPS = 5
# Old segments are deleted while the load goes on, as on a broker that has run for days.
LOGS = {"segment.bytes": str(256 * 2**20), "retention.bytes": str(1024 * 2**20)}
NODE = ("log.retention.check.interval.ms=2000", "group.initial.rebalance.delay.ms=0")
HELD_MIN = 0.99


def benchmark_groups(context: Context) -> Benchmark:
    rate, seconds = 115_000, scaled(full=60, quick=0.1)
    work = Work(round(rate * seconds), 1000, partitions=4, rate=rate, groups=GROUPS, configs=LOGS)
    return sustained(context, work, "115 MB/s in, five groups reading all of it, one node", lag_ms_max=1000)


def benchmark_peak(context: Context) -> Benchmark:
    rate, seconds = 350_000, scaled(full=30, quick=0.05)
    work = Work(round(rate * seconds), 1000, partitions=4, rate=rate, configs=LOGS)
    return sustained(context, work, "350,000 records of 1 KB a second, one node")


def sustained(context: Context, work: Work, title: str, *, lag_ms_max: float = 0) -> Benchmark:
    # The bar is the rate, which our node must hold; no other broker is needed for that.
    ours = our_node(context, *NODE)
    made, rounds = case(context, ours, work, *SETTINGS)
    facts = [
        Fact("records/s acknowledged", "share of the rate", lambda: rounds.per_s(work.records).median / work.rate,
             at_least=HELD_MIN),
        *(Fact(f"producer, {it}", "ms", lambda it=it: rounds.ms(f"{it}_us")) for it in ("p50", "p99", "max")),
        Fact("resident memory", "MB", ours.resident_mb),
    ]  # fmt: skip
    if lag_ms_max:
        facts += [
            Fact(f"lag of the groups, {it}", "ms", lambda it=it: rounds.ms(f"read_{it}_us")) for it in ("p50", "p99")
        ]
        facts.append(Fact("lag of the groups, max", "ms", lambda: rounds.ms("read_max_us"), at_most=lag_ms_max))
    return Benchmark(
        title,
        [made],
        columns=["cpu_us_per_op"],
        facts=facts,
        note=f"Four partitions with {', '.join(f'{name}={value}' for name, value in LOGS.items())}; "
        f"client: {', '.join(SETTINGS)}. minibroker: {', '.join(NODE)}.",
        repeats_max=1,
    )
