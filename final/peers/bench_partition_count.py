"""The cost of a Produce to one partition, on a node that holds 1 to 1,000 partitions."""

from bench.bench_requests import check, framed, produce
from bench.exchange import Exchange

from minibroker.bench import Bar, Benchmark, Case, Context, children, scaled
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client

TOPIC = "spread"
COUNTS = (1, 10, 100, 1_000)
TIMES_MAX = 1.3


def benchmark(context: Context) -> Benchmark:
    counts = scaled(full=COUNTS, quick=COUNTS[:2])
    cases = [case_of(context, count, limit=named(1) if count > 1 else "") for count in counts]
    return Benchmark(
        "CPU of a Produce to one partition, by the partitions of the node",
        cases,
        bars=[Bar(named(counts[-1]), "cpu_ratio", at_most=TIMES_MAX)],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one request with one record of 100 B, one in flight, to each partition in turn.",
    )


def named(count: int) -> str:
    return f"{count:,} partition{'s' if count > 1 else ''}"


def case_of(context: Context, count: int, *, limit: str) -> Case:
    """A node of its own, and requests to each of its partitions in turn."""
    node = children.serve(context, name=f"data-{count}")
    with Client(node.address) as client:
        create_topics(client, [NewTopic(TOPIC, count)])
    exchange = Exchange(context, node.host, node.port)
    requests = [produce(TOPIC, partition) for partition in range(count)]
    frames = [framed(it) for it in requests]
    # Every partition has been written once, so that its files are open.
    answers = [exchange.ask(it) for it in frames]
    check(requests[0], answers[0])
    operations = scaled(full=4_000, quick=40)
    return Case(
        named(count),
        lambda: exchange.each((frames * operations)[:operations], len(answers[0])),
        operations_count=operations,
        limit=limit,
        cpu_s=node.cpu_s,
    )
