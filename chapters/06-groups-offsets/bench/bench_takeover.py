"""The take-over of a coordinator: a node begins to lead a partition with a million live offsets, and loads them.

The load is compared with decoding the same bytes in the same run, without a coordinator and without stopping for other
clients. Meanwhile a task asks for its turn again and again: its longest wait is the longest block of the event loop.
"""

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, scaled
from minibroker.bench.plot import LIMIT
from minibroker.coordinators.appending import batches_of
from minibroker.groups.records import GroupRecord, OffsetCommitKey, OffsetCommitValue, decode, encode
from minibroker.log.batch import batches
from minibroker.partitions.admission import Origin
from minibroker.wire.codes import ErrorCode

# The tests of this chapter have a coordinator on a log in memory.
TEST_FOLDERS = [str(Path(__file__).parents[it] / "tests") for it in (1, 3)]
if TYPE_CHECKING:
    from coordinators_bench import Bench

DECODED, LOADED = "decode the same bytes", "take over"
RATIO_MIN = 0.667  # a load takes at most 1.5 times as long
OFFSET_BYTES_MAX = 400
BLOCK_MS_MAX = 50
PARTITIONS = 100
_BATCH_BYTES = 100_000


def new_bench(offsets_count: int) -> "Bench":
    """A partition of `__consumer_offsets` with so many live offsets: a hundred partitions for each group."""
    sys.path += [it for it in TEST_FOLDERS if it not in sys.path]
    from coordinators_bench import Bench  # noqa: PLC0415

    bench = Bench()
    for batch in batches_of(encoded(offsets_count), bytes_max=_BATCH_BYTES, timestamp=1_000_000):
        bench.partition.append(memoryview(batch), acks=-1, now_ms=1_000_000, origin=Origin.COORDINATOR)
    return bench


def encoded(count: int) -> list[tuple[bytes, bytes | None]]:
    """The records of commits."""
    return [encode(record) for record in records(count)]


def records(count: int) -> Iterator[GroupRecord]:
    """Commits of many groups, with the fields that stock clients send."""
    for number in range(count):
        key = OffsetCommitKey(
            group_id=f"group-{number // PARTITIONS:06}", topic="orders", partition=number % PARTITIONS
        )
        yield GroupRecord(
            key, OffsetCommitValue(offset=number, leader_epoch=3, metadata="", commit_timestamp=1_700_000_000_000)
        )


def decode_all(bench: "Bench") -> int:
    """Decode every record, and keep nothing."""
    log, offset, count = bench.partition.log, 0, 0
    while offset < log.log_end_offset:
        for batch in batches(log.read(offset, bytes_max=5 * 2**20).read()):
            batch.check_crc()
            for record in batch.records():
                assert record.key is not None
                count += decode(record.key, record.value) is not None
            offset = batch.header.next_offset
    return count


class Taker:
    """A node that begins to lead the partition again and again."""

    def __init__(self, bench: "Bench") -> None:
        self._bench = bench
        self.blocks_ms: list[float] = []
        """The longest block of each load. The first load is the warm-up."""

    def take_over(self) -> None:
        """Load the partition."""
        asyncio.run(self._take_over())

    async def _take_over(self) -> None:
        coordinator, loop = self._bench.start(), asyncio.get_running_loop()
        longest_s, before_s = 0.0, loop.time()
        while coordinator.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0)
            now_s = loop.time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        self.blocks_ms.append(1000 * longest_s)
        assert coordinator.code is ErrorCode.NONE
        coordinator.resign()


def offset_bytes(count: int) -> float:
    """The memory of one loaded offset."""
    bench = new_bench(count)
    gc.collect()
    tracemalloc.start()
    try:
        Taker(bench).take_over()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


def benchmark(context: Context) -> Benchmark:  # noqa: ARG001
    count = scaled(full=1_000_000, quick=2000)
    bench = new_bench(count)
    taker = Taker(bench)
    bytes_count = bench.partition.log.size
    return Benchmark(
        f"Take-over of a coordinator with {count:,} offsets",
        [
            Case(DECODED, lambda: decode_all(bench), bytes_count, count, series=LIMIT),
            Case(LOADED, taker.take_over, bytes_count, count, limit=DECODED),
        ],
        bars=[Bar(LOADED, "ratio", at_least=RATIO_MIN)],
        metric="ops_per_s",
        columns=["us_per_op"],
        facts=[
            Fact("longest block of the event loop", "ms", lambda: max(taker.blocks_ms[1:]), at_most=BLOCK_MS_MAX),
            Fact("memory of an offset", "bytes", lambda: offset_bytes(count // 10), at_most=OFFSET_BYTES_MAX),
        ],
        note="An operation is one offset. The memory is measured with a tenth of them.",
    )
