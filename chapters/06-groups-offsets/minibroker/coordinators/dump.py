"""Print the files that coordinators and transactions add to a data directory, besides those of chapter 02.

.txnindex                 the aborted transactions of a segment, each checked against its marker in the log
.snapshot                 the producers of a partition
.log of an internal topic committed offsets, groups and transactions, with their meaning instead of their bytes
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from minibroker.groups import records as group_records
from minibroker.log.batch import Batch
from minibroker.log.control import ControlType, control_type
from minibroker.log.dump import Meaning
from minibroker.log.errors import CorruptBatch, ExpectedError, LogError
from minibroker.log.interfaces import Files, directory_of
from minibroker.log.record import Record
from minibroker.log.recovery import headers
from minibroker.log.text import counted_text
from minibroker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker.partitions.producers import SNAPSHOT_SUFFIX, DamagedSnapshot, decode_snapshot
from minibroker.segments import dump as segments_dump
from minibroker.segments.checkpoint import content
from minibroker.segments.dump import Dump, LogDump
from minibroker.segments.loading import CLEANED, DELETED, SWAP
from minibroker.segments.segment import LOG_SUFFIX, TRANSACTION_SUFFIX
from minibroker.transactions import records as transaction_records
from minibroker.transactions.aborted import ENTRY, AbortedTransaction, fault


def dump_of(files: Files, path: str, *, topic: str) -> Dump:
    """Choose the dump for a file by its name, and by the topic in the name of its directory."""
    name = path.rpartition("/")[2]
    for suffix in (DELETED, CLEANED, SWAP):
        name = name.removesuffix(suffix)
    if name.endswith(TRANSACTION_SUFFIX):
        return TableDump(_data(files, path), ABORTED, _aborted_damage(files, path))
    if name.endswith(SNAPSHOT_SUFFIX):
        return TableDump(_data(files, path), PRODUCERS, _snapshot_damage)
    if name.endswith(LOG_SUFFIX) and topic in MEANINGS:
        return LogDump(files.open(path, create=False, writable=False), MEANINGS[topic])
    return segments_dump.dump_of(files, path)


def _data(files: Files, path: str) -> bytes:
    data = content(files, path)
    if data is None:
        raise LogError(f"{path}: no such file")
    return data


# Tables ---------------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of an entry, with its name and its code of the module `struct`."""

    name: str
    code: str


class Layout(NamedTuple):
    """The head of a file, and the entries that fill the rest."""

    head: Sequence[Field]
    entry: Sequence[Field]


ABORTED = Layout(
    (),
    (
        Field("version", "h"),
        Field("producer_id", "q"),
        Field("first_offset", "q"),
        Field("last_offset", "q"),
        Field("last_stable_offset", "q"),
    ),
)
PRODUCERS = Layout(
    (Field("version", "h"), Field("crc", "I"), Field("producers", "i")),
    (
        Field("producer_id", "q"),
        Field("producer_epoch", "h"),
        Field("last_sequence", "i"),
        Field("last_offset", "q"),
        Field("offset_delta", "i"),
        Field("timestamp", "q"),
        Field("coordinator_epoch", "i"),
        Field("current_txn_first_offset", "q"),
    ),
)


class Row(NamedTuple):
    """One entry of a table: its position, its values, and its damage, if any."""

    title: str
    position: int
    fields: Sequence[Field]
    values: Mapping[str, int]
    damage: str | None


DamageOf = Callable[[bytes, int, Mapping[str, int]], str | None]
"""The damage of an entry, given the bytes of the file, the number of the entry (-1: the head), and its values."""


class TableDump:
    """The dump of a file of entries, all of the same size."""

    def __init__(self, data: bytes, layout: Layout, damage_of: DamageOf) -> None:
        self._data = data
        self._layout = layout
        self._damage_of = damage_of
        self._entries = self._damaged = 0

    @property
    def is_damaged(self) -> bool:
        """Whether an entry is wrong, or cut off."""
        return self._damaged > 0

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:  # noqa: ARG002
        """One line for each entry. If `annotated`, its bytes are shown below it."""
        for row in self._rows():
            yield from _row_lines(row)
            if annotated:
                yield from self._bytes(row)
        yield self._last_line()

    def damaged_lines(self) -> Iterator[str]:
        """Show only the damaged entries."""
        for row in self._rows():
            if row.damage is not None:
                yield from _row_lines(row)
        yield self._last_line()

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """One object for each entry."""
        for row in self._rows():
            yield {"position": row.position, **row.values, "damage": row.damage}

    def _last_line(self) -> str:
        verdict = f"{self._damaged} damaged" if self._damaged else "all good"
        return f"{counted_text(self._entries, 'entry', 'entries')}: {verdict}"

    def _rows(self) -> Iterator[Row]:
        for row in self._all_rows():
            self._damaged += row.damage is not None
            yield row

    def _all_rows(self) -> Iterator[Row]:
        head, entry = (_struct(fields) for fields in self._layout)
        end = len(self._data)
        if head.size and end >= head.size:
            yield self._row("head", -1, 0, self._layout.head, head)
        elif head.size:
            yield Row("head", 0, (), {}, f"only {end} of {head.size} bytes")
            return
        for slot, position in enumerate(range(head.size, end, entry.size)):
            self._entries += 1
            if position + entry.size > end:
                yield Row(f"entry {slot}", position, (), {}, f"only {end - position} of {entry.size} bytes")
            else:
                yield self._row(f"entry {slot}", slot, position, self._layout.entry, entry)

    def _row(self, title: str, slot: int, position: int, fields: Sequence[Field], layout: struct.Struct) -> Row:
        found = layout.unpack_from(self._data, position)
        values = {field.name: value for field, value in zip(fields, found, strict=True)}
        return Row(title, position, fields, values, self._damage_of(self._data, slot, values))

    def _bytes(self, row: Row) -> Iterator[str]:
        position = row.position
        for field in row.fields:
            size = struct.calcsize(">" + field.code)
            shown = self._data[position : position + size].hex(" ")
            yield f"  {position:>6}  {shown:<24} {_words(field.name):<24} {row.values[field.name]}"
            position += size


