"""Compaction of a gigabyte, beside a plain copy of the same files.

Keys are drawn at random from a million. So four records in ten have a newer one after them, and nearly every batch
loses records. Every run works on a directory of hard links: compaction replaces files and never changes one.

`python bench_compact.py DIRECTORY` compacts a directory and prints its peak memory. The benchmark runs this in a
process of its own.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from minibroker.bench import KIB, MIB, Benchmark, Case, Context, Fact, limits, peak_memory_mb, scaled
from minibroker.log.batch import ATTRIBUTES_AT, CRC_AT, BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.segments.compaction import Cleaned, clean
from minibroker.segments.config import COMPACT, LogConfig
from minibroker.segments.segmented import SegmentedLog

CONFIG = LogConfig(segment_bytes=128 * MIB, cleanup_policy=frozenset({COMPACT}))
VALUE_BYTES = 1000
RECORDS_IN_BATCH = 16
KEY = b"user-%010d"
MEMORY_MB_MAX = 256


def benchmark(context: Context) -> Benchmark:
    size = scaled(full=1024 * MIB, quick=MIB)
    keys_count = size // KIB
    dirty = context.directory / "dirty"
    bytes_count = fill(dirty, size, keys_count)
    run = context.directory / "run"
    copying = Case(
        "copy of the files, flushed",
        lambda: copy(dirty, run),
        bytes_count=bytes_count,
        before=run.mkdir,
        after=lambda: shutil.rmtree(run),
    )
    cleaning = Case(
        f"compaction, {keys_count} keys",
        lambda: compact(run),
        bytes_count=bytes_count,
        operations_count=size // KIB,
        limit=copying.name,
        before=lambda: link(dirty, run),
        after=lambda: shutil.rmtree(run),
    )
    return Benchmark(
        "Compacting a log, beside a plain copy of its files",
        [copying, cleaning],
        facts=[Fact("resident memory while compacting", "MB", lambda: memory_mb(dirty, run), at_most=MEMORY_MB_MAX)],
        note="An operation is a record of 1 KB. Compaction reads everything twice and flushes what it keeps; its map "
        "takes 48 bytes for each offset of the dirty part, however many keys there are.",
    )


def fill(directory: Path, size: int, keys_count: int) -> int:
    """Write a log of random keys, and close it; return its bytes."""
    log = SegmentedLog.open(OSFiles(), str(directory), CONFIG)
    batch, put_keys = keyed_batch()
    chance = random.Random(0)
    for _ in range(size // len(batch)):
        put_keys([KEY % chance.randrange(keys_count) for _ in range(RECORDS_IN_BATCH)])
        log.append(batch)
    log.roll()  # so that the last records are in a closed segment, too
    bytes_count = log.size
    log.close()
    return bytes_count


def keyed_batch() -> tuple[bytearray, Callable[[list[bytes]], None]]:
    """A batch, and a function that puts other keys of the same length into it: far quicker than building another."""
    builder, keys = BatchBuilder(), [KEY % n for n in range(RECORDS_IN_BATCH)]
    for key in keys:
        builder.append(timestamp=1_700_000_000_000, key=key, value=random.Random(0).randbytes(VALUE_BYTES))
    batch = builder.build()
    places = [batch.index(key) for key in keys]

    def put_keys(others: list[bytes]) -> None:
        for place, key in zip(places, others, strict=True):
            batch[place : place + len(key)] = key
        batch[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(batch)[ATTRIBUTES_AT:]).to_bytes(4, "big")

    return batch, put_keys


def link(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        os.link(path, target / path.name)


def copy(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        with path.open("rb", buffering=0) as reader, (target / path.name).open("wb", buffering=0) as writer:
            while chunk := reader.read(MIB):
                writer.write(chunk)
            limits.flush(writer.fileno())


def compact(directory: Path) -> Cleaned:
    log = SegmentedLog.open(OSFiles(), str(directory), CONFIG, is_clean=True)
    cleaned = clean(log, first_dirty_offset=0, now_ms=2_000_000_000_000)
    assert cleaned.first_dirty_offset == log.log_end_offset
    log.close()
    return cleaned


def memory_mb(dirty: Path, run: Path) -> float:
    link(dirty, run)
    child = subprocess.run([sys.executable, __file__, str(run)], check=True, capture_output=True, text=True)
    shutil.rmtree(run)
    return float(child.stdout)


if __name__ == "__main__":
    compact(Path(sys.argv[1]))
    print(peak_memory_mb())
