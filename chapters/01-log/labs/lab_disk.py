"""The lab of chapter 01, `disk`: why a log is only ever appended to, and what a flush costs.

It runs no code of ours. It asks the machine three questions that the design of a log answers:

1. How much faster are neighbouring blocks than scattered ones, in the page cache and on the device?
2. How close does a write into the page cache come to copying memory?
3. What does it cost to wait until the device has the bytes: before every acknowledgement, now and then, never?
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labs import disk

from minibroker.bench import (
    KIB,
    MIB,
    BarChart,
    BarRow,
    Case,
    Context,
    Findings,
    Lab,
    Result,
    Results,
    Table,
    scaled,
)
from minibroker.bench import limits as bare
from minibroker.bench.context import quick_note
from minibroker.bench.plot import LIMIT
from minibroker.bench.units import number_text

MEMORY, CACHE, DEVICE, APPEND = "Memory", "Page cache", "Device", "Append 16 KiB batches"
SEQUENTIAL, RANDOM, FLUSH = "sequential", "random", "append"

BATCH_BYTES = 16 * KIB
BLOCK_BYTES = 64 * KIB
PAGE_BYTES = 4 * KIB


@dataclass(frozen=True)
class Sizes:
    """How much is read and written; small enough for a slow disk, large enough for the clock."""

    file_bytes: int
    scattered_blocks: int
    flushed_bytes: int
    flushed_each_bytes: int


def sizes() -> Sizes:
    """Choose the sizes of a full or of a quick run."""
    full = Sizes(64 * MIB, scattered_blocks=512, flushed_bytes=32 * MIB, flushed_each_bytes=MIB)
    quick = Sizes(MIB, scattered_blocks=8, flushed_bytes=2 * MIB, flushed_each_bytes=4 * BATCH_BYTES)
    return scaled(full, quick)


def run_disk(context: Context) -> Findings:
    """Measure memory, page cache, device and flushes in the same rounds, and read the figures."""
    size = sizes()
    # Two files, because the reads from the device drop the page cache of the file that they read.
    cached = bare.scratch_file(context, "cached", size.file_bytes)
    uncached = bare.scratch_file(context, "uncached", size.file_bytes)
    cases = [
        _placed(disk.memcpy(size.file_bytes, BLOCK_BYTES, "memcpy, 64 KiB"), MEMORY, LIMIT),
        *cache_cases(cached, size),
        *device_cases(uncached, size),
        *flush_cases(bare.scratch_file(context, "appended"), size),
    ]
    results = context.measure(cases)
    return Findings(table(results), reading(results), figure(results), results)


def cache_cases(file: int, size: Sizes) -> list[Case]:
    """Read and write blocks that are in the page cache: system calls and copies, no device."""
    in_order = bare.block_positions(size.file_bytes, BLOCK_BYTES)
    blocks = disk.shuffled_positions(size.file_bytes, BLOCK_BYTES)
    pages = disk.shuffled_positions(size.file_bytes, PAGE_BYTES)
    sequential = [
        disk.overwrite(file, in_order, BLOCK_BYTES, "sequential write, 64 KiB"),
        disk.read(file, in_order, BLOCK_BYTES, "sequential read, 64 KiB"),
    ]
    scattered = [
        disk.overwrite(file, blocks, BLOCK_BYTES, "random write, 64 KiB"),
        disk.read(file, blocks, BLOCK_BYTES, "random read, 64 KiB"),
        disk.overwrite(file, pages, PAGE_BYTES, "random write, 4 KiB"),
        disk.read(file, pages, PAGE_BYTES, "random read, 4 KiB"),
    ]
    return [*_all_placed(sequential, CACHE, SEQUENTIAL), *_all_placed(scattered, CACHE, RANDOM)]


def device_cases(file: int, size: Sizes) -> list[Case]:
    """Do the same where the device must take part: one flush after the writes, no page cache before the reads."""
    in_order = bare.block_positions(size.file_bytes, BLOCK_BYTES)
    blocks = disk.shuffled_positions(size.file_bytes, BLOCK_BYTES, size.scattered_blocks)
    pages = disk.shuffled_positions(size.file_bytes, PAGE_BYTES, size.scattered_blocks)
    sequential = [disk.overwrite(file, in_order, BLOCK_BYTES, "sequential write, 64 KiB", to_device=True)]
    scattered = [
        disk.overwrite(file, blocks, BLOCK_BYTES, "random write, 64 KiB", to_device=True),
        disk.overwrite(file, pages, PAGE_BYTES, "random write, 4 KiB", to_device=True),
    ]
    # Where the page cache cannot be dropped (macOS) the reads would not reach the device, so they are left out.
    if disk.can_drop_cache:
        sequential.append(disk.read(file, in_order, BLOCK_BYTES, "sequential read, 64 KiB", from_device=True))
        scattered.append(disk.read(file, blocks, BLOCK_BYTES, "random read, 64 KiB", from_device=True))
        scattered.append(disk.read(file, pages, PAGE_BYTES, "random read, 4 KiB", from_device=True))
    return [*_all_placed(sequential, DEVICE, SEQUENTIAL), *_all_placed(scattered, DEVICE, RANDOM)]


def flush_cases(file: int, size: Sizes) -> list[Case]:
    """Append batches, and flush never, at the end, after each MiB, or after each batch, before its acknowledgement."""
    policies = [
        ("never flushed", size.flushed_bytes, None),
        ("one flush at the end", size.flushed_bytes, size.flushed_bytes),
        ("a flush per MiB", size.flushed_bytes, MIB),
        ("a flush per batch, before its ack", size.flushed_each_bytes, BATCH_BYTES),
    ]
    cases = [
        bare.append(file, bytes_count, BATCH_BYTES, name, flush_every_bytes=every)
        for name, bytes_count, every in policies
    ]
    return _all_placed(cases, APPEND, FLUSH)


def table(results: Results) -> Table:
    """Set out the speeds, each beside the memcpy of the same round."""
    memcpy = results[f"{MEMORY}: memcpy, 64 KiB"]
    columns = ["experiment", "MB/s", "±", "µs per block", "of memcpy"]
    return Table(columns, [_row(result, memcpy) for result in results.values()])


def figure(results: Results) -> BarChart:
    """Draw all speeds on one logarithmic axis: they differ by orders of magnitude."""
    rows = []
    for result in results.values():
        case, spread = result.case, result.spread("mb_per_s")
        assert spread is not None
        label = case.name.removeprefix(f"{case.group}: ")
        rows.append(BarRow(label, *spread, series=case.series, group=case.group))
    axis = "MB/s, logarithmic; median and quartiles"
    return BarChart("What the disk under a log can do", axis, rows, log=True, note=quick_note())


def reading(results: Results) -> list[str]:
    """Say what the figures mean."""
    return [_on_memory(results), _on_order(results), _on_flushes(results)]


def _on_memory(results: Results) -> str:
    share = _times(results, f"{CACHE}: sequential write, 64 KiB", f"{MEMORY}: memcpy, 64 KiB")
    speed = _speed(results, f"{CACHE}: sequential write, 64 KiB")
    return (
        f"Memory: a sequential write into the page cache runs at {speed} MB/s, {number_text(share)} of a memcpy. "
        "As long as the kernel keeps up with writing back, a broker that does not wait for the disk is bound by memory."
    )


def _on_order(results: Results) -> str:
    cached = _times(results, f"{CACHE}: sequential read, 64 KiB", f"{CACHE}: random read, 4 KiB")
    cache_text = f"in the page cache the factor is {number_text(cached)}"
    kind = "read" if disk.can_drop_cache else "write"
    ordered, scattered = f"{DEVICE}: sequential {kind}, 64 KiB", f"{DEVICE}: random {kind}, 4 KiB"
    on_device = number_text(_times(results, ordered, scattered))
    return (
        f"Order: on this disk a sequential {kind} is {on_device} times as fast as a random one "
        f"of 4 KiB ({_speed(results, ordered)} against {_speed(results, scattered)} MB/s); {cache_text}. "
        "So a log is appended to and read in order."
    )


def _on_flushes(results: Results) -> str:
    each = f"{APPEND}: a flush per batch, before its ack"
    some, last = f"{APPEND}: a flush per MiB", f"{APPEND}: one flush at the end"
    flush_us = results[each].spread("us_per_op")
    assert flush_us is not None
    return (
        f"Flushes: a flush per 16 KiB costs {number_text(_times(results, some, each))} times a flush per MiB and "
        f"{number_text(_times(results, last, each))} times one at the end; one batch and its flush take "
        f"{number_text(flush_us.median / 1000)} ms. So Kafka flushes rarely, and trusts its replicas instead."
    )


def _times(results: Results, fast: str, slow: str) -> float:
    spread = results[fast].spread("ratio", results[slow])
    assert spread is not None
    return spread.median


def _speed(results: Results, name: str) -> str:
    spread = results[name].spread("mb_per_s")
    assert spread is not None
    return number_text(spread.median)


def _row(result: Result, memcpy: Result) -> list[str]:
    figures = [result.spread(metric, memcpy) for metric in ("mb_per_s", "us_per_op", "ratio")]
    speed, per_block, share = (number_text(spread.median) if spread else "" for spread in figures)
    return [result.case.name, speed, f"{result.speed.percent:.0f} %", per_block, share]


def _placed(case: Case, group: str, series: str) -> Case:
    return replace(case, name=f"{group}: {case.name}", group=group, series=series)


def _all_placed(cases: Sequence[Case], group: str, series: str) -> list[Case]:
    return [_placed(case, group, series) for case in cases]


LABS = [Lab("disk", "01", "sequential against random I/O, and what a flush costs, beside memcpy", run_disk)]
