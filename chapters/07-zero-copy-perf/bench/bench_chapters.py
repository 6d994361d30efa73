"""One workload through every chapter: batches of sixteen records of 1 KB are appended, and acknowledged.

Chapters 01 and 02 are libraries, so the batches are appended by a call. From chapter 03 on the chapter's own program
runs in a process of its own, and the same batches arrive as Produce requests, four under way. From chapter 04 on there
are also three nodes with acks=all.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.bench_append_segments import open_many, open_one
from bench.bench_fetch import framed
from bench.exchange import Exchange

from minibroker.bench import (
    KIB,
    MIB,
    Benchmark,
    Case,
    Context,
    Line,
    LineChart,
    Point,
    Results,
    children,
    limits,
    scaled,
)
from minibroker.bench.context import quick_note
from minibroker.bench.launcher import HOST, Command, Server, reserve_port, serve_command
from minibroker.bench.watching import until
from minibroker.clients.admin import NewTopic, create_topics, describe_topics
from minibroker.clients.blocking import Client
from minibroker.log.interfaces import Log
from minibroker.segments.sparse import batch_of
from minibroker.wire.tables.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC = "orders"
BATCH_BYTES = 16 * KIB
IN_FLIGHT = 4
ONE, THREE = "one node", "three nodes, acks=all"
CHAPTERS = ("01", "02", "03", "04", "05", "06", "07", "final")
PROGRAMS = {"05": "minibroker.quorum", "06": "minibroker.coordinators", "07": "minibroker.transfer"}
INTERNAL = ("--set", "offsets.topic.replication.factor=1")


def benchmark(context: Context) -> Benchmark:
    cases = [append_case(context, "01", open_one), append_case(context, "02", open_many)]
    cases += [produce_case(context, chapter, ONE, start(context, chapter, 1)) for chapter in CHAPTERS[2:]]
    cases += [produce_case(context, chapter, THREE, start(context, chapter, 3)) for chapter in CHAPTERS[3:]]
    return Benchmark(
        "One workload through every chapter",
        cases,
        columns=["cpu_us_per_op"],
        figure=figure,
        note="An operation is a batch of 16 KiB. From chapter 03 on, CPU is that of all nodes, and batches come over "
        "a connection. Every node runs all the time; those that are not measured are idle.",
    )


def named(chapter: str, series: str) -> str:
    return f"{chapter}, {series}"


def figure(results: Results) -> LineChart:
    lines = []
    for series in (ONE, THREE):
        found = {number: results.get(named(chapter, series)) for number, chapter in enumerate(CHAPTERS, 1)}
        lines.append(Line(series, [Point(number, *it.speed) for number, it in found.items() if it]))
    ticks = list(enumerate(CHAPTERS, 1))
    return LineChart("One workload through every chapter", "chapter", "MB/s", lines, x_ticks=ticks, note=quick_note())


# Chapters 01 and 02 ---------------------------------------------------------------------------------------------------


def append_case(context: Context, chapter: str, open_log: Callable[[Context], Log]) -> Case:
    batch, size = batch_of(BATCH_BYTES), scaled(full=128 * MIB, quick=MIB)
    count = size // len(batch)
    # Both open the same file, which is made once and is warm in every round.
    if chapter == "01":
        limits.scratch_file(context, "00000000000000000000.log", size)
    logs: list[Log] = []

    def run() -> None:
        for _ in range(count):
            logs[0].append(batch, leader_epoch=0)

    return Case(
        named(chapter, ONE),
        run,
        bytes_count=count * len(batch),
        operations_count=count,
        group=ONE,
        before=lambda: logs.append(open_log(context)),
        after=logs.pop,
    )


# Chapters 03 to final -------------------------------------------------------------------------------------------------


def start(context: Context, chapter: str, size: int) -> list[Server]:
    """Start one node or three of a chapter's program, and create the topic."""
    reserved = context.cleanup.enter_context(ExitStack())
    addresses = {it: f"{HOST}:{reserve_port(reserved)}" for it in range(1, size + 1)}
    nodes = []
    for number, address in addresses.items():
        data = context.directory / f"chapter-{chapter}-{size}" / str(number)
        command = command_of(chapter, number, data, addresses)
        nodes.append(Server(command, data, address=address, environment=children.environment(context)))
        context.on_close(nodes[-1].stop)
        nodes[-1].begin()
        # The controller of chapter 04 is one node, which must be there before the others.
        if chapter == "04":
            nodes[-1].await_ready()
    for node in nodes:
        node.await_ready()
    with Client(nodes[0].address) as client:
        until(lambda: len(client.metadata([]).brokers) == size, f"chapter {chapter} has {size} nodes")
        create_topics(client, [NewTopic(TOPIC, assignments={0: list(addresses)})])
        until(lambda: in_sync(client) == size, f"chapter {chapter} has {size} replicas in sync")
    return nodes


def in_sync(client: Client) -> int:
    """The number of replicas that are in sync."""
    found = describe_topics(client).get(TOPIC)
    return len(found.partitions[0].isr) if found else 0


def command_of(chapter: str, number: int, data: Path, addresses: dict[int, str]) -> Command:
    """The command that runs one node of a chapter's program."""
    python, voters = [sys.executable, "-m"], ",".join(f"{it}@{address}" for it, address in addresses.items())
    if chapter == "03":
        return lambda listen: [*python, "minibroker.partitions", str(data), listen]
    if chapter == "04":
        controller = [f"1@{addresses[1]}"] if number > 1 else []
        return lambda listen: [*python, "minibroker.replicas", "serve", str(number), str(data), listen, *controller]
    if chapter in PROGRAMS:
        return lambda listen: [*python, PROGRAMS[chapter], str(number), str(data), listen, voters]
    own = (f"node.id={number}", f"controller.quorum.voters={voters}")
    return lambda listen: serve_command(*own, data=data, listen=listen)


def produce_case(context: Context, chapter: str, series: str, nodes: Sequence[Server]) -> Case:
    batch = bytes(batch_of(BATCH_BYTES))
    count = scaled(full=(64 if series == ONE else 32) * MIB, quick=MIB // 2) // len(batch)
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name=TOPIC, partition_data=data)]
    request = framed(ProduceRequest(acks=1 if series == ONE else -1, timeout_ms=10_000, topic_data=topics))
    exchange = Exchange(context, nodes[0].host, nodes[0].port)
    answer_bytes = len(exchange.ask(request))
    return Case(
        named(chapter, series),
        lambda: exchange.each(list(itertools.repeat(request, count)), answer_bytes, in_flight=IN_FLIGHT),
        bytes_count=count * len(batch),
        operations_count=count,
        group=series,
        cpu_s=lambda: sum(it.cpu_s() for it in nodes),
    )
