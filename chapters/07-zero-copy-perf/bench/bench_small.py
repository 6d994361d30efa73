"""The broker's CPU time for a small request: the connection of chapter 03 beside the fast one, in the same node."""

import sys
from collections.abc import Callable

from bench.bench_requests import EMPTY_TOPIC, IN_FLIGHT, TOPIC, check, fetch, framed, metadata, produce
from bench.exchange import Exchange

from minibroker.bench import Bar, Benchmark, Case, Context, children, scaled
from minibroker.bench.launcher import Server
from minibroker.clients.admin import NewTopic, create_topics
from minibroker.clients.blocking import Client
from minibroker.wire.schema import Request

STREAMS, FAST = "minibroker.coordinators", "minibroker.transfer"
REQUESTS: dict[str, Callable[[], Request]] = {
    "Produce, 100 B": produce,
    "Metadata, one topic": metadata,
    "Fetch, nothing new": fetch,
}


def benchmark(context: Context) -> Benchmark:
    nodes = {program: start(context, program) for program in (STREAMS, FAST)}
    exchanges = {program: Exchange(context, node.host, node.port) for program, node in nodes.items()}

    def case(program: str, name: str, request: Request, in_flight: int) -> Case:
        count = scaled(full=4_000 if in_flight == 1 else 8_000, quick=64)
        sent = framed(request)
        received = exchanges[program].ask(sent)
        check(request, received)
        return Case(
            f"{name}, {in_flight} in flight, {program.rpartition('.')[2]}",
            lambda: exchanges[program].repeat(sent, len(received), count=count, in_flight=in_flight),
            operations_count=count,
            limit=f"{name}, {in_flight} in flight, {STREAMS.rpartition('.')[2]}" if program == FAST else "",
            group=f"{name}, {in_flight} in flight",
            cpu_s=nodes[program].cpu_s,
        )

    cases = [
        case(program, name, make(), in_flight)
        for in_flight in (1, IN_FLIGHT)
        for name, make in REQUESTS.items()
        for program in nodes
    ]
    return Benchmark(
        "CPU of a small request, on streams and on buffers",
        cases,
        bars=[
            Bar(f"Produce, 100 B, {count} in flight, transfer", "cpu_ratio", at_most=0.8) for count in (1, IN_FLIGHT)
        ],
        metric="cpu_us_per_op",
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one request, the CPU time the node's.",
    )


def start(context: Context, program: str) -> Server:
    """Start a node that runs this program, and create the topics."""
    data = context.directory / program
    settings = ("--set", "offsets.topic.replication.factor=1")
    node = children.start(context, lambda listen: [sys.executable, "-m", program, "1", str(data), listen, *settings])
    with Client(node.address) as client:
        create_topics(client, [NewTopic(TOPIC, 1), NewTopic(EMPTY_TOPIC, 1)])
    return node
