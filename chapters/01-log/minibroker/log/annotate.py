"""Each byte of a batch and its meaning, as `dump --bytes` shows it. A pure module."""

from collections.abc import Callable, Generator, Iterator

from minibroker.log.batch import HEADER_SIZE, RECORDS_AT, Batch
from minibroker.log.compression import decompress
from minibroker.log.text import bytes_text, compression_text, time_text, timestamp_type_text
from minibroker.log.varint import decode_varint, decode_varlong

BYTES_PER_LINE = 8
_LINES_PER_FIELD_MAX = 4

# name and size of each field of the header, in order
FIELDS = (
    ("base offset", 8),
    ("length", 4),
    ("leader epoch", 4),
    ("magic", 1),
    ("crc", 4),
    ("attributes", 2),
    ("last offset delta", 4),
    ("base timestamp", 8),
    ("max timestamp", 8),
    ("producer id", 8),
    ("producer epoch", 2),
    ("base sequence", 4),
    ("record count", 4),
)
assert sum(size for _name, size in FIELDS) == HEADER_SIZE


def annotate(batch: Batch) -> Iterator[str]:
    """Show a whole batch, header first. Compressed records are shown decompressed."""
    yield from _header(batch)
    data = decompress(batch.header.compression, batch.view[RECORDS_AT:])
    start = RECORDS_AT
    if batch.header.compression:
        yield from _field(RECORDS_AT, bytes(batch.view[RECORDS_AT:]), "records", f"compressed from {len(data)} bytes")
        start = 0
    position = 0
    for index in range(batch.header.record_count):
        for name, meaning, stop in _record_fields(data, position):
            label = f"record {index}: {name}" if name == "length" else f"  {name}"
            yield from _field(start + position, data[position:stop], label, meaning)
            position = stop


def _header(batch: Batch) -> Iterator[str]:
    position = 0
    for (name, size), value in zip(FIELDS, batch.header, strict=True):
        meaning = _MEANINGS[name](batch, value) if name in _MEANINGS else str(value)
        yield from _field(position, bytes(batch.view[position : position + size]), name, meaning)
        position += size


def _attributes(batch: Batch, value: int) -> str:
    header = batch.header
    flags = ", transactional" * header.is_transactional + ", control" * header.is_control
    return f"{value:#06b}: {compression_text(header)}, {timestamp_type_text(header)}{flags}"


_MEANINGS: dict[str, Callable[[Batch, int], str]] = {
    "length": lambda batch, value: f"{value} bytes follow, {batch.header.size} in all",
    "crc": lambda _batch, value: f"{value:#010x}, the CRC-32C of all bytes after it",
    "attributes": _attributes,
    "base timestamp": lambda _batch, value: time_text(value),
    "max timestamp": lambda _batch, value: time_text(value),
    "producer id": lambda _batch, value: "-1: none" if value == -1 else str(value),
}


def _record_fields(data: bytes, position: int) -> Iterator[tuple[str, str, int]]:
    """Name, meaning and end of each field of the record at `position`."""
    length, position = decode_varint(data, position)
    yield "length", str(length), position
    position += 1
    yield "attributes", str(data[position - 1]), position
    delta, position = decode_varlong(data, position)
    yield "timestamp delta", str(delta), position
    delta, position = decode_varint(data, position)
    yield "offset delta", str(delta), position
    position = yield from _bytes_field("key", data, position)
    position = yield from _bytes_field("value", data, position)
    count, position = decode_varint(data, position)
    yield "header count", str(count), position
    for _ in range(count):
        position = yield from _bytes_field("header key", data, position)
        position = yield from _bytes_field("header value", data, position)


def _bytes_field(name: str, data: bytes, position: int) -> Generator[tuple[str, str, int], None, int]:
    length, position = decode_varint(data, position)
    if length < 0:
        yield f"{name} length", "-1: null", position
        return position
    yield f"{name} length", str(length), position
    if length:
        yield name, bytes_text(data[position : position + length]), position + length
    return position + length


def _field(position: int, data: bytes, name: str, meaning: str) -> Iterator[str]:
    """One field, eight bytes a line, with its name and meaning on the first line. A long field is shortened."""
    rows = range(0, len(data), BYTES_PER_LINE)
    for row in rows[:_LINES_PER_FIELD_MAX]:
        shown = data[row : row + BYTES_PER_LINE].hex(" ")
        what = f"{name:<20} {meaning}" if row == 0 else ""
        yield f"{position + row:>6}  {shown:<{3 * BYTES_PER_LINE}} {what}".rstrip()
    if len(rows) > _LINES_PER_FIELD_MAX:
        yield f"{'':>6}  … {len(data) - BYTES_PER_LINE * _LINES_PER_FIELD_MAX} bytes more"
