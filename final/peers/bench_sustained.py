"""A load that one node holds for long: 115 MB/s in with five groups reading, and 350,000 records of 1 KB a second."""

from functools import partial

from minibroker.bench import MIB, Benchmark, Context, Fact, limits, scaled
from peers.stage import Work, case, our_node

SETTINGS = ("acks=1", "queue.buffering.max.messages=1000000")
GROUPS = 5
# Old segments are deleted within seconds. Otherwise a slow disk would be measured: gigabytes of new pages are more than
# the kernel keeps for it, and then it stops the writers.
LOGS = {"segment.bytes": str(64 * MIB), "retention.bytes": str(128 * MIB), "file.delete.delay.ms": "1000"}
NODE = ("log.retention.check.interval.ms=1000", "group.initial.rebalance.delay.ms=0")
HELD_MIN = 0.99


def benchmark_groups(context: Context) -> Benchmark:
    rate, seconds = 115_000, scaled(full=60, quick=0.1)
    work = Work(round(rate * seconds), 1000, partitions=4, rate=rate, groups=GROUPS, configs=LOGS)
    return sustained(context, work, "115 MB/s in, five groups reading all of it, one node", lag_ms_max=1000)


def benchmark_peak(context: Context) -> Benchmark:
    rate, seconds = 350_000, scaled(full=30, quick=0.05)
    work = Work(round(rate * seconds), 1000, partitions=4, rate=rate, configs=LOGS)
    return sustained(context, work, "350,000 records of 1 KB a second, one node")


def disk_mb_per_s(context: Context) -> float:
    """How fast this disk takes new bytes."""
    size = scaled(full=512 * MIB, quick=MIB)
    bare = limits.append(limits.scratch_file(context, "disk"), size, MIB, flush_every_bytes=size)
    return context.measure([bare], repeats_max=1)[bare.name].speed.median


def sustained(context: Context, work: Work, title: str, *, lag_ms_max: float = 0) -> Benchmark:
    # The bar is the rate, which our node must hold; no other broker is needed for that.
    ours = our_node(context, *NODE)
    made, rounds = case(context, ours, work, *SETTINGS)
    facts = [
        Fact("records/s acknowledged", "share of the rate", lambda: rounds.per_s(work.records).median / work.rate,
             at_least=HELD_MIN),
        *(Fact(f"producer, {it}", "ms", partial(rounds.ms, f"{it}_us")) for it in ("p50", "p99", "max")),
        Fact("resident memory", "MB", ours.resident_mb),
        Fact("the disk: append and flush", "MB/s", lambda: disk_mb_per_s(context)),
    ]  # fmt: skip
    if lag_ms_max:
        facts += [Fact(f"lag of the groups, {it}", "ms", partial(rounds.ms, f"read_{it}_us")) for it in ("p50", "p99")]
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
