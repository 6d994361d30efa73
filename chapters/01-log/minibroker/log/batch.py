"""The record batch: the same bytes are sent by a producer, stored by a broker and fetched by a consumer. Pure.

    position  size  field
           0     8  base offset          stamped by the broker, outside the checksum
           8     4  length               (bytes after this field)
          12     4  leader epoch         stamped by the broker, outside the checksum
          16     1  magic                2
          17     4  crc                  CRC-32C of everything after it
          21     2  attributes           codec, timestamp type, transactional, control
          23     4  last offset delta
          27     8  base timestamp
          35     8  max timestamp
          43     8  producer id
          51     2  producer epoch
          53     4  base sequence
          57     4  record count
          61        records              compressed together, if at all

Records are decoded only on request. No function here copies a batch. Each works on the caller's buffer, and a broker
stamps its own fields in place.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from minibroker.log.compression import DECOMPRESSED_BYTES_MAX, Bytes, Compression, compress, decompress
from minibroker.log.errors import CorruptBatch
from minibroker.log.record import Header, Record, decode_records, encode_record

MAGIC = 2

# Positions inside a batch.
LENGTH_AT = 8
LEADER_EPOCH_AT = LENGTH_AT + 4
MAGIC_AT = LEADER_EPOCH_AT + 4
CRC_AT = MAGIC_AT + 1
ATTRIBUTES_AT = CRC_AT + 4  # the checksum covers everything from here on
MAX_TIMESTAMP_AT = ATTRIBUTES_AT + 2 + 4 + 8  # attributes, last offset delta, base timestamp
RECORDS_AT = MAX_TIMESTAMP_AT + 8 + 8 + 2 + 4 + 4  # max timestamp, producer id, epoch, sequence, count

HEADER_SIZE = RECORDS_AT
LENGTH_COUNTS_FROM = LENGTH_AT + 4

_HEADER = struct.Struct(">q i i b I h i q q q h i i")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
assert _HEADER.size == HEADER_SIZE == 61

# Bits of the attributes.
COMPRESSION_MASK = 0b0000_0111
TIMESTAMP_TYPE_BIT = 0b0000_1000
TRANSACTIONAL_BIT = 0b0001_0000
CONTROL_BIT = 0b0010_0000
DELETE_HORIZON_BIT = 0b0100_0000

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
NO_OFFSET = -1


class TimestampType(enum.IntEnum):
    """Whether timestamps were set by the producer or, at the append, by the broker."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in their order on disk."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes. The field `length` counts only the bytes after itself."""
        return LENGTH_COUNTS_FROM + self.length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch was built with. Compaction may have removed it since."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last offset."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The codec's number. An unassigned number is refused only when the records are read."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the timestamps come from the producer's clock or from the broker's."""
        return TimestampType(bool(self.attributes & TIMESTAMP_TYPE_BIT))

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction, which a commit or abort marker ends."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether a broker wrote this batch for itself. Consumers skip it."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp holds the delete horizon, after which compaction may drop the tombstones."""
        return bool(self.attributes & DELETE_HORIZON_BIT)


# Reading ------------------------------------------------------------------------------------------------------------


def read_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """Read the header of the batch at `position`; refuse a magic other than 2, and a length that is too small."""
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptBatch(f"batch at position {position}: only {len(buffer) - position} of {HEADER_SIZE} header bytes")
    # This does what BatchHeader._make does, but saves a call. It runs for every batch that is appended or read.
    header = tuple.__new__(BatchHeader, _HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch at position {position}: magic {header.magic}, but only {MAGIC} is supported")
    if header.length < HEADER_SIZE - LENGTH_COUNTS_FROM:
        raise CorruptBatch(f"batch at position {position}: length {header.length} is too small for a header")
    return header


def check_crc(buffer: Bytes, header: BatchHeader, position: int = 0) -> None:
    """Require that the batch at `position` is whole and that its checksum is right."""
    # Take the bytes from the attributes to the batch's end; the buffer may end earlier, or hold more batches. Compare
    # the CRC-32C of these bytes with the crc in the header. If the two differ, the error names the computed crc.
    end = position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"batch at position {position}: only {len(buffer) - position} of {header.size} bytes")
    computed = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end])
    if computed != header.crc:
        raise CorruptBatch(f"batch at position {position}: crc {computed:#010x}, header says {header.crc:#010x}")


class Batch:
    """One batch as a view over the caller's bytes; records are decoded on request."""

    __slots__ = ("header", "view")

    def __init__(self, buffer: Bytes, position: int = 0) -> None:
        self.header = read_header(buffer, position)
        self.view = memoryview(buffer)[position : position + self.header.size]
        if len(self.view) != self.header.size:
            raise CorruptBatch(f"batch at position {position}: only {len(self.view)} of {self.header.size} bytes")

    def check_crc(self) -> None:
        """Require that the checksum is right."""
        check_crc(self.view, self.header)

    def records(self, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Decode the records one by one; `bytes_max` limits their decompressed size."""
        header = self.header
        data = decompress(header.compression, self.view[RECORDS_AT:], bytes_max=bytes_max)
        records = decode_records(
            data,
            count=header.record_count,
            base_offset=header.base_offset,
            base_timestamp=header.base_timestamp,
        )
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            # The broker wrote its time only into the header. That time is the timestamp of every record.
            return (record._replace(timestamp=header.max_timestamp) for record in records)
        return records


def batches(buffer: Bytes) -> Iterator[Batch]:
    """Iterate over the batches in a buffer, such as a fetched record set. A batch cut off at the end is skipped."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        if len(buffer) - position < header.size:
            return
        yield Batch(buffer, position)
        position += header.size


# Stamping -----------------------------------------------------------------------------------------------------------


def stamp(buffer: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Stamp a batch with its base offset and leader epoch. The checksum does not cover them, so it stays valid."""
    _BASE_OFFSET.pack_into(buffer, 0, base_offset)
    _LEADER_EPOCH.pack_into(buffer, LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, *, timestamp: int) -> None:
    """Replace the producer's timestamps by the broker's time, without changing a record."""
    # Set the timestamp type in the attributes, and the time as max timestamp. The checksum covers both fields, so it is
    # recomputed.
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, ATTRIBUTES_AT, attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, MAX_TIMESTAMP_AT, timestamp)
    _CRC.pack_into(buffer, CRC_AT, crc32c(memoryview(buffer)[ATTRIBUTES_AT:]))


# Building -----------------------------------------------------------------------------------------------------------


class BatchBuilder:
    """Gathers records and builds one batch of them, as a producer does."""

    def __init__(
        self,
        *,
        compression: Compression = Compression.NONE,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> None:
        self._attributes = compression | is_transactional * TRANSACTIONAL_BIT | is_control * CONTROL_BIT
        self._base_offset = base_offset
        self._leader_epoch = leader_epoch
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._records = bytearray()
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP
        self._next_offset = base_offset
        self.record_count = 0

    @property
    def size(self) -> int:
        """The size in bytes of a batch with the records so far, uncompressed."""
        return HEADER_SIZE + len(self._records)

    def append(
        self,
        *,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        offset: int | None = None,
    ) -> int:
        """Add one record and return its offset: the next free one, or a later `offset`, which leaves a gap."""
        if offset is None:
            offset = self._next_offset
        assert offset >= self._next_offset, f"offset {offset} is before the next free offset, {self._next_offset}"
        if self.record_count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        self._records += encode_record(
            offset_delta=offset - self._base_offset,
            timestamp_delta=timestamp - self._base_timestamp,
            key=key,
            value=value,
            headers=headers,
        )
        self._max_timestamp = max(self._max_timestamp, timestamp)
        self._next_offset = offset + 1
        self.record_count += 1
        return offset

    def build(self) -> bytearray:
        """Compress the records, put the header before them, and compute the checksum."""
        # `encode_batch` computes the length and the checksum, which are 0 here.
        before_checksum = (self._base_offset, 0, self._leader_epoch, MAGIC, 0)
        offsets = (self._attributes, self._next_offset - 1 - self._base_offset)
        times = (self._base_timestamp, self._max_timestamp)
        header = BatchHeader(*before_checksum, *offsets, *times, *self._producer, self.record_count)
        return encode_batch(header, self._records)


def encode_batch(header: BatchHeader, records: Bytes) -> bytearray:
    """Compress records as the header says and put the header before them, with its length and checksum."""
    records = compress(header.compression, records)
    batch = bytearray(HEADER_SIZE)
    batch += records
    base_offset, _length, *others = header
    _HEADER.pack_into(batch, 0, base_offset, len(batch) - LENGTH_COUNTS_FROM, *others)
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return batch
