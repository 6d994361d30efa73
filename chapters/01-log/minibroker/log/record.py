"""One record inside a batch: offset, timestamp, key, value, headers. A pure module.

A record stores its offset and its timestamp relative to its batch. So most records spend one or two bytes on each, and
a broker assigns the offsets of a whole batch by changing one field of the header. The layout:

    record  = length:varint attributes:int8 timestamp_delta:varlong offset_delta:varint
              key:bytes value:bytes headers:varint header*
    header  = key:bytes(not null, UTF-8) value:bytes
    bytes   = length:varint byte*            a length of -1 is null
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minibroker.log.compression import Bytes
from minibroker.log.errors import InvalidRecord, InvalidVarint
from minibroker.log.varint import (
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
    decode_unsigned_varint,
    decode_varint,
    encode_varint,
    unzigzag,
)

Header = tuple[str, bytes | None]

_NULL = encode_varint(-1)
_ATTRIBUTES = b"\x00"  # Kafka has assigned no bit of a record's attributes
_HEADER_BYTES_MIN = 2  # an empty key and a null value, one length byte each
RECORD_BYTES_MIN = 1 + 1 + 1 + 1 + 1 + 1 + 1  # length, attributes, both deltas, null key, null value, no headers


class Record(NamedTuple):
    """A record as applications see it. Timestamps are milliseconds since 1970; -1 means none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def encode_record(
    *,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> bytes:
    """Write one record, its own length first."""
    # Attributes, timestamp delta, offset delta; then key, value and headers, each with its length before it.
    # The record's length counts all bytes after it. So the length is known last and written first.
    body = b"".join(
        (
            _ATTRIBUTES,
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            _NULL if key is None else encode_varint(len(key)) + key,
            _NULL if value is None else encode_varint(len(value)) + value,
            _encode_headers(headers) if headers else b"\x00",
        )
    )
    return encode_varint(len(body)) + body


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += [encode_varint(len(name)), name]
        parts.append(_NULL if value is None else encode_varint(len(value)) + value)
    return b"".join(parts)


# A consumer spends most of its time in the loops of the next two functions, and a function call costs more than the
# decoding. So the loops themselves read the first byte of each varint, and also the second where most varints have two.
# They call this function for the others.
def _longer_varint(data: bytes, position: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    # The first byte, just before `position`, says that a second byte follows. Most such varints have two bytes.
    second = data[position]
    if second < 0x80:
        return data[position - 1] - 0x80 + (second << 7), position + 1
    return decode_unsigned_varint(data, position - 1, bytes_max=bytes_max)


def decode_records(data: bytes, *, count: int, base_offset: int, base_timestamp: int) -> Iterator[Record]:
    """Read `count` records that fill `data` exactly. A record is decoded when the caller asks for it.

    Whatever lengths `data` claims, memory stays within about forty times its size.
    """
    # Lengths stay zigzagged: 1 means null, an even number is twice the length, and any other odd number is a negative
    # length, which is refused. `lengths` is the bitwise or of all lengths, so it is odd if any of them is odd.
    new, position = tuple.__new__, 0
    if count < 0:
        raise InvalidRecord(f"the record count {count} is negative")
    try:
        for _ in range(count):
            # The record's length says where the record must end.
            length, position = data[position], position + 1
            if length > 0x7F:
                length += (data[position] << 7) - 0x80
                position += 1
                if length > 0x3FFF:
                    length, position = decode_unsigned_varint(data, position - 2)
            end, lengths = position + (length >> 1), length
            # One byte of attributes, which are all unused, then the two deltas.
            timestamp, position = data[position + 1], position + 2
            if timestamp > 0x7F:
                timestamp, position = _longer_varint(data, position, VARLONG_BYTES_MAX)
            offset, position = data[position], position + 1
            if offset > 0x7F:
                offset += (data[position] << 7) - 0x80
                position += 1
                if offset > 0x3FFF:
                    offset, position = decode_unsigned_varint(data, position - 2)
            # Key, value and headers, each with its length before it.
            key = value = None
            length, position = data[position], position + 1
            if length != _RAW_NULL:
                if length > 0x7F:
                    length, position = _longer_varint(data, position)
                lengths |= length
                key = data[position : (position := position + (length >> 1))]
            length, position = data[position], position + 1
            if length != _RAW_NULL:
                if length > 0x7F:
                    length += (data[position] << 7) - 0x80
                    position += 1
                    if length > 0x3FFF:
                        length, position = decode_unsigned_varint(data, position - 2)
                lengths |= length
                value = data[position : (position := position + (length >> 1))]
            headers: Sequence[Header] = ()
            position += 1
            if data[position - 1]:
                headers, position = _decode_headers(data, position - 1, end)
            # If the fields ran past the record's end, or stopped before it, `position` and `end` differ.
            if position != end or lengths & 1:
                raise InvalidRecord(_contradiction(position, end, lengths))
            offset = base_offset + ((offset >> 1) ^ -(offset & 1))
            timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1))
            yield new(Record, (offset, timestamp, key, value, headers))
    except (IndexError, InvalidVarint) as error:
        raise InvalidRecord(_damage(error, data, count)) from None
    if position != len(data):
        raise InvalidRecord(f"{count} records end at byte {position}, but there are {len(data)} bytes")


