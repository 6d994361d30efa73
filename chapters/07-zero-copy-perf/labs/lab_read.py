"""The lab `read` of chapter 07: a reader at the tail of a log beside one that reads old records from the disk.

Three brokers differ only in how the bytes of a file reach the socket: copied through the process, sent by the kernel,
or written from mapped pages. The client only counts bytes.
"""

from collections.abc import Sequence

from bench.bench_fetch import batch_of, fetch, fill, framed
from bench.exchange import Exchange

from minibroker.bench import (
    MIB,
    BarChart,
    Case,
    Context,
    Findings,
    Lab,
    Results,
    Table,
    children,
    limits,
    network,
    scaled,
)
from minibroker.bench.benchmark import bar_rows
from minibroker.bench.context import quick_note
from minibroker.bench.units import number_text

WAYS = ("copy", "sendfile", "mmap")
TAIL, COLD = "tail", "cold"
TOPIC = "blocks"
BARE = "bare read + send"
IN_FLIGHT = 2


def run_read(context: Context) -> Findings:
    """Read the same log in three ways, from the page cache and from the disk."""
    batch, count = batch_of(MIB), scaled(full=128, quick=2)
    size = count * len(batch)
    cases = [network.read_send(context, limits.scratch_file(context, "bare", size), size, len(batch), BARE)]
    readers = [Reader(context, way, batch, count) for way in WAYS]
    cases += [reader.case(kind) for kind in (TAIL, COLD) for reader in readers]
    results = context.measure(cases)
    return Findings(table_of(results), reading_of(results), figure_of(results), results)


class Reader:
    """A broker that sends in one way, a topic, and the requests that fetch it from the start."""

    def __init__(self, context: Context, way: str, batch: bytes, count: int) -> None:
        self._context, self._way = context, way
        self._directory = context.directory / f"data-{way}"
        self._broker = children.serve(context, f"minibroker.fetch.transfer={way}", name=self._directory.name)
        self._exchange = self._connect()
        fill(self._broker.address, self._exchange, TOPIC, batch, count)
        self._requests = [framed(fetch(TOPIC, offset, len(batch))) for offset in range(count)]
        self._answer_bytes = len(self._exchange.ask(self._requests[0]))
        self._bytes_count = count * len(batch)

    def _connect(self) -> Exchange:
        return Exchange(self._context, self._broker.host, self._broker.port)

    def case(self, kind: str) -> Case:
        """Fetch the whole topic."""
        return Case(
            named(kind, self._way),
            lambda: self._exchange.each(self._requests, self._answer_bytes, in_flight=IN_FLIGHT),
            bytes_count=self._bytes_count,
            operations_count=len(self._requests),
            limit=BARE,
            group="the tail, from the page cache" if kind == TAIL else "old records, from the disk",
            before=self._forget if kind == COLD else None,
            cpu_s=self._broker.cpu_s,
        )

    def _forget(self) -> None:
        # The page cache keeps pages that a process has mapped, so the broker stops for a moment.
        self._broker.stop()
        for path in self._directory.glob(f"{TOPIC}-0/*.log"):
            limits.forget(path)
        self._broker.restart()
        self._exchange = self._connect()


def named(kind: str, way: str) -> str:
    """The name of a case."""
    return f"{kind}, {way}"


def table_of(results: Results) -> Table:
    """The speed and the CPU time of each way, for both readers."""
    rows = []
    for name, result in results.items():
        figures = [result.spread(metric, results[BARE]) for metric in ("mb_per_s", "cpu_s_per_gb", "ratio")]
        rows.append([name, *("" if it is None else number_text(it.median) for it in figures)])
    return Table(["reader, way", "MB/s", "CPU s/GB", "of the bare speed"], rows)


def reading_of(results: Results) -> Sequence[str]:
    """What the figures mean."""

    tail = {way: results[named(TAIL, way)] for way in WAYS}
    fastest = max(WAYS, key=lambda way: tail[way].speed.median)
    cheapest = min(WAYS, key=lambda way: tail[way].cpu_s.median)
    slowdowns = [results[named(TAIL, it)].speed.median / results[named(COLD, it)].speed.median for it in WAYS]
    return [
        f"At the tail, {fastest} is the fastest way on this machine, and {cheapest} costs the broker the least CPU. "
        "The client is on the same machine. Over a network card the order may differ.",
        f"A reader of old records waits for the disk: it is {min(slowdowns):.1f} to {max(slowdowns):.1f} times slower, "
        "and the way matters less. With sendfile and mmap the broker's one thread waits for the disk itself, so other "
        "clients wait, too.",
    ]


def figure_of(results: Results) -> BarChart:
    """A bar for each way and reader."""
    label = "MB/s, median and quartiles"
    return BarChart("Three ways to send old and new records", label, bar_rows(results, "mb_per_s"), note=quick_note())


LABS = [Lab("read", "07", "the tail beside old records, by copy, sendfile and mmap: MB/s and CPU per GB", run_read)]
