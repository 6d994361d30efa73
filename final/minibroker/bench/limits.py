"""Owns the physical limits: what this machine does when nothing of ours stands in the way.

Each limit is a case like any other, made by a function, and runs in the same rounds as the code it is compared with.
Here are those of a file that is written; chapter 01's lab has those of a disk, and chapter 03's benchmarks those of a
connection.

A trap: the first touch of memory or of the page cache costs up to ten times the second, above all in a virtual
machine. So files and buffers are made and filled once, when the case is made, and only written over while the clock
runs. The one exception is `append`: a log grows, and flushing a file that grew costs more than flushing one written
over, because its new length must reach the disk too. It is cut to nothing, untimed, before each repeat.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.measure import Case
from minibroker.bench.plot import LIMIT
from minibroker.bench.units import MIB, bytes_text

# macOS has no fdatasync. Its fsync reaches the drive but not the platter; no more can be had without F_FULLFSYNC.
flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def scratch_file(context: Context, name: str, bytes_count: int = 0) -> int:
    """Make a file of random bytes in the folder under test and return its descriptor, closed with the context."""
    descriptor = os.open(Path(context.directory, name), os.O_RDWR | os.O_CREAT, 0o600)
    context.on_close(os.close, descriptor)
    # Random, because some disks and file systems compress, or store nothing for zeros.
    block = random.Random(0).randbytes(min(bytes_count, MIB) or 1)
    for position in range(0, bytes_count, len(block)):
        os.pwrite(descriptor, block[: bytes_count - position], position)
    flush(descriptor)
    return descriptor


def block_positions(bytes_count: int, block_bytes: int) -> range:
    """List where the whole blocks of a file begin."""
    if bytes_count < block_bytes:
        raise ValueError(f"{bytes_count} bytes hold no block of {block_bytes}")
    return range(0, bytes_count - block_bytes + 1, block_bytes)


def write(
    descriptor: int,
    bytes_count: int,
    block_bytes: int,
    name: str = "",
    *,
    with_crc32c: bool = False,
    block: bytes | bytearray | None = None,
) -> Case:
    """Write blocks one after the other over a file in the page cache, each check-summed first if asked.

    A block of one's own makes a fair comparison: how a buffer lies in memory is worth some per cent.
    """
    checksum = crc32c_function() if with_crc32c else None
    block = block or random.Random(0).randbytes(block_bytes)
    positions = block_positions(bytes_count, block_bytes)

    def run() -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        for _ in positions:
            if checksum:
                checksum(block)
            os.write(descriptor, block)

    title = f"bare {'crc32c + ' if with_crc32c else ''}write, {bytes_text(block_bytes)}"
    return blocks_case(name or title, run, len(positions), block_bytes)


def append(
    descriptor: int,
    bytes_count: int,
    block_bytes: int,
    name: str = "",
    *,
    flush_every_bytes: int | None = None,
    with_crc32c: bool = False,
) -> Case:
    """Append blocks to a file of its own, emptied before; flush each time so many bytes were written, or never."""
    checksum = crc32c_function() if with_crc32c else None
    block = random.Random(0).randbytes(block_bytes)
    blocks_count = len(block_positions(bytes_count, block_bytes))
    blocks_per_flush = max(1, flush_every_bytes // block_bytes) if flush_every_bytes else blocks_count + 1

    def run() -> None:
        for number in range(1, blocks_count + 1):
            if checksum:
                checksum(block)
            os.write(descriptor, block)
            if number % blocks_per_flush == 0:
                flush(descriptor)

    every = f" + flush per {bytes_text(flush_every_bytes)}" if flush_every_bytes else ""
    title = f"bare {'crc32c + ' if with_crc32c else ''}append{every}, {bytes_text(block_bytes)}"
    return blocks_case(name or title, run, blocks_count, block_bytes, before=lambda: empty(descriptor))


def write_flush(descriptor: int, bytes_count: int, block_bytes: int, name: str = "") -> Case:
    """Append blocks to an empty file and flush after each: what flushing before every acknowledgement costs."""
    title = name or f"bare write + flush, {bytes_text(block_bytes)}"
    return append(descriptor, bytes_count, block_bytes, title, flush_every_bytes=block_bytes)


def blocks_case(
    name: str,
    run: Callable[[], None],
    blocks_count: int,
    block_bytes: int,
    before: Callable[[], object] | None = None,
) -> Case:
    """A case that moves so many blocks."""
    bytes_count = blocks_count * block_bytes
    return Case(name, run, bytes_count=bytes_count, operations_count=blocks_count, series=LIMIT, before=before)


def crc32c_function() -> Callable[[bytes | bytearray], int]:
    """What makes the checksum of a block."""
    # Imported here, so that the harness itself runs where the package is missing.
    from crc32c import crc32c as checksum  # noqa: PLC0415

    return checksum


def empty(descriptor: int) -> None:
    """Cut a file to nothing."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # Cutting the file is work for the disk too, and is not what is timed.
    flush(descriptor)