def _struct(fields: Sequence[Field]) -> struct.Struct:
    return struct.Struct(">" + "".join(field.code for field in fields))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _row_lines(row: Row) -> Iterator[str]:
    yield f"{row.title}: " + ", ".join(f"{_words(name)} {value}" for name, value in row.values.items())
    if row.damage is not None:
        yield f"  damaged: {row.damage}"


# Damage ---------------------------------------------------------------------------------------------------------------


def _aborted_damage(files: Files, path: str) -> DamageOf:
    markers = _abort_markers(files, path)

    def damage(data: bytes, slot: int, values: Mapping[str, int]) -> str | None:
        version, *offsets = values.values()
        entry = AbortedTransaction(*offsets)
        before = None
        if slot > 0:
            before = AbortedTransaction(*ENTRY.unpack_from(data, (slot - 1) * ENTRY.size)[1:])
        wrong = fault(version, entry, before)
        if wrong is None and markers is not None and markers.get(entry.last_offset) != entry.producer_id:
            wrong = f"the log has no abort marker of producer {entry.producer_id} at offset {entry.last_offset}"
        return wrong

    return damage


def _abort_markers(files: Files, path: str) -> dict[int, int] | None:
    """The producer of each abort marker in the log beside an index, by offset. None if there is no log."""
    head, _suffix, rest = path.rpartition(TRANSACTION_SUFFIX)
    found: dict[int, int] = {}
    try:
        file = files.open(head + LOG_SUFFIX + rest, create=False, writable=False)
    except FileNotFoundError:
        return None
    try:
        for position, header in headers(file):
            if header.is_control:
                for record in Batch(file.pread(header.size, position)).records():
                    if control_type(record) == ControlType.ABORT:
                        found[record.offset] = header.producer_id
    except CorruptBatch:
        return None  # the dump of the log says more
    finally:
        file.close()
    return found


def _snapshot_damage(data: bytes, slot: int, _values: Mapping[str, int]) -> str | None:
    if slot >= 0:
        return None
    try:
        decode_snapshot(data)
    except DamagedSnapshot as error:
        return str(error)
    return None


# Records of internal topics -------------------------------------------------------------------------------------------


def _readable(meaning: Callable[[bytes, bytes | None], str | None]) -> Meaning:
    """The meaning of a record, or why it has none."""

    def of(record: Record) -> str | None:
        try:
            return None if record.key is None else meaning(record.key, record.value)
        except ExpectedError as error:
            return f"damaged: {error}"

    return of


def _group_meaning(key: bytes, value: bytes | None) -> str | None:
    found = group_records.decode(key, value)
    if found is None:
        return None
    return f"{found.key!r}: " + ("deleted" if found.value is None else repr(found.value))


def _transaction_meaning(key: bytes, value: bytes | None) -> str | None:
    found = transaction_records.decode(key, value)
    if found is None:
        return None
    state = found.value
    if state is None:
        return f"{found.transactional_id!r}: deleted"
    partitions = ", ".join(it.directory for it in sorted(state.partitions)) or "no partitions"
    producer = f"producer id {state.producer_id} epoch {state.producer_epoch}"
    return f"{found.transactional_id!r}: {state.state.name}, {producer}, {partitions}, timeout {state.timeout_ms} ms"


MEANINGS: dict[str, Meaning] = {
    GROUP_METADATA_TOPIC: _readable(_group_meaning),
    TRANSACTION_STATE_TOPIC: _readable(_transaction_meaning),
}
"""What the records of each internal topic mean."""


# Directories ----------------------------------------------------------------------------------------------------------


class DirectoryDump:
    """The check of a partition's directory: chapter 02's check, and the tables of this chapter."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._segments = segments_dump.DirectoryDump(files, path)
        self._damaged = 0

    @property
    def is_damaged(self) -> bool:
        """Whether anything in the directory is damaged."""
        return self._segments.is_damaged or self._damaged > 0

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:  # noqa: ARG002
        """The same as `damaged_lines`."""
        return self.damaged_lines()

    def damaged_lines(self) -> Iterator[str]:
        """The damage of the tables, and then that of the segments."""
        tables = (f"{found['path']}: position {found['position']}: {found['damage']}" for found in self._tables())
        return chain(tables, self._segments.damaged_lines())

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:
        """One object for each finding."""
        return chain(self._tables(), self._segments.objects(records=records))

    def _tables(self) -> Iterator[dict[str, Any]]:
        for name in self._files.list(self._path):
            if name.endswith((TRANSACTION_SUFFIX, SNAPSHOT_SUFFIX)):
                path = f"{self._path}/{name}"
                for found in dump_of(self._files, path, topic="").objects(records=False):
                    if found["damage"] is not None:
                        self._damaged += 1
                        yield {"path": path, "position": found["position"], "damage": found["damage"]}


def topic_of(path: str) -> str:
    """The topic of a file, from the name of its directory."""
    return directory_of(path).rpartition("/")[2].rpartition("-")[0]
