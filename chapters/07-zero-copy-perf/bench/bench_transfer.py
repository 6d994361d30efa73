"""Fetch a log from its start in three ways: copied, sent by the kernel, and written from mapped pages.

The log is in the page cache, and the client only counts bytes. The limit to compare with reads blocks of a file and
sends them. Sizes up to 64 KiB are always copied.
"""

from functools import partial

from bench.bench_fetch import batch_of, fetch, fill, framed
from bench.exchange import Exchange

from minibroker.bench import KIB, MIB, Benchmark, Case, Context, bytes_text, children, limits, network, scaled

WAYS = ("copy", "sendfile", "mmap")
BLOCKS = (64 * KIB, MIB)


def benchmark(context: Context) -> Benchmark:
    cases: list[Case] = []
    for block in BLOCKS:
        batch, count = batch_of(block), scaled(full=128 * MIB, quick=2 * MIB) // block
        name, size = bytes_text(block), count * len(batch)
        file = limits.scratch_file(context, f"blocks-of-{block}", size)
        cases.append(network.read_send(context, file, size, len(batch), f"bare read + send, {name}"))
        cases += [case_of(context, way, block, count, limit=cases[-1].name) for way in WAYS]
    return Benchmark(
        "Three ways to send a part of a file",
        cases,
        columns=["cpu_us_per_op", "cpu_ratio"],
        note="An operation is one request, answered with one batch. CPU is the broker's, or the bare sender's.",
    )


def case_of(context: Context, way: str, block: int, count: int, *, limit: str) -> Case:
    """The case of one way, with a broker of its own."""
    broker = children.serve(context, f"minibroker.fetch.transfer={way}", name=f"data-{way}-{block}")
    exchange = Exchange(context, broker.host, broker.port)
    batch, topic = batch_of(block), "blocks"
    fill(broker.address, exchange, topic, batch, count)
    requests = [framed(fetch(topic, offset, len(batch))) for offset in range(count)]
    answer_bytes = len(exchange.ask(requests[0]))
    return Case(
        f"{way}, {bytes_text(block)}",
        partial(exchange.each, requests, answer_bytes, in_flight=2),
        bytes_count=count * len(batch),
        operations_count=count,
        limit=limit,
        group=bytes_text(block),
        cpu_s=broker.cpu_s,
    )
