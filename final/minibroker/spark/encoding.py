"""Encodes the Arrow columns of a sink into batches, without an object for each row. A pure module.

A record is a sequence of fields, and all but key, value and headers are varints. numpy writes the varints of each row
into a slot of its own; then Arrow joins slots, keys and values. As in the decoder, there is a binary array over all
sources with the offsets [start, end, start, end, …]. Every second element of it is a piece of a record, and `take`
copies the pieces one after another, so that the copied bytes are the records in order.

The end of each batch is computed first, from the largest size that each row can have. Chapter 01 then compresses the
records of each batch, adds the header and computes the checksum.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minibroker.log.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    encode_batch,
)
from minibroker.log.compression import Compression
from minibroker.log.errors import InvalidRecord, RecordsTooLarge
from minibroker.log.varint import encode_varint
from minibroker.spark.murmur2 import murmur2 as murmur2
from minibroker.spark.murmur2 import partitions_of as partitions_of

Ints = npt.NDArray[np.int64]
_Piece = tuple[memoryview | None, Ints, Ints]  # the data, and the start and the size of each row's part of it

BATCH_BYTES_MAX = 16 * 1024

_CHUNK_BYTES_MAX = 4 * 1024 * 1024  # records encoded together: enough for numpy, small enough for the cache
_ARROW_BYTES_MAX = 2**31 - 1  # Arrow's binary arrays count bytes in 32 bits
SEQUENCES = 2**31  # after this many, sequences begin again with 0

# The fields of a slot: the header count that ends the row before, if that row has no headers; then this row's length,
# attributes, timestamp, offset, length of the key and length of the value.
_SLOT_BYTES = 1 + 5 + 1 + 10 + 5 + 5 + 5
_RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value, headers: one byte each
_RAW_NULL = 1  # zigzag(-1)
_NO_HEADERS = b"\x00"
_TIMESTAMP_SPAN_MAX = 2**62  # zigzag doubles a difference, which must then fit into an int64


class Producer(NamedTuple):
    """The fields of a batch's header for idempotence; `base_sequence` is the sequence of the first row."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False

    def sequence(self, row: int) -> int:
        """The sequence of a row."""
        return NO_SEQUENCE if self.base_sequence == NO_SEQUENCE else (self.base_sequence + row) % SEQUENCES


NOT_IDEMPOTENT = Producer()


def encode(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None = None,
    timestamps: pa.Array | None = None,
    *,
    timestamp_ms: int,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    compression: Compression = Compression.NONE,
    producer: Producer = NOT_IDEMPOTENT,
) -> Iterator[bytearray]:
    """Encode rows for one partition, in their order, as batches of up to `batch_bytes_max` bytes before compression.

    A larger row gets a batch of its own. A row without a timestamp gets `timestamp_ms`; a null value is a tombstone.
    """
    count = len(values)
    if count == 0:
        return
    rows = _Rows(
        key=None if keys is None or keys.null_count == len(keys) == count else _payload("key", keys, count),
        value=_payload("value", values, count),
        tail=tails(headers, count),
        timestamp=_milliseconds(timestamps, count, timestamp_ms),
    )
    cuts, sizes = _cuts(rows, batch_bytes_max)
    for first, last in _chunks(cuts, sizes):
        yield from _encode_chunk(rows, cuts[first : last + 1], compression, producer)


# Columns ------------------------------------------------------------------------------------------------------------


class Payload(NamedTuple):
    """A column of bytes: the start and the size of each row's bytes, and `raw`, the size in zigzag; 1 means null."""

    data: memoryview
    start: Ints
    size: Ints
    raw: Ints


class _Rows(NamedTuple):
    key: Payload | None
    value: Payload
    tail: Payload | None
    timestamp: Ints


