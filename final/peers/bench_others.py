"""Two other brokers beside our node, where Debian's packages are installed: 1 KB messages, each acknowledged.

Each has a protocol of its own, so it has another client than Kafka's. They acknowledge every message; a Kafka client
asks for one acknowledgement of a batch. All of them keep the messages in files and leave the flush to the operating
system.
"""

from minibroker.bench import Benchmark, Context, Skipped, scaled
from peers import nats, rabbitmq
from peers.stage import Work, case, our_node

SETTINGS = ("acks=1", "queue.buffering.max.messages=1000000", "delivery.report.only.error=true")


def benchmark(context: Context) -> Benchmark:
    work = Work(scaled(full=100_000, quick=1_000), 1000)
    started = {other.PACKAGE: other.publisher(context, work.bytes) for other in (nats, rabbitmq)}
    found = [it for it in started.values() if it is not None]
    if not found:
        raise Skipped(f"it needs {' or '.join(started)} (Debian's packages of these names)")
    ours, _rounds = case(context, our_node(context), work, *SETTINGS)
    told = [it.about for it in found]
    told += [f"{package} is not installed." for package, it in started.items() if it is None]
    return Benchmark(
        "Produce 1 KB records to one node, beside brokers with other protocols",
        [*(it.case(work) for it in found), ours],
        columns=["cpu_us_per_op"],
        note=f"{' '.join(told)} minibroker: defaults, one partition; client: {', '.join(SETTINGS)}.",
    )
