"""Which bytes of a log file may be believed after a crash.

A batch is believed if it is whole, its checksum is right, and it continues the batches before it. The checksum does
not cover base offset and leader epoch, which the broker stamps; continuity does. Offsets in a file that was never
compacted are dense, and epochs never fall.
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
    damage: CorruptBatch | None = None


def headers(file: File, *, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over the batch headers from `position` on, hopping over the records. Ends with the file."""
    size = file.size()
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


def check_continuity(position: int, header: BatchHeader, *, expected_offset: int) -> None:
    """Demand that a batch begins where the one before it ended, and numbers its records densely."""
    if header.base_offset != expected_offset:
        raise CorruptBatch(
            f"batch at position {position}: base offset {header.base_offset}, expected {expected_offset}"
        )
    try:
        check_counts(header)
    except InvalidRecord as error:
        raise CorruptBatch(f"batch at position {position}: {error}") from None


def recover(file: File, *, base_offset: int) -> Recovered:
    """Read a file from its start and find how much of it may be believed."""
    # Walk over the batches; check the sum of each, its base offset and its epoch against what came before.
    # Stop at the first that fails: all before it is good. Keep the state before the last good batch as well.
    before = good = Recovered(size=0, log_end_offset=base_offset)
    try:
        for position, header in headers(file):
            check_batch(file, position, header)
            check_continuity(position, header, expected_offset=good.log_end_offset)
            if header.leader_epoch < good.leader_epoch:
                return _epoch_fell(before, good, position, header)
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
    )


def _epoch_fell(before: Recovered, good: Recovered, position: int, header: BatchHeader) -> Recovered:
    # One of two neighbours lies. If the newcomer agrees with the batch before the last one, the last one stood out.
    damage = CorruptBatch(f"batch at position {position}: leader epoch {header.leader_epoch} after {good.leader_epoch}")
    believed = before if header.leader_epoch >= before.leader_epoch else good
    return believed._replace(damage=damage)
