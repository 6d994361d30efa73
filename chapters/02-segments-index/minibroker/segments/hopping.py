"""Go from batch to batch in a log file, several headers in one read. A pure module.

An index entry leads to a position at or before the batch that is looked for. From there a search hops over the headers:
each one says how long its batch is, so the records in between are not read.
"""

import struct
from collections.abc import Iterator

from minibroker.log.batch import HEADER_SIZE, LENGTH_COUNTS_FROM, BatchHeader, read_header
from minibroker.log.errors import CorruptBatch
from minibroker.log.interfaces import File
from minibroker.log.recovery import header_at

# The header fields that a search needs: base offset, length, last offset delta, max timestamp.
_HOP = struct.Struct(">q i 11x i 8x q")
_HOP_BYTES = 8192  # one read is usually enough, because index entries are 4 KiB apart
assert _HOP.size == HEADER_SIZE - 8 - 2 - 4 - 4  # without producer id, epoch, sequence and count


def header_ending_with(file: File, offset: int, position: int) -> BatchHeader | None:
    """The header at `position`, if its batch ends with `offset`. An index has no checksum; this checks one entry."""
    try:
        header = header_at(file, position)
    except CorruptBatch:
        return None
    return header if header.last_offset == offset else None


def hop(
    file: File, path: str, position: int, *, size: int, offset: int, timestamp: int
) -> tuple[int, BatchHeader] | None:
    """The first batch from `position` on with a last offset >= `offset` or a max timestamp >= `timestamp`."""
    while position < size:
        chunk = file.pread(min(_HOP_BYTES, size - position), position)
        at = 0
        while at + HEADER_SIZE <= len(chunk):
            base_offset, length, last_offset_delta, max_timestamp = _HOP.unpack_from(chunk, at)
            if base_offset + last_offset_delta >= offset or max_timestamp >= timestamp:
                return position + at, _whole(chunk, at, path, position=position + at, size=size)
            if length <= 0:
                raise CorruptBatch(f"{path}: the batch at position {position + at} has the invalid length {length}")
            at += LENGTH_COUNTS_FROM + length
        if at == 0:
            raise CorruptBatch(f"{path}: a torn batch at position {position}")
        position += at
    if position > size:
        raise CorruptBatch(f"{path}: a batch ends at position {position}, past the file's end")
    return None


def walk(file: File, path: str, position: int, *, size: int) -> Iterator[tuple[int, BatchHeader]]:
    """All batch headers from a position on. One read of the file covers several headers."""
    chunk, start = b"", position
    while position < size:
        if position + HEADER_SIZE - start > len(chunk):
            chunk, start = file.pread(min(_HOP_BYTES, size - position), position), position
        header = _whole(chunk, position - start, path, position=position, size=size)
        yield position, header
        position += header.size


def _whole(chunk: bytes, at: int, path: str, *, position: int, size: int) -> BatchHeader:
    """The header at index `at` of a chunk. Its batch, at `position` of the file, must be whole."""
    try:
        header = read_header(chunk, at)
    except CorruptBatch as error:
        # The error names the position in the chunk. Replace it by the position in the file.
        raise CorruptBatch(f"{path}: {str(error).replace(f'position {at}', f'position {position}', 1)}") from None
    if position + header.size > size:
        raise CorruptBatch(f"{path}: a batch ends at position {position + header.size}, past the file's end")
    return header
