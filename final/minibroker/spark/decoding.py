"""Decodes the record sets of a fetch into Arrow columns, without an object for every record. A pure module.

A record's position follows from the length of the record before it, so Python walks over the lengths one by one. Where
many consecutive records have the same length, one strided comparison finds them all. numpy reads everything else, field
by field, for all records of several batches at once; each field is one varint per record.
Arrow copies the keys. For this, a binary array over the raw bytes gets the offsets [start, end, start, end, …] of the
keys. Every second element of this array is a key, and `take` copies these elements. The values are copied in the same
way.

A batch with anything unusual (a length that does not add up, a varint that is too long, a number near the limits of its
type) is left to chapter 01's plain decoder, which either raises its own error or decodes the batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibroker.log.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_COUNTS_FROM,
    RECORDS_AT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    TimestampType,
    check_crc,
    read_header,
)
from minibroker.log.compression import DECOMPRESSED_BYTES_MAX, Bytes, Compression, decompress
from minibroker.log.errors import InvalidRecord, InvalidVarint
from minibroker.log.record import Header, Record, decode_records
from minibroker.log.varint import VARINT_BYTES_MAX, VARLONG_BYTES_MAX, decode_unsigned_varint

Ints = npt.NDArray[np.int64]
Raws = npt.NDArray[np.uint64]
Octets = npt.NDArray[np.uint8]

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))

ROWS_MAX = 10_000
OFFSET_MAX = 2**63 - 1

_GROUP_BYTES_MAX = 4 * 1024 * 1024  # records decoded together: enough for numpy, small enough for the cache
_ARROW_BYTES_MAX = 2**31 - 1  # Arrow's binary arrays count bytes in 32 bits
_RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value, headers: one byte each
_MICROS = 1000  # microseconds in a millisecond
_TIMESTAMP_MAX = OFFSET_MAX // _MICROS  # milliseconds that Arrow can hold as microseconds
_SAFE = 2**61  # the sum of two numbers fits in 64 bits if both are smaller than this, and greater than its negative
_RAW_NULL = 1  # zigzag(-1)

_RUN_MIN = 16  # the fewest consecutive records of equal length that are skipped in one step
_WINDOW = 64  # records in the first comparison; each further comparison takes four times as many
_HOPS = 256  # records to walk over one by one before the next search for equal lengths


def decode(
    topic: str,
    partition: int,
    record_set: Bytes,
    *,
    from_offset: int = 0,
    upto_offset: int = OFFSET_MAX,
    include_headers: bool = False,
    rows_max: int = ROWS_MAX,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    check_crcs: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Decode records from `from_offset` up to `upto_offset`, exclusive, into Arrow batches of up to `rows_max` rows.

    Control batches are skipped, and so is a batch that is cut off at the end of the record set. `bytes_max` bounds the
    decompressed size of one batch. Headers are decoded only with `include_headers`; a record without any has null.
    """
    schema = SCHEMA_WITH_HEADERS if include_headers else SCHEMA
    bytes_max = min(bytes_max, _ARROW_BYTES_MAX)
    wanted = _wanted(
        record_set, from_offset=from_offset, upto_offset=upto_offset, bytes_max=bytes_max, check_crcs=check_crcs
    )
    for group in _groups(wanted, rows_max=rows_max):
        columns = _columns(group, from_offset=from_offset, upto_offset=upto_offset, include_headers=include_headers)
        count = len(columns.offset)
        names = [pa.repeat(pa.scalar(topic, pa.string()), count), pa.repeat(pa.scalar(partition, pa.int32()), count)]
        arrays = [columns.key, columns.value, *names, columns.offset, columns.timestamp, columns.timestamp_type]
        rows = pa.RecordBatch.from_arrays([*arrays, columns.headers] if include_headers else arrays, schema=schema)
        for first in range(0, count, rows_max):
            yield rows.slice(first, rows_max)


# Batches ------------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """One batch and its records, decompressed."""

    header: BatchHeader
    records: Bytes


def _wanted(
    record_set: Bytes, *, from_offset: int, upto_offset: int, bytes_max: int, check_crcs: bool
) -> Iterator[_Part]:
    """Walk over the whole batches as chapter 01's `batches` does, and decompress the batches within the offsets."""
    view, position = memoryview(record_set), 0
    while len(view) - position >= HEADER_SIZE:
        header = read_header(view, position)
        end = position + LENGTH_COUNTS_FROM + header.length
        if end > len(view) or header.base_offset >= upto_offset:
            return
        if not header.attributes & CONTROL_BIT and header.last_offset >= from_offset:
            if check_crcs:
                check_crc(view, header, position)
            yield _plain(header, view[position + RECORDS_AT : end], bytes_max)
        position = end


