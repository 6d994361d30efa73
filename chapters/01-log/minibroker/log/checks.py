"""What a batch must be like to be appended: exactly one batch, whole, with a right checksum and dense offsets. Pure."""

import struct
from typing import NoReturn

from crc32c import crc32c

from minibroker.log.batch import (
    ATTRIBUTES_AT,
    HEADER_SIZE,
    LENGTH_COUNTS_FROM,
    MAGIC,
    BatchHeader,
    check_crc,
    read_header,
)
from minibroker.log.compression import Bytes
from minibroker.log.errors import CorruptBatch, InvalidRecord

_CHECKED = struct.Struct(">8x i 4x b I 2x i 30x i")  # length, magic, crc, last offset delta, record count
assert _CHECKED.size == HEADER_SIZE


def check_counts(header: BatchHeader, *, dense: bool = True) -> None:
    """Require that a batch has records and numbers them densely from its base offset, as a producer must.

    In a compacted log, which is not `dense`, some or all records of a batch may be missing.
    """
    count, room = header.record_count, header.last_offset_delta + 1
    if room < 1 or not (1 if dense else 0) <= count <= room or (dense and count < room):
        raise InvalidRecord(
            f"{header.record_count} records and last offset delta {header.last_offset_delta} contradict each other"
        )


def check_whole(buffer: Bytes) -> None:
    """Require that a buffer is exactly one valid batch, as a producer must send it."""
    # This runs for every append, so one call unpacks the five fields that matter. If one is wrong, `_refuse` raises.
    if len(buffer) >= HEADER_SIZE:
        length, magic, crc, last_offset_delta, record_count = _CHECKED.unpack_from(buffer)
        if (
            magic == MAGIC
            and LENGTH_COUNTS_FROM + length == len(buffer)
            and last_offset_delta == record_count - 1 >= 0
            and crc32c(memoryview(buffer)[ATTRIBUTES_AT:]) == crc
        ):
            return
    _refuse(buffer)


def _refuse(buffer: Bytes) -> NoReturn:
    """Raise the error that says why a buffer is not one whole batch."""
    header = read_header(buffer)
    if header.size != len(buffer):
        raise CorruptBatch(f"the buffer has {len(buffer)} bytes, but the batch in it has {header.size}")
    check_crc(buffer, header)
    check_counts(header)
    raise AssertionError("check_whole refused a valid batch")
