"""Print a log file as text: its batches, its records, and each byte with its meaning.

The file is read one batch at a time and never changed. The dump continues after a damaged batch if that batch's length
leads to another batch. The functions yield lines, or plain dictionaries for JSON; the caller prints them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from minibroker.log.annotate import annotate
from minibroker.log.batch import MAGIC, MAGIC_AT, Batch, BatchHeader
from minibroker.log.control import ControlType, control_type, coordinator_epoch
from minibroker.log.errors import CorruptBatch, LogError
from minibroker.log.interfaces import File
from minibroker.log.record import Record
from minibroker.log.recovery import headers
from minibroker.log.text import bytes_text, compression_text, counted_text, time_text, timestamp_type_text

Meaning = Callable[[Record], str | None]
"""A function that says in words what a record of an internal topic means. It returns None to have the bytes shown."""


class Found(NamedTuple):
    """One batch of a file, how many offsets are missing before it, and its damage, if any."""

    position: int
    batch: Batch
    gap: int
    damage: str | None


class Summary:
    """Counts the batches and the damage, for the last line and for the exit code."""

    def __init__(self) -> None:
        self.batches = self.records = self.size = self.damaged = 0
        self.tail: str | None = None
        self.is_foreign = False

    @property
    def is_damaged(self) -> bool:
        """Whether anything in the file is damaged."""
        return self.damaged > 0 or self.tail is not None

    def count(self, found: Found) -> None:
        """Count one batch."""
        self.batches += 1
        self.records += found.batch.header.record_count
        self.size += found.batch.header.size
        self.damaged += found.damage is not None

    def line(self) -> str:
        """The last line of a dump, with the totals."""
        if self.is_foreign:
            return f"not a log: {self.tail}"
        counted = f"{counted_text(self.batches, 'batch', 'batches')}, {counted_text(self.records, 'record')}"
        counted += f", {self.size} bytes"
        if not self.is_damaged:
            return f"{counted}: all good"
        tail = "" if self.tail is None else f"; then {self.tail}"
        return f"{counted}: {self.damaged} damaged{tail}"


# Finding ------------------------------------------------------------------------------------------------------------


def find(file: File, summary: Summary) -> Iterator[Found]:
    """Check each batch of a file. The check ends at bytes that are not a batch, and the summary then says so."""
    previous: BatchHeader | None = None
    try:
        for position, header in headers(file):
            batch = Batch(file.pread(header.size, position))
            gap = 0 if previous is None else header.base_offset - previous.next_offset
            found = Found(position, batch, gap, _damage(batch, previous))
            summary.count(found)
            yield found
            previous = header
    except CorruptBatch as error:
        summary.tail = str(error)
        summary.is_foreign = is_foreign(file)


def is_foreign(file: File) -> bool:
    """Whether a file begins with bytes that no version of Kafka writes, such as text."""
    return file.pread(1, MAGIC_AT) > bytes([MAGIC])


def _damage(batch: Batch, previous: BatchHeader | None) -> str | None:
    try:
        batch.check_crc()
        if previous is not None:
            _check_order(batch.header, previous)
        _check_records(batch)
    except LogError as error:
        return str(error).removeprefix("batch at position 0: ")
    return None


def _check_order(header: BatchHeader, previous: BatchHeader) -> None:
    # Compaction leaves gaps, so offsets need not be dense; but neither offsets nor epochs ever decrease.
    if header.base_offset < previous.next_offset:
        raise CorruptBatch(
            f"base offset {header.base_offset} is not after the offset before it, {previous.last_offset}"
        )
    if header.leader_epoch < previous.leader_epoch:
        raise CorruptBatch(
            f"leader epoch {header.leader_epoch} is older than the one before it, {previous.leader_epoch}"
        )


def _check_records(batch: Batch) -> None:
    last_offset = batch.header.base_offset - 1
    for record in batch.records():
        if not last_offset < record.offset <= batch.header.last_offset:
            raise CorruptBatch(
                f"a record has offset {record.offset}, expected {last_offset + 1} to {batch.header.last_offset}"
            )
        last_offset = record.offset


# Showing ------------------------------------------------------------------------------------------------------------


def lines(
    file: File, summary: Summary, *, records: bool = True, annotated: bool = False, meaning: Meaning | None = None
) -> Iterator[str]:
    """Show a log file: a line for each batch, and below it the batch's records or annotated bytes."""
    for found in find(file, summary):
        yield batch_line(found)
        if found.damage is not None:
            yield f"  damaged: {found.damage}"
        elif annotated:
            yield from (f"  {line}" for line in annotate(found.batch))
        elif records:
            yield from (f"  {record_line(record, found.batch.header, meaning)}" for record in found.batch.records())
    yield summary.line()