def _plain(header: BatchHeader, records: memoryview, bytes_max: int) -> _Part:
    plain: Bytes = records
    codec = header.attributes & COMPRESSION_MASK
    if codec != Compression.NONE:
        plain = decompress(codec, records, bytes_max=bytes_max)
    # The record count is not trusted: a wrong count must not cause a huge allocation.
    if not 0 <= header.record_count <= len(plain) // _RECORD_BYTES_MIN:
        raise InvalidRecord(f"{header.record_count} records do not fit in {len(plain)} bytes")
    return _Part(header, plain)


def _groups(wanted: Iterator[_Part], *, rows_max: int) -> Iterator[list[_Part]]:
    """Group batches to decode together: as many as fit in one Arrow batch, and at least one."""
    group: list[_Part] = []
    row_count = byte_count = 0
    for part in wanted:
        row_count += part.header.record_count
        byte_count += len(part.records)
        if group and (row_count > rows_max or byte_count > _GROUP_BYTES_MAX):
            yield group
            group, row_count, byte_count = [], part.header.record_count, len(part.records)
        group.append(part)
    if group:
        yield group


# Columns ------------------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """Arrow arrays of the same length."""

    key: pa.Array
    value: pa.Array
    offset: pa.Array
    timestamp: pa.Array
    timestamp_type: pa.Array
    headers: pa.Array


class _Unusual(Exception):
    """A batch that is left to the plain decoder."""


def _columns(group: Sequence[_Part], *, from_offset: int, upto_offset: int, include_headers: bool) -> _Columns:
    every = _try_fields(group, _Walk) or _try_fields(group, _FarWalk)
    if every is None:
        found = [row for part in group for row in _plain_rows(part) if from_offset <= row.record.offset < upto_offset]
        return _plain_columns(found)
    rows = every.within(from_offset, upto_offset)
    return _Columns(
        key=_binary(rows.data, rows.key_at, rows.key_raw),
        value=_binary(rows.data, rows.value_at, rows.value_raw),
        offset=_fixed(pa.int64(), rows.offset),
        timestamp=_fixed(SCHEMA.field("timestamp").type, rows.timestamp * _MICROS),
        timestamp_type=_fixed(pa.int32(), rows.timestamp_type.astype(np.int32)),
        headers=_headers(rows) if include_headers else None,
    )