def _payload(name: str, column: pa.Array, count: int) -> Payload:
    if len(column) != count:
        raise InvalidRecord(f"column {name} has {len(column)} rows, column value {count}")
    column = _as_binary(name, column)
    _validity, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    size = np.diff(offsets)
    raw = size << 1
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        size[null] = 0
        raw[null] = _RAW_NULL
    return Payload(memoryview(data or b"").cast("B"), offsets[:-1], size, raw)


def _as_binary(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if kind == pa.binary():
        return column
    if not (pa.types.is_string(kind) or pa.types.is_null(kind) or kind in (pa.large_binary(), pa.large_string())):
        raise InvalidRecord(f"column {name} is {kind}: cast it to binary or string")
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise RecordsTooLarge(f"column {name} does not fit in one array of binary: {error}") from None


def _milliseconds(column: pa.Array | None, count: int, timestamp_ms: int) -> Ints:
    if column is None or column.null_count == count:
        return np.full(count, timestamp_ms, np.int64)
    if not pa.types.is_timestamp(column.type) or len(column) != count:
        raise InvalidRecord(f"column timestamp is {column.type} with {len(column)} rows: {count} timestamps are needed")
    in_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    numbers: Ints = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if in_second >= 1000:
        milliseconds = numbers // (in_second // 1000)
    else:
        milliseconds = numbers * 1000
    if column.null_count:
        milliseconds = np.where(column.is_null().to_numpy(zero_copy_only=False), timestamp_ms, milliseconds)
    return milliseconds


def tails(column: pa.Array | None, count: int) -> Payload | None:
    """Encode the headers of each row; None if no row has any."""
    if column is None or column.null_count == count:
        return None
    _demand_headers(column, count)
    header_counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(header_counts)
    if not len(rows):
        return None
    encoded = [_encode_headers(headers) for headers in column.take(pa.array(rows)).to_pylist()]
    # All rows without headers share the single byte at the start.
    start, size = np.zeros(count, np.int64), np.ones(count, np.int64)
    size[rows] = [len(one) for one in encoded]
    start[rows] = len(_NO_HEADERS) + np.cumsum(size[rows]) - size[rows]
    return Payload(memoryview(b"".join([_NO_HEADERS, *encoded])), start, size, size)


def _demand_headers(column: pa.Array, count: int) -> None:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or len(column) != count:
        raise InvalidRecord(f"column headers is {kind}: array<struct<key: string, value: binary>> is needed")
    if {field.name for field in kind.value_type} != {"key", "value"}:
        raise InvalidRecord(f"column headers is {kind}: array<struct<key: string, value: binary>> is needed")


def _encode_headers(headers: Sequence[dict[str, Any] | None]) -> bytes:
    parts = [encode_varint(len(headers))]
    for header in headers:
        if header is None or header["key"] is None:
            raise InvalidRecord("a header's key is null")
        for field in (header["key"], header["value"]):
            octets = field.encode() if isinstance(field, str) else field
            parts += [encode_varint(-1)] if octets is None else [encode_varint(len(octets)), octets]
    return b"".join(parts)


# Batches ------------------------------------------------------------------------------------------------------------


def _cuts(rows: _Rows, batch_bytes_max: int) -> tuple[list[int], list[int]]:
    """Return the first row of each batch, followed by the row count, and the largest size of each batch's records."""
    count = len(rows.timestamp)
    span = int(rows.timestamp.max()) - int(rows.timestamp.min())
    if span >= _TIMESTAMP_SPAN_MAX:
        raise InvalidRecord(f"the timestamps of {count} rows are {span} ms apart, more than this sink can encode")
    # The largest size of a record: attributes, the widest timestamp delta and offset delta, and the row's own bytes.
    offset_delta_max = min(count, max(batch_bytes_max // _RECORD_BYTES_MIN, 1))
    body = 1 + len(encode_varint(span)) + len(encode_varint(offset_delta_max)) + _own_bytes(rows)
    total = np.cumsum(body + _widths(body << 1))
    cuts, sizes, before = [0], [], 0
    while cuts[-1] < count:
        limit = before + batch_bytes_max - HEADER_SIZE
        cut = max(int(total.searchsorted(limit, "right")), cuts[-1] + 1)
        sizes.append(int(total[cut - 1]) - before)
        before = int(total[cut - 1])
        cuts.append(cut)
    return cuts, sizes


def _own_bytes(rows: _Rows) -> Ints:
    """Return the size of each row's key, value and headers, including the length fields."""
    key = 1 if rows.key is None else _widths(rows.key.raw) + rows.key.size
    tail = len(_NO_HEADERS) if rows.tail is None else rows.tail.size
    own: Ints = key + _widths(rows.value.raw) + rows.value.size + tail
    return own


def _chunks(cuts: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of batches that are encoded together."""
    first = byte_count = 0
    for batch, size in enumerate(sizes):
        if size + _SLOT_BYTES * (cuts[batch + 1] - cuts[batch]) > _ARROW_BYTES_MAX:
            raise RecordsTooLarge(f"{cuts[batch + 1] - cuts[batch]} rows take {size} bytes: make the batches smaller")
        if batch > first and byte_count + size > _CHUNK_BYTES_MAX:
            yield first, batch
            first, byte_count = batch, 0
        byte_count += size
    yield first, len(sizes)


def _encode_chunk(
    rows: _Rows, cuts: Sequence[int], compression: Compression, producer: Producer
) -> Iterator[bytearray]:
    offset_delta, timestamp_delta = _deltas(rows, cuts)
    records, bounds = _records(rows, slice(cuts[0], cuts[-1]), offset_delta, timestamp_delta)
    attributes = compression | producer.is_transactional * TRANSACTIONAL_BIT
    firsts = np.array(cuts[:-1])
    base_timestamps = rows.timestamp[firsts].tolist()
    max_timestamps = np.maximum.reduceat(rows.timestamp[: cuts[-1]], firsts).tolist()
    ends = bounds[np.array(cuts) - cuts[0]].tolist()
    for index, (first, last) in enumerate(pairwise(cuts)):
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=last - first - 1,
            base_timestamp=base_timestamps[index],
            max_timestamp=max_timestamps[index],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.sequence(first),
            record_count=last - first,
        )
        yield encode_batch(header, records[ends[index] : ends[index + 1]])


def _deltas(rows: _Rows, cuts: Sequence[int]) -> tuple[Ints, Ints]:
    """Return each row's difference from the first row of its batch, in offsets and in milliseconds."""
    firsts = np.array(cuts[:-1])
    first_of = np.repeat(firsts, np.diff(cuts))
    return np.arange(cuts[0], cuts[-1]) - first_of, rows.timestamp[cuts[0] : cuts[-1]] - rows.timestamp[first_of]


# Records ------------------------------------------------------------------------------------------------------------


def _records(rows: _Rows, chosen: slice, offset_delta: Ints, timestamp_delta: Ints) -> tuple[memoryview, Ints]:
    """Return the records of the chosen rows, the start of each, and the end of the last."""
    key = None if rows.key is None else _part(rows.key, chosen)
    value = _part(rows.value, chosen)
    tail = None if rows.tail is None else _part(rows.tail, chosen)
    slots = _write_slots(_Rows(key, value, tail, rows.timestamp), offset_delta, timestamp_delta)
    # The pieces are in the order of the fields. If no row has a key, the lengths of key and value are adjacent.
    middle = (
        [] if key is None else [(key.data, key.start, key.size), (None, slots.value_at, slots.end - slots.value_at)]
    )
    begin = slots.end if key is None else slots.value_at
    pieces = [(None, slots.start, begin - slots.start), *middle, (value.data, value.start, value.size)]
    if tail is not None:
        pieces.append((tail.data, tail.start, tail.size))
    bounds = np.zeros(len(value.size) + 1, np.int64)
    np.cumsum(sum(size for _data, _start, size in pieces), out=bounds[1:])
    records = _join(slots.octets, pieces)
    # Without headers, a record's last byte is the first byte of the next slot, so each record begins one byte later.
    return records, bounds if tail is not None else bounds + len(_NO_HEADERS)


def _part(payload: Payload, chosen: slice) -> Payload:
    """Return the chosen rows, with only their part of the data."""
    start, size = payload.start[chosen], payload.size[chosen]
    low, high = int(start.min()), int((start + size).max())
    return Payload(payload.data[low:high], start - low, size, payload.raw[chosen])


class _Slots(NamedTuple):
    """The varints of each row: its slot starts at `start`, and the length of its value at `value_at`."""

    octets: npt.NDArray[np.uint8]
    start: Ints
    value_at: Ints
    end: Ints


def _write_slots(rows: _Rows, offset_delta: Ints, timestamp_delta: Ints) -> _Slots:
    count = len(offset_delta)
    octets = np.zeros(count * _SLOT_BYTES, np.uint8)
    timestamp_raw = (timestamp_delta << 1) ^ (timestamp_delta >> 63)
    offset_raw = offset_delta << 1
    length = 1 + _widths(timestamp_raw) + _widths(offset_raw) + _own_bytes(rows)
    # The slots are filled with zeros, so the last byte of the row before and the attributes need not be written.
    start = np.arange(0, count * _SLOT_BYTES, _SLOT_BYTES) + (rows.tail is not None)
    position = _put(octets, start + (rows.tail is None), length << 1)
    position = _put(octets, position + 1, timestamp_raw)
    position = _put(octets, position, offset_raw)
    if rows.key is None:
        octets[position] = _RAW_NULL
        value_at = position + 1
    else:
        value_at = _put(octets, position, rows.key.raw)
    return _Slots(octets, start, value_at, _put(octets, value_at, rows.value.raw))


def _widths(raw: Ints) -> Ints:
    """Return the size of each number as a varint."""
    widths = np.ones(len(raw), np.int64)
    limit, highest = 0x80, int(raw.max())
    while limit <= highest:
        widths += raw >= limit
        limit <<= 7
    return widths


def _put(octets: npt.NDArray[np.uint8], at: Ints, raw: Ints) -> Ints:
    """Write a varint at each position; return the positions after them."""
    goes_on = raw > 0x7F
    octets[at] = (raw & 0x7F) | (goes_on << 7)
    position = at + 1
    rows = np.flatnonzero(goes_on)
    rest = raw[rows]
    while len(rows):
        rest = rest >> 7
        goes_on = rest > 0x7F
        octets[position[rows]] = (rest & 0x7F) | (goes_on << 7)
        position[rows] += 1
        rows, rest = rows[goes_on], rest[goes_on]
    return position


def _join(slots: npt.NDArray[np.uint8], pieces: Sequence[_Piece]) -> memoryview:
    """Copy the pieces of all rows in order, then a zero byte; a piece whose data is None comes from the slots."""
    sources: list[Any] = [slots]
    source_bytes = len(slots)
    count, width = len(pieces[0][1]), len(pieces)
    offsets = np.empty(2 * (count * width + 1), np.int64)
    of_row = offsets[:-2].reshape(count, width, 2)
    for index, (data, start, size) in enumerate(pieces):
        base = 0
        if data is not None:
            base = source_bytes
            sources.append(data)
            source_bytes += len(data)
        np.add(start, base, out=of_row[:, index, 0])
        np.add(of_row[:, index, 0], size, out=of_row[:, index, 1])
    # A row without headers ends with a header count of 0. That byte is the first one of the next row's slot. No slot
    # follows the last row, so its zero is added here.
    offsets[-2:] = source_bytes, source_bytes + len(_NO_HEADERS)
    sources.append(_NO_HEADERS)
    if source_bytes >= _ARROW_BYTES_MAX:
        raise RecordsTooLarge(f"{count} rows take {source_bytes} bytes: make the batches smaller")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(sources))]
    array = pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return memoryview(array.take(pa.array(np.arange(0, len(offsets), 2))).buffers()[2])
