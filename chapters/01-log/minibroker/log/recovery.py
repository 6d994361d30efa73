"""How much of a log file is valid after a crash. A pure module.

A batch is valid if it is whole, its checksum is right, and it continues the batches before it. The checksum does not
cover base offset and leader epoch, which the broker stamps. The check of continuity finds every wrong base offset in a
file that was never compacted, because its offsets are dense. It finds most wrong epochs, because epochs never decrease.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    NO_LEADER_EPOCH,
    BatchHeader,
    read_header,
)
from minibroker.log.checks import check_counts
from minibroker.log.errors import CorruptBatch, InvalidRecord
from minibroker.log.interfaces import File, FileSlice

CHUNK_BYTES = 1024 * 1024


class Recovered(NamedTuple):
    """The valid part of a file, and the damage after it, if any."""

    size: int
    log_end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    batch_count: int = 0
    gap: int = 0  # offsets missing directly before the last valid batch
    damage: CorruptBatch | None = None


def headers(file: File, *, position: int = 0, size: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Read the batch headers from `position` up to `size`, or to the end of the file, skipping the records."""
    size = file.size() if size is None else size
    while position < size:
        header = header_at(file, position)
        if position + header.size > size:
            raise CorruptBatch(f"batch at position {position}: only {size - position} of {header.size} bytes")
        yield position, header
        position += header.size


def header_at(file: File, position: int) -> BatchHeader:
    """Read the header at `position` of a file."""
    try:
        return read_header(file.pread(HEADER_SIZE, position))
    except CorruptBatch as error:
        # The error names the position in the buffer. Replace it by the position in the file.
        raise CorruptBatch(str(error).replace("position 0", f"position {position}", 1)) from None


def check_batch(file: File, position: int, header: BatchHeader) -> None:
    """Require that a batch's checksum is right. The batch is read in pieces, because its stated size may be wrong."""
    crc = 0
    covered = FileSlice(file, position + ATTRIBUTES_AT, header.size - ATTRIBUTES_AT)
    for chunk in covered.chunks(CHUNK_BYTES):
        crc = crc32c(chunk, crc)
    if crc != header.crc:
        raise CorruptBatch(f"batch at position {position}: crc {crc:#010x}, header says {header.crc:#010x}")


def check_continuity(position: int, header: BatchHeader, *, expected_offset: int, dense: bool = True) -> None:
    """Require that a batch begins where the one before it ended, and numbers its records densely.

    A log that was compacted, here or on another node, has gaps. Its offsets may skip numbers, but never decrease.
    """
    # A base offset below the expected one is damage. So is one above it, unless gaps are allowed.
    # Where gaps are not allowed, the header's counts must agree as well. The error names the found and the expected
    # offset.
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
    """Find how much of a file is valid. The part that `start` describes is not read again."""
    # Check each batch's checksum, and its base offset and epoch against the batches before it. Stop at the first batch
    # that fails: all batches before it are good. If an offset or an epoch decreases, `_without_wrong_batch` decides
    # which of the two batches is wrong, so keep the state before the last good batch as well. A batch before the
    # recovery point was flushed, so it stays even if it is found wrong.
    before = good = start
    try:
        for position, header in headers(file, position=start.size):
            check_batch(file, position, header)
            if header.leader_epoch < good.leader_epoch or (header.base_offset < good.log_end_offset and not dense):
                kept = _without_wrong_batch(file, before, good, position, header)
                return kept if kept.log_end_offset >= recovery_point else good._replace(damage=kept.damage)
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


def _without_wrong_batch(
    file: File, before: Recovered, good: Recovered, position: int, header: BatchHeader
) -> Recovered:
    # One of two neighbouring batches is wrong: A, the last good one, or B, the newcomer with this header. A is wrong
    # only if B continues the batch before A. Even then, B is wrong in two cases: if a valid batch after B continues A,
    # or if only B's offset decreases and no offset is missing before A.
    damage = CorruptBatch(
        f"batch at position {position}: base offset {header.base_offset} and leader epoch {header.leader_epoch} "
        f"after offset {good.log_end_offset - 1} and leader epoch {good.leader_epoch}"
    )
    newcomer_is_wrong = header.leader_epoch >= good.leader_epoch and good.gap == 0
    with suppress(CorruptBatch, StopIteration):
        after, header_after = next(headers(file, position=position + header.size))
        check_batch(file, after, header_after)
        newcomer_is_wrong |= _follows(header_after, good)
    good_is_wrong = not newcomer_is_wrong and _follows(header, before)
    return (before if good_is_wrong else good)._replace(damage=damage)


def _follows(header: BatchHeader, state: Recovered) -> bool:
    return header.base_offset >= state.log_end_offset and header.leader_epoch >= state.leader_epoch


def is_torn_tail(file: File, recovered: Recovered) -> bool:
    """Whether the invalid rest of a file can be one write that a crash interrupted.

    If not, a whole batch is damaged, or the file is not a log. Cutting off the rest could then lose whole batches.
    """
    left = file.size() - recovered.size
    try:
        header = header_at(file, recovered.size)
    except CorruptBatch:
        # Without a valid header, a torn tail is shorter than a header, or all zeros: the file grew, but its data never
        # reached the disk.
        return left < HEADER_SIZE or not any(file.pread(min(left, CHUNK_BYTES), recovered.size))
    return header.size >= left
