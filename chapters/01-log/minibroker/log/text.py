"""Readable text for bytes, times and codes. A pure module."""

from datetime import UTC, datetime, timedelta

from minibroker.log.batch import BatchHeader, TimestampType
from minibroker.log.compression import Compression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PREVIEW_BYTES = 60


def bytes_text(data: bytes | None) -> str:
    """Bytes as quoted text if they are printable, else as hexadecimal; None is shown as null."""
    if data is None:
        return "null"
    shown = data[:_PREVIEW_BYTES]
    more = f"… {len(data)} bytes" if len(data) > _PREVIEW_BYTES else ""
    try:
        text = shown.decode(errors="ignore" if more else "strict")
    except UnicodeDecodeError:
        return f"0x{shown.hex()}{more}"
    return f'"{text}"{more}' if text.isprintable() else f"0x{shown.hex()}{more}"


def time_text(timestamp: int) -> str:
    """A timestamp in milliseconds as a date in UTC, or as a number if there is no such date."""
    if timestamp < 0:
        return "none" if timestamp == -1 else f"{timestamp} ms"
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp % 1000:03}Z"
    except OverflowError:
        return f"{timestamp} ms"


def compression_text(header: BatchHeader) -> str:
    """The codec's name, or the number of an unassigned one."""
    number = header.compression
    return Compression(number).name.lower() if number in set(Compression) else f"codec {number}"


def timestamp_type_text(header: BatchHeader) -> str:
    """Kafka's name for the timestamp type, which says whose clock the timestamps come from."""
    return "LogAppendTime" if header.timestamp_type is TimestampType.LOG_APPEND_TIME else "CreateTime"


def counted_text(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun, which is plural unless the number is 1."""
    return f"{count} {one if count == 1 else many or one + 's'}"