def _fixed(kind: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _binary(data: bytes, at: Ints, raw: Ints) -> pa.Array:
    """Copy pieces of different lengths from the data into an array; a raw length of 1, zigzag for -1, is null."""
    count = len(at)
    null = raw == _RAW_NULL
    is_some_null = bool(null.any())
    if is_some_null and null.all():
        return pa.nulls(count, pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = at
    offsets[1::2] = at + (raw >> 1)
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(), max(2 * count - 1, 0), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    even = np.arange(0, 2 * count, 2, dtype=np.int64)
    return pieces.take(pa.array(even, mask=null) if is_some_null else pa.array(even))


def _headers(rows: "_Rows") -> pa.Array:
    """Decode the headers, record by record, of the records that have any."""
    found: list[Sequence[Header]] = []
    counts = np.zeros(len(rows.offset), np.int32)
    for row in np.flatnonzero(rows.has_headers).tolist():
        start, end = int(rows.start[row]), int(rows.end[row])
        (record,) = decode_records(rows.data[start:end], count=1, base_offset=0, base_timestamp=0)
        found.append(record.headers)
        counts[row] = len(record.headers)
    return _header_lists(counts, [header for headers in found for header in headers])


def _header_lists(counts: npt.NDArray[np.int32], flat: Sequence[Header]) -> pa.Array:
    keys = pa.array([key for key, _value in flat], pa.string())
    values = pa.array([value for _key, value in flat], pa.binary())
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=HEADERS, mask=pa.array(counts == 0))


# Fields -------------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The positions of the fields of each record in `data`; raw lengths are zigzag-encoded."""

    data: bytes
    start: Ints
    end: Ints
    offset: Ints
    timestamp: Ints
    timestamp_type: Ints
    key_at: Ints
    key_raw: Ints
    value_at: Ints
    value_raw: Ints
    has_headers: npt.NDArray[np.bool_]

    def within(self, from_offset: int, upto_offset: int) -> "_Rows":
        """Return the rows within these offsets."""
        offset = self.offset
        if not len(offset) or (offset.min() >= from_offset and offset.max() < upto_offset):
            return self
        kept = (offset >= from_offset) & (offset < upto_offset)
        columns: list[Any] = [column[kept] for column in self[1:]]
        return _Rows(self.data, *columns)


def _try_fields(group: Sequence[_Part], walk: "type[_Walk]") -> _Rows | None:
    try:
        data = b"".join([part.records for part in group])
        return _fields(group, data, *_bounds(group, walk(data)))
    except (_Unusual, IndexError, InvalidVarint):
        return None


def _fields(group: Sequence[_Part], data: bytes, start: Ints, end: Ints) -> _Rows:
    """Find all fields of all records of a group of batches."""
    octets = np.frombuffer(data, np.uint8)
    length, position = _varints(octets, start, VARINT_BYTES_MAX)
    _demand(not (length & np.uint64(1)).any())
    _demand(bool((position + (length >> np.uint64(1)).view(np.int64) == end).all()))
    # Skip one byte of attributes, which have no meaning yet.
    timestamp_raw, position = _varints(octets, position + 1, VARLONG_BYTES_MAX)
    offset_raw, position = _varints(octets, position, VARINT_BYTES_MAX)
    key_raw, key_at = _lengths(octets, position)
    value_raw, value_at = _lengths(octets, key_at + (key_raw >> 1))
    header_at = value_at + (value_raw >> 1)
    has_headers = octets.take(header_at, mode="clip") != 0
    # Positions only grow, so a field that goes beyond its record also puts the last position beyond the record's end.
    _demand(bool((has_headers | (header_at + 1 == end)).all()) and bool((header_at < end).all()))
    offset, timestamp, timestamp_type = _stamps(group, _unzigzag(offset_raw), _unzigzag(timestamp_raw))
    return _Rows(data, start, end, offset, timestamp, timestamp_type, key_at, key_raw, value_at, value_raw, has_headers)


def _demand(holds: bool) -> None:
    if not holds:
        raise _Unusual


def _varints(octets: Octets, at: Ints, bytes_max: int) -> tuple[Raws, Ints]:
    """Read one unsigned varint at each position; return the numbers and the positions after them."""
    first = octets.take(at, mode="clip")
    value = first.astype(np.uint64)
    position = at + 1
    more = np.flatnonzero(first > 0x7F)
    if len(more) == 0:
        return value, position
    value &= np.uint64(0x7F)
    for shift in range(7, 7 * bytes_max, 7):
        # If all varints have another byte, as the lengths of large values do, no selection is needed.
        if len(more) == len(at):
            byte = octets.take(position, mode="clip")
            value |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            position += 1
        else:
            byte = octets.take(position[more], mode="clip")
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            position[more] += 1
        goes_on = byte > 0x7F
        if not goes_on.any():
            _demand(shift < 7 * (bytes_max - 1))
            return value, position
        more = more[goes_on]
    # A varint is longer than its type allows.
    raise _Unusual


def _lengths(octets: Octets, at: Ints) -> tuple[Ints, Ints]:
    raw, position = _varints(octets, at, VARINT_BYTES_MAX)
    _demand(not ((raw & np.uint64(1)).astype(bool) & (raw != _RAW_NULL)).any())
    return raw.view(np.int64), position


def _unzigzag(raw: Raws) -> Ints:
    numbers = raw.view(np.int64)
    return ((raw >> np.uint64(1)).view(np.int64)) ^ -(numbers & 1)


def _stamps(group: Sequence[_Part], offset_delta: Ints, timestamp_delta: Ints) -> tuple[Ints, Ints, Ints]:
    """Compute offsets, timestamps and timestamp types from the deltas of the records and the batch headers."""
    # Each field of the headers becomes a column.
    columns: list[Any] = list(zip(*(part.header for part in group), strict=True))
    fields = BatchHeader(*columns)
    counts = np.array(fields.record_count)

    def of_record(field: Any) -> Ints:
        column = np.array(field, np.int64)
        _demand(bool((column > -_SAFE).all() and (column < _SAFE).all()))
        return np.repeat(column, counts)

    _demand(bool((timestamp_delta > -_SAFE).all() and (timestamp_delta < _SAFE).all()))
    offset = offset_delta + of_record(fields.base_offset)
    timestamp = timestamp_delta + of_record(fields.base_timestamp)
    is_append_time = (of_record(fields.attributes) & TIMESTAMP_TYPE_BIT) != 0
    if is_append_time.any():
        timestamp = np.where(is_append_time, of_record(fields.max_timestamp), timestamp)
    _demand(bool((timestamp >= -_TIMESTAMP_MAX).all() and (timestamp <= _TIMESTAMP_MAX).all()))
    return offset, timestamp, is_append_time.astype(np.int64)


# Lengths ------------------------------------------------------------------------------------------------------------


def _bounds(group: Sequence[_Part], walk: "_Walk") -> tuple[Ints, Ints]:
    """Find the start and the end of each record, by walking from length to length."""
    lasts, ends = [], []
    count = 0
    for part in group:
        walk.over(part.header.record_count, walk.position + len(part.records))
        if part.header.record_count:
            count += part.header.record_count
            lasts.append(count - 1)
            ends.append(walk.position)
    start = walk.starts()
    # A record ends where the next one starts; the last record of a batch ends with the batch.
    end_of = np.empty_like(start)
    end_of[:-1] = start[1:]
    end_of[lasts] = ends
    return start, end_of


class _Walk:
    """Walks over the records of one batch after the other, and collects their starts.

    It assumes that each length takes one or two bytes, so that a record has up to 8 KB. `_fields` reads all lengths
    again and detects a longer one.
    """

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data = data
        self._pieces: list[Ints] = []
        self._hopped: list[int] = []

    def starts(self) -> Ints:
        """Return the starts of all records."""
        self._close()
        return np.concatenate(self._pieces) if self._pieces else np.empty(0, np.int64)

    def _close(self) -> None:
        if self._hopped:
            self._pieces.append(np.fromiter(self._hopped, np.int64, len(self._hopped)))
            self._hopped.clear()

    def over(self, count: int, end: int) -> None:
        """Walk over `count` records, which must end at `end`."""
        window = _WINDOW
        while count:
            run = self._run(min(count, window), end) if count >= _WINDOW else 0
            count -= run
            if run == window:
                window *= 4
            elif run < _RUN_MIN and count:
                hops = min(count, _HOPS)
                self._hop(hops)
                count -= hops
                window = _WINDOW
        _demand(self.position == end)

    def _run(self, window: int, end: int) -> int:
        """Walk over all records from here on that are as long as the first; return their number.

        The bytes of the length fields are compared at a fixed distance, the size of the first record. As long as they
        are equal, each record has that size, so the next record does start where the comparison expects it.
        """
        data, position = self._data, self.position
        raw, body = decode_unsigned_varint(data, position)
        stride = body - position + (raw >> 1)
        run = min(window, (end - position) // stride)
        for at in range(position, body):
            column = data[at : at + run * stride : stride]
            run = len(column) - len(column.lstrip(column[:1]))
        if run < _RUN_MIN:
            return 0
        self._close()
        self.position += run * stride
        self._pieces.append(np.arange(position, self.position, stride))
        return run

    def _hop(self, count: int) -> None:
        """Walk over the next records one by one."""
        data, position, steps = self._data, self.position, _STEPS
        self._hopped.append(position)
        # Append the end of each record, which is the start of the next one. The last end is removed again, and becomes
        # the new position. A comprehension is used because it takes a quarter less time than a loop.
        self._hopped += [
            position := position
            + (steps[raw] if (raw := data[position]) < 0x80 else steps[raw] + (data[position + 1] << 6))
            for _ in range(count)
        ]
        self.position = self._hopped.pop()


class _FarWalk(_Walk):
    """Walks over records with lengths of any width."""

    def _hop(self, count: int) -> None:
        data, position = self._data, self.position
        for _ in range(count):
            self._hopped.append(position)
            raw, body = decode_unsigned_varint(data, position)
            position = body + (raw >> 1)
        self.position = position


# The distance to the next record, for each value of the length's first byte. The lowest bit of that byte is the sign. A
# second byte adds 64 times its value.
_STEPS = [1 + (raw >> 1) if raw < 0x80 else 2 + (raw - 0x80 >> 1) for raw in range(0x100)]


# The plain decoder --------------------------------------------------------------------------------------------------


class _PlainRow(NamedTuple):
    record: Record
    timestamp_type: int


def _plain_rows(part: _Part) -> Iterator[_PlainRow]:
    header = part.header
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for record in decode_records(
        bytes(part.records),
        count=header.record_count,
        base_offset=header.base_offset,
        base_timestamp=header.base_timestamp,
    ):
        timestamp = header.max_timestamp if is_append_time else record.timestamp
        yield _PlainRow(record._replace(timestamp=timestamp), header.timestamp_type)


def _plain_columns(rows: Sequence[_PlainRow]) -> _Columns:
    for row in rows:
        _refuse_unrepresentable(row.record)
    counts = np.array([len(row.record.headers) for row in rows], np.int32)
    micros = [row.record.timestamp * _MICROS for row in rows]
    return _Columns(
        key=pa.array([row.record.key for row in rows], pa.binary()),
        value=pa.array([row.record.value for row in rows], pa.binary()),
        offset=pa.array([row.record.offset for row in rows], pa.int64()),
        timestamp=pa.array(micros, pa.int64()).cast(SCHEMA.field("timestamp").type),
        timestamp_type=pa.array([row.timestamp_type for row in rows], pa.int32()),
        headers=_header_lists(counts, [header for row in rows for header in row.record.headers]),
    )


def _refuse_unrepresentable(record: Record) -> None:
    if not -_TIMESTAMP_MAX <= record.timestamp <= _TIMESTAMP_MAX:
        raise InvalidRecord(
            f"the record at offset {record.offset} has timestamp {record.timestamp} ms, but a DataFrame holds at most"
            f" {_TIMESTAMP_MAX}: start after it (startingOffsets {record.offset + 1})"
        )
