"""The physical limits of a disk and its page cache, as cases like those of `minibroker.bench.limits`."""

import os
import random
from collections.abc import Sequence

from minibroker.bench import MIB, Case, bytes_text, limits

# macOS has no such call, so its page cache cannot be dropped.
can_drop_cache = hasattr(os, "posix_fadvise")


def drop_cache(descriptor: int) -> None:
    """Ask the kernel to forget the pages of a file, so that the next read goes to the device."""
    # Only clean pages can be dropped.
    limits.flush(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def shuffled_positions(bytes_count: int, block_bytes: int, blocks_max: int | None = None) -> list[int]:
    """List where the blocks begin, in a random order that is the same in every run."""
    positions = limits.block_positions(bytes_count, block_bytes)
    return random.Random(0).sample(positions, min(len(positions), blocks_max or len(positions)))


def memcpy(bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Copy one block over and over into a memory region of `bytes_count`, as a write copies into the page cache."""
    source = memoryview(random.Random(0).randbytes(block_bytes))
    target = memoryview(bytearray(bytes_count))
    positions = limits.block_positions(bytes_count, block_bytes)

    def run() -> None:
        for position in positions:
            target[position : position + block_bytes] = source

    return limits.blocks_case(name or f"memcpy, {bytes_text(block_bytes)}", run, len(positions), block_bytes)


def read(
    descriptor: int, positions: Sequence[int], block_bytes: int, name: str = "", *, from_device: bool = False
) -> Case:
    """Read blocks at these positions into one buffer, from the page cache or, after it is dropped, from the device."""
    buffer = [bytearray(block_bytes)]

    def run() -> None:
        for position in positions:
            if os.preadv(descriptor, buffer, position) != block_bytes:
                raise EOFError(f"no whole block of {block_bytes} bytes at position {position}")

    before = (lambda: drop_cache(descriptor)) if from_device else None
    return limits.blocks_case(
        name or f"read, {bytes_text(block_bytes)}", run, len(positions), block_bytes, before=before
    )


def overwrite(
    descriptor: int, positions: Sequence[int], block_bytes: int, name: str = "", *, to_device: bool = False
) -> Case:
    """Write blocks at the given positions of a file, into the page cache or with one flush at the end."""
    block = random.Random(0).randbytes(block_bytes)

    def run() -> None:
        for position in positions:
            os.pwrite(descriptor, block, position)
        if to_device:
            limits.flush(descriptor)

    # Unwritten data of another case must not be flushed in the time of this one.
    before = (lambda: limits.flush(descriptor)) if to_device else None
    return limits.blocks_case(
        name or f"overwrite, {bytes_text(block_bytes)}", run, len(positions), block_bytes, before=before
    )
