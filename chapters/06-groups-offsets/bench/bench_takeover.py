"""The take-over of a coordinator: a node begins to lead a partition with a million live offsets, and loads them.

The load is compared with decoding the same bytes in the same run, without a coordinator and without stopping for other
clients. Meanwhile a task asks for its turn again and again: its longest wait is the longest block of the event loop.

The bounds are on CPU time. Wall time is shown beside it: the difference is the time that other programs took.
"""

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from minibroker.bench import Bar, Benchmark, Case, Context, Fact, scaled
from minibroker.bench.measure import Sample
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
BLOCK = "longest block of the event loop"
COLLECTION = "a full garbage collection"
CPU_RATIO_MAX = 1.5
OFFSET_BYTES_MAX = 400
BLOCK_MS_MAX = 50
FIRST = 1  # the first load is the warm-up
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
        self.blocks: list[Sample] = []
        """The longest block of each load."""

    def take_over(self) -> None:
        """Load the partition, and drop it."""
        asyncio.run(self._take_over())

    def collection_ms(self) -> float:
        """The CPU time of a full garbage collection while the offsets are loaded. It blocks the whole node."""
        gc.collect()
        return asyncio.run(self._take_over(full_collection_ms))

    def freeing_ms(self) -> float:
        """The same after the coordinator has resigned: the collection frees all that it had."""
        self.take_over()
        del self._bench.coordinator
        return full_collection_ms()

    async def _take_over(self, ask: Callable[[], float] = float) -> float:
        coordinator = self._bench.start()
        longest, before = Sample(0, 0), clock()
        while coordinator.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0)
            now = clock()
            longest = Sample(
                max(longest.wall_s, now.wall_s - before.wall_s), max(longest.cpu_s, now.cpu_s - before.cpu_s)
            )
            before = now
        self.blocks.append(longest)
        assert coordinator.code is ErrorCode.NONE
        answer = ask()
        coordinator.resign()
        return answer

    def longest_ms(self) -> Sample:
        """The longest block of all loads, in milliseconds."""
        wall_s, cpu_s = zip(*self.blocks[FIRST:], strict=True)
        return Sample(1000 * max(wall_s), 1000 * max(cpu_s))


def clock() -> Sample:
    """Read the wall clock, and the CPU time of this thread."""
    return Sample(time.perf_counter(), time.thread_time())


def full_collection_ms() -> float:
    """The CPU time of one full garbage collection."""
    begun_s = time.thread_time()
    gc.collect()
    return 1000 * (time.thread_time() - begun_s)


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
        bars=[Bar(LOADED, "cpu_ratio", at_most=CPU_RATIO_MAX)],
        metric="ops_per_s",
        columns=["us_per_op", "cpu_us_per_op"],
        facts=[
            Fact(f"{BLOCK}, CPU time", "ms", lambda: taker.longest_ms().cpu_s, at_most=BLOCK_MS_MAX),
            Fact(f"{BLOCK}, wall time", "ms", lambda: taker.longest_ms().wall_s),
            Fact(f"{COLLECTION} after the load", "ms", taker.collection_ms, at_most=BLOCK_MS_MAX),
            Fact(f"{COLLECTION} after the coordinator has resigned", "ms", taker.freeing_ms, at_most=BLOCK_MS_MAX),
            Fact("memory of an offset", "bytes", lambda: offset_bytes(count // 10), at_most=OFFSET_BYTES_MAX),
        ],
        note="An operation is one offset. The memory is measured with a tenth of them.",
    )
