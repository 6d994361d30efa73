"""The physical limits: the speed of this machine without any code of the broker.

Each limit is a case like any other, made by a function, and runs in the same rounds as the code it is compared with.
This module has the limits of writing a file. The limits of a disk are in chapter 01's lab, and those of a connection in
`network`.

The first access to memory or to a page of the page cache costs up to ten times the second, above all in a virtual
machine. So files and buffers are made and filled once, when the case is made, and are only overwritten while the clock
runs. The one exception is `append`, because a log grows. Flushing a file that has grown costs more than flushing an
overwritten one, because the new length must reach the disk too. The file is emptied before each repeat, untimed.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.measure import Case
from minibroker.bench.plot import LIMIT
from minibroker.bench.units import MIB, bytes_text

_ZEROS = memoryview(bytes(MIB))
# macOS has no fdatasync. Its fsync reaches the drive but not the platter, which only F_FULLFSYNC reaches.
flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def scratch_file(context: Context, name: str, bytes_count: int = 0) -> int:
    """Make a file of random bytes in the folder under test; return its descriptor, which the context closes."""
    descriptor = os.open(Path(context.directory, name), os.O_RDWR | os.O_CREAT, 0o600)
    context.on_close(os.close, descriptor)
    # The bytes are random, because some disks and file systems compress, or store nothing for zeros.
    block = random.Random(0).randbytes(min(bytes_count, MIB) or 1)
    for position in range(0, bytes_count, len(block)):
        os.pwrite(descriptor, block[: bytes_count - position], position)
    flush(descriptor)
    return descriptor


def warm_memory(context: Context, bytes_count: int) -> None:
    """Let the kernel use memory for the page cache and free it again, so that what is measured next finds it warm.

    A virtual machine gives free memory back to its host within seconds. Its next use then costs ten times as much.
    """
    path = Path(context.directory, "warm")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # Unlinked before it is flushed, so it never reaches the disk.
        path.unlink()
        for position in range(0, bytes_count, MIB):
            os.pwrite(descriptor, _ZEROS[: bytes_count - position], position)
    finally:
        os.close(descriptor)


def block_positions(bytes_count: int, block_bytes: int) -> range:
    """Return the positions of the whole blocks of a file."""
    if bytes_count < block_bytes:
        raise ValueError(f"{bytes_count} bytes are less than one block of {block_bytes} bytes")
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
    """Overwrite a file in the page cache block by block; with `with_crc32c`, compute a checksum of each block first.

    For a fair comparison, pass the `block` of the compared code: the alignment of a buffer makes a difference of some
    per cent.
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
    """Append blocks to a file that is emptied first; flush after every `flush_every_bytes`, or never."""
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
    """Append blocks to an empty file and flush after each: the cost of a flush before every acknowledgement."""
    title = name or f"bare write + flush, {bytes_text(block_bytes)}"
    return append(descriptor, bytes_count, block_bytes, title, flush_every_bytes=block_bytes)


def blocks_case(
    name: str,
    run: Callable[[], None],
    blocks_count: int,
    block_bytes: int,
    before: Callable[[], object] | None = None,
) -> Case:
    """Make a case that moves `blocks_count` blocks."""
    bytes_count = blocks_count * block_bytes
    return Case(name, run, bytes_count=bytes_count, operations_count=blocks_count, series=LIMIT, before=before)


def crc32c_function() -> Callable[[bytes | bytearray], int]:
    """Return the checksum function."""
    # The package is imported here, so that the harness itself runs without it.
    from crc32c import crc32c as checksum  # noqa: PLC0415

    return checksum


def forget(path: Path) -> None:
    """Write a file to the disk, and let the page cache drop it. Only Linux can do the latter."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def empty(descriptor: int) -> None:
    """Truncate a file to 0 bytes."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # The disk's work for the truncation must be over before the writes are timed.
    flush(descriptor)