# A record's start and end, its timestamp delta and offset delta, its key, and whether it has a value.
Scanned = tuple[int, int, int, int, bytes | None, bool]


def scan_records(data: bytes, *, count: int) -> Iterator[Scanned]:
    """Iterate over `count` records that fill `data` exactly, without decoding values and headers.

    Compaction uses this function: it decides by key and offset whether to copy a record's bytes. The function runs for
    every record of a log, so it is as fast as `decode_records`.
    """
    position = 0
    try:
        for _ in range(count):
            start = position
            length, position = data[position], position + 1
            if length > 0x7F:
                length += (data[position] << 7) - 0x80
                position += 1
                if length > 0x3FFF:
                    length, position = decode_unsigned_varint(data, position - 2)
            end, lengths = position + (length >> 1), length
            timestamp, position = data[position + 1], position + 2
            if timestamp > 0x7F:
                timestamp, position = _longer_varint(data, position, VARLONG_BYTES_MAX)
            offset, position = data[position], position + 1
            if offset > 0x7F:
                offset, position = _longer_varint(data, position)
            key = None
            length, position = data[position], position + 1
            if length != _RAW_NULL:
                if length > 0x7F:
                    length, position = _longer_varint(data, position)
                lengths |= length
                key = data[position : (position := position + (length >> 1))]
            # The record's remaining bytes must hold at least the length of the value.
            if position >= end or lengths & 1:
                raise InvalidRecord(_contradiction(position, end, lengths))
            has_value = data[position] != _RAW_NULL
            position = end
            yield start, end, (timestamp >> 1) ^ -(timestamp & 1), (offset >> 1) ^ -(offset & 1), key, has_value
    except (IndexError, InvalidVarint) as error:
        raise InvalidRecord(_damage(error, data, count)) from None
    if position != len(data):
        raise InvalidRecord(f"{count} records end at byte {position}, but there are {len(data)} bytes")


def follow_lengths(data: Bytes, position: int, *, count: int, count_max: int) -> None:
    """Require that `data` has room for `count` records from `position` on. Only the records' lengths are read.

    The lengths of the first `count_max` records are followed. For each further record, at least `RECORD_BYTES_MIN`
    bytes must be left. If there are no further records, the last one must end where `data` ends.
    """
    end, walked = len(data), min(count, count_max)
    try:
        for _ in range(walked):
            length, position = data[position], position + 1
            if length > 0x7F:
                length += (data[position] << 7) - 0x80
                position += 1
                if length > 0x3FFF:
                    length, position = decode_unsigned_varint(data, position - 2)
            if length & 1 or length < _RAW_LENGTH_MIN:
                raise InvalidRecord(f"the length before byte {position} is {unzigzag(length)}, too short for a record")
            position += length >> 1
    except (IndexError, InvalidVarint):
        position = end + 1
    rest = RECORD_BYTES_MIN * (count - walked)
    if position + rest > end or (position != end and walked == count):
        raise InvalidRecord(f"the header says {count} records, but the lengths of the records say otherwise")


_RAW_NULL = 1  # zigzag(-1)
_RAW_LENGTH_MIN = 2 * (RECORD_BYTES_MIN - 1)  # the length does not count itself


def _damage(error: Exception, data: bytes, count: int) -> str:
    if isinstance(error, InvalidVarint):
        return f"a record's field is malformed: {error}"
    return f"{count} records do not fit in {len(data)} bytes: the last is cut off"


def _contradiction(position: int, end: int, lengths: int) -> str:
    if lengths & 1:
        return "a record holds a negative length"
    return f"a record ends at byte {position}, not {end} as its length says"


def _decode_headers(data: bytes, position: int, end: int) -> tuple[list[Header], int]:
    count, position = decode_varint(data, position)
    if not 0 <= count <= (end - position) // _HEADER_BYTES_MIN:
        raise InvalidRecord(f"{count} headers do not fit in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        key, position = _decode_bytes(data, position)
        value, position = _decode_bytes(data, position)
        if key is None:
            raise InvalidRecord("a header's key is null")
        # As in Kafka, invalid UTF-8 is replaced, because one odd header must not stop a consumer.
        headers.append((key.decode(errors="replace"), value))
    return headers, position


def _decode_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(data, position)
    if length == -1:
        return None, position
    if not 0 <= length <= len(data) - position:
        raise InvalidRecord(f"a field at byte {position} claims {length} bytes, but {len(data) - position} follow")
    return data[position : position + length], position + length