def damaged_lines(file: File, summary: Summary) -> Iterator[str]:
    """Show only damaged batches and the last line."""
    for found in find(file, summary):
        if found.damage is not None:
            yield batch_line(found)
            yield f"  damaged: {found.damage}"
    yield summary.line()


def batch_line(found: Found) -> str:
    """One batch on one line."""
    header = found.batch.header
    words = [
        f"position {found.position}:",
        f"offsets {header.base_offset}-{header.last_offset},",
        f"{counted_text(header.record_count, 'record')}, {header.size} bytes,",
        f"epoch {header.leader_epoch}, {compression_text(header)},",
        f"{timestamp_type_text(header)} {time_text(header.max_timestamp)}",
        *_flags(header),
    ]
    if found.gap > 0:
        words.append(f"(gap of {found.gap} offsets before)")
    return " ".join(words)


def _flags(header: BatchHeader) -> list[str]:
    flags = []
    if header.producer_id >= 0:
        flags.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
    flags += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    return [f"[{', '.join(flags)}]"] if flags else []


def record_line(record: Record, header: BatchHeader, meaning: Meaning | None = None) -> str:
    """One record on one line."""
    meant = _control(record) if header.is_control else None if meaning is None else meaning(record)
    if meant is not None:
        return f"{record.offset}  {time_text(record.timestamp)}  {meant}"
    shown = f"{record.offset}  {time_text(record.timestamp)}  {bytes_text(record.key)}  {bytes_text(record.value)}"
    if record.headers:
        shown += "  " + " ".join(f"{key}={bytes_text(value)}" for key, value in record.headers)
    return shown


def _control(record: Record) -> str:
    number = control_type(record)
    if number in (ControlType.ABORT, ControlType.COMMIT):
        return f"{ControlType(number).name} by coordinator epoch {coordinator_epoch(record)}"
    return ControlType(number).name if number in set(ControlType) else f"control type {number}"


def objects(
    file: File, summary: Summary, *, records: bool = True, meaning: Meaning | None = None
) -> Iterator[dict[str, Any]]:
    """Show a log file as plain data for JSON: an object for each batch, and one for a damaged tail."""
    for found in find(file, summary):
        shown: dict[str, Any] = {"position": found.position, "size": found.batch.header.size}
        shown |= found.batch.header._asdict() | {"compression": compression_text(found.batch.header)}
        shown["damage"] = found.damage
        if records and found.damage is None:
            meant = _control if found.batch.header.is_control else meaning
            shown["records"] = [_record_object(record, meant) for record in found.batch.records()]
        yield shown
    if summary.tail is not None:
        yield {"position": summary.size, "damage": summary.tail}


def _record_object(record: Record, meaning: Meaning | None) -> dict[str, Any]:
    meant = None if meaning is None else meaning(record)
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [{"key": key, "value": _json_bytes(value)} for key, value in record.headers],
    } | ({} if meant is None else {"meaning": meant})


def _json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    # JSON has no bytes: text stays text, and anything else is marked as hexadecimal.
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
