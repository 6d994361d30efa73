"""Which bytes of a log file may be believed after a crash. A pure module.

A batch is believed if it is whole, its checksum is right, and it continues the batches before it. The checksum does
not cover base offset and leader epoch, which the broker stamps. Continuity covers all of the first, because offsets
in a file that was never compacted are dense, and much of the second, because epochs never fall.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    BatchHeader,
    check_counts,
    read_header,
)
from minibroker.log.errors import CorruptBatch, InvalidRecord
from minibroker.log.interfaces import File, FileSlice

CHUNK_BYTES = 1024 * 1024


class Recovered(NamedTuple):
    """The part of a file that may be believed, and why the rest may not."""

    size: int
    log_end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    batch_count: int = 0
    gap: int = 0  # offsets missing before its last batch
    damage: CorruptBatch | None = None


def headers(file: File, *, position: int = 0, size: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over the batch headers from `position` on, hopping over the records. Ends at `size`, or with the file."""
    size = file.size() if size is None else size
    while position < size:
        header = header_at(file, position)
        if position + header.size > size:
            raise CorruptBatch(f"batch at position {position}: {size - position} of {header.size} bytes")
        yield position, header
        position += header.size


def header_at(file: File, position: int) -> BatchHeader:
    """Read the header at `position` of a file."""
    try:
        return read_header(file.pread(HEADER_SIZE, position))
    except CorruptBatch as error:
        # The message counts from the buffer's start; a person needs the place in the file.
        raise CorruptBatch(str(error).replace("position 0", f"position {position}", 1)) from None


def check_batch(file: File, position: int, header: BatchHeader) -> None:
    """Demand a right checksum, reading a batch of any claimed size in pieces of one chunk."""
    crc = 0
    covered = FileSlice(file, position + ATTRIBUTES_AT, header.size - ATTRIBUTES_AT)
    for chunk in covered.chunks(CHUNK_BYTES):
        crc = crc32c(chunk, crc)
    if crc != header.crc:
        raise CorruptBatch(f"batch at position {position}: crc {crc:#010x}, header says {header.crc:#010x}")


def check_continuity(position: int, header: BatchHeader, *, expected_offset: int, dense: bool = True) -> None:
    """Demand that a batch begins where the one before it ended, and numbers its records densely.

    A log that was compacted, here or on the machine it is copied from, has gaps: then offsets must only not fall.
    """
    # A base offset below the expected one is damage; one above it too, unless gaps are allowed.
    # Where they are not, the header's counts must agree as well. Say what was found and what was expected.
    falls = header.base_offset < expected_offset
    if falls or (dense and header.base_offset > expected_offset):
        raise CorruptBatch(
            f"batch at position {position}: base offset {header.base_offset}, expected {expected_offset}"
        )
    try:
        check_counts(header, dense=dense)
    except InvalidRecord as error:
        raise CorruptBatch(f"batch at position {position}: {error}") from None


def recover(file: File, *, start: Recovered, dense: bool = True, recovery_point: int = 0) -> Recovered:
    """Find how much of a file may be believed. What `start` says is believed already; read from there on."""
    # Walk over the batches; check the sum of each, its base offset and its epoch against what came before.
    # Stop at the first that fails: all before it is good. Keep the state before the last good batch as well: where a
    # number falls, `_fallen` needs both. It never gives up for a doubt what is before the recovery point.
    before = good = start
    try:
        for position, header in headers(file, position=start.size):
            check_batch(file, position, header)
            if header.leader_epoch < good.leader_epoch or (header.base_offset < good.log_end_offset and not dense):
                fallen = _fallen(file, before, good, position, header)
                return fallen if fallen.log_end_offset >= recovery_point else good._replace(damage=fallen.damage)
            check_continuity(position, header, expected_offset=good.log_end_offset, dense=dense)
            before, good = good, _extended(good, header)
    except CorruptBatch as error:
        return good._replace(damage=error)
    return good


def _extended(good: Recovered, header: BatchHeader) -> Recovered:
    return Recovered(
        size=good.size + header.size,
        log_end_offset=header.next_offset,
        leader_epoch=header.leader_epoch,
        batch_count=good.batch_count + 1,
        gap=header.base_offset - good.log_end_offset,
    )


def _fallen(file: File, before: Recovered, good: Recovered, position: int, header: BatchHeader) -> Recovered:
    # One of two neighbours lies: the last good batch, or the newcomer. If the batch behind the newcomer follows the
    # good one, the newcomer lies; also if it falls in offsets and the good one left no gap. Else, if the newcomer
    # follows the batch before, the good one stood out.
    damage = CorruptBatch(
        f"batch at position {position}: base offset {header.base_offset} and leader epoch {header.leader_epoch} "
        f"after {good.log_end_offset - 1} and {good.leader_epoch}"
    )
    try:
        newcomer_lies = _follows(header_at(file, position + header.size), good)
    except CorruptBatch:
        newcomer_lies = False
    newcomer_lies |= header.leader_epoch >= good.leader_epoch and good.gap == 0
    stood_out = not newcomer_lies and _follows(header, before)
    return (before if stood_out else good)._replace(damage=damage)


def _follows(header: BatchHeader, state: Recovered) -> bool:
    return header.base_offset >= state.log_end_offset and header.leader_epoch >= state.leader_epoch


def is_torn_tail(file: File, recovered: Recovered) -> bool:
    """Whether what may not be believed can be a write that a crash interrupted, with nothing behind it.

    Anything else is damage to what was once whole, or no log at all: cutting would throw away more than was torn.
    """
    left = file.size() - recovered.size
    try:
        header = header_at(file, recovered.size)
    except CorruptBatch:
        # Fewer bytes than a header, or zeros where the file grew and its data never arrived.
        return left < HEADER_SIZE or not any(file.pread(min(left, CHUNK_BYTES), recovered.size))
    return header.size >= left
