"""Print the files of a data directory (logs, indexes, checkpoints) as text, and verify a whole partition.

A file's name shows its kind. Each kind has the same three outputs: all content as text, only the damage as text, and
plain dictionaries for JSON. All content is checked. An index is checked against the log of its segment. Files are
opened for reading only, and the caller prints the lines.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from minibroker.log import dump as log_dump
from minibroker.log.errors import CorruptBatch, LogError
from minibroker.log.interfaces import File, Files
from minibroker.log.recovery import headers
from minibroker.log.text import bytes_text, counted_text, time_text
from minibroker.segments.checking import (
    End,
    Entry,
    Finding,
    IndexCheck,
    OffsetCheck,
    Progress,
    Source,
    TimeCheck,
    against_next,
    check_segment,
    open_source,
    written_bytes,
)
from minibroker.segments.checkpoint import VERSION
from minibroker.segments.directory import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS
from minibroker.segments.index import OffsetIndex, TimeIndex
from minibroker.segments.indexes import OFFSET_SUFFIX, TIME_SUFFIX
from minibroker.segments.loading import CLEANED, DIGITS, SWAP, base_offsets
from minibroker.segments.segment import LOG_SUFFIX, stem

DELETED = ".deleted"  # Kafka adds this suffix to a segment's files before it removes them
REPLICATION_OFFSETS = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"


class LineFormat(NamedTuple):
    """The fields of a checkpoint line, and a text template for them. All fields but the topic are numbers."""

    names: tuple[str, ...]
    sentence: str

    def read(self, line: bytes) -> tuple[str, dict[str, Any], str | None]:
        """Parse a line; return its text, its values, and its damage, if any."""
        words = line.decode(errors="replace").split()
        try:
            pairs = zip(self.names, words, strict=True)
            values = {name: word if name == "topic" else int(word) for name, word in pairs}
        except ValueError:
            return f"line {bytes_text(line)}", {}, f"expected {' '.join(self.names)}"
        return self.sentence.format(**values), values, None


_OFFSETS = LineFormat(("topic", "partition", "offset"), "{topic}-{partition}: offset {offset}")
_EPOCHS = LineFormat(("leader_epoch", "start_offset"), "leader epoch {leader_epoch} from offset {start_offset}")
CHECKPOINTS = {
    RECOVERY_POINTS: _OFFSETS,
    LOG_STARTS: _OFFSETS,
    CLEANER_OFFSETS: _OFFSETS,
    REPLICATION_OFFSETS: _OFFSETS,
    LEADER_EPOCHS: _EPOCHS,
}
"""Kafka's checkpoint files, and the format of their lines."""


class Dump(Protocol):
    """One file, with three outputs. `is_damaged` is valid once one output was read to its end."""

    @property
    def is_damaged(self) -> bool:
        """Whether anything in the file is damaged."""

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:
        """All content as text. The last line has the totals."""

    def damaged_lines(self) -> Iterator[str]:
        """Only the damage, and the last line."""

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:
        """All content as plain data, ready for JSON. `damage` describes the damage, or is null."""


def dump_of(files: Files, path: str) -> Dump:
    """Choose the dump for a file by its name."""
    name = path.rpartition("/")[2]
    for suffix in (DELETED, CLEANED, SWAP):
        name = name.removesuffix(suffix)
    if name.endswith(LOG_SUFFIX):
        return LogDump(files.open(path, create=False, writable=False))
    if name.endswith(OFFSET_SUFFIX):
        return OffsetIndexDump(files, path)
    if name.endswith(TIME_SUFFIX):
        return TimeIndexDump(files, path)
    if name in CHECKPOINTS:
        return CheckpointDump(files.open(path, create=False, writable=False), CHECKPOINTS[name])
    known = ", ".join([f"*{LOG_SUFFIX}", f"*{OFFSET_SUFFIX}", f"*{TIME_SUFFIX}", *CHECKPOINTS])
    raise LogError(f"{path}: files of this kind cannot be shown; the known kinds are {known}")


class LogDump:
    """A log file, shown by chapter 01's dump. `meaning` says what the records of an internal topic mean."""

    def __init__(self, file: File, meaning: log_dump.Meaning | None = None) -> None:
        self._file = file
        self._meaning = meaning
        self._summary = log_dump.Summary()

    @property
    def is_damaged(self) -> bool:
        """Whether a batch is damaged, or the tail is torn."""
        return self._summary.is_damaged

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:
        """Show the batches, and their records or bytes."""
        return log_dump.lines(self._file, self._summary, records=records, annotated=annotated, meaning=self._meaning)

    def damaged_lines(self) -> Iterator[str]:
        """Show only the damaged batches."""
        return log_dump.damaged_lines(self._file, self._summary)

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:
        """One object for each batch."""
        return log_dump.objects(self._file, self._summary, records=records, meaning=self._meaning)


# Indexes ------------------------------------------------------------------------------------------------------------


class IndexSummary:
    """Counts the entries and the damage of an index, for the last line and for the exit code."""

    def __init__(self, size: int, entry_bytes: int, zeros: int) -> None:
        self.entries = self.damaged = 0
        self._zeros = zeros
        self.faults: list[str] = []
        self.notes: list[str] = []
        if size % entry_bytes:
            self.faults.append(f"{size} bytes are not a multiple of {entry_bytes}")
        if zeros:
            self.notes.append(f"{zeros} zero bytes follow: Kafka preallocates the index of an active segment")

    @property
    def is_damaged(self) -> bool:
        """Whether an entry is wrong, or the size of the file."""
        return self.damaged > 0 or bool(self.faults)

    def count(self, entry: Entry) -> None:
        """Count one entry."""
        self.entries += 1
        self.damaged += entry.damage is not None

    def line(self) -> str:
        """The last line of a dump, with the totals."""
        damaged = [f"{self.damaged} damaged"] if self.damaged else []
        verdict = "; ".join([*damaged, *self.faults]) or "all good"
        return "; ".join([f"{counted_text(self.entries, 'entry', 'entries')}: {verdict}", *self.notes])


class IndexDump:
    """An index. Each entry is checked against the batch that it points to, if the log file exists."""

    entry_bytes = 0
    fields: tuple[tuple[str, int], ...] = ()

    def __init__(self, files: Files, path: str) -> None:
        self._directory, _slash, name = path.rpartition("/")
        if not name[:DIGITS].isdigit() or name[DIGITS : DIGITS + 1] != ".":
            raise LogError(f"{path}: the name of an index must be its base offset in {DIGITS} digits")
        self.base_offset = int(name[:DIGITS])
        self._file = files.open(path, create=False, writable=False)
        self._log = self._open_log(files, name)
        self._is_closed = self._has_follower(files)
        written = written_bytes(self._file, self.entry_bytes)
        self._count = written // self.entry_bytes
        self._summary = IndexSummary(self._file.size(), self.entry_bytes, self._file.size() - written)

    def _open_log(self, files: Files, name: str) -> File | None:
        # 00000000000000000042.index.deleted belongs to 00000000000000000042.log.deleted.
        _digits, _kind, *renamed = name.split(".")
        beside = ".".join([name[:DIGITS], LOG_SUFFIX.removeprefix("."), *renamed])
        try:
            return files.open(f"{self._directory or '.'}/{beside}", create=False, writable=False)
        except FileNotFoundError:
            return None

    def _has_follower(self, files: Files) -> bool:
        return any(base > self.base_offset for base in base_offsets(files.list(self._directory or ".")))

    @property
    def is_damaged(self) -> bool:
        """Whether anything in the file is damaged."""
        return self._summary.is_damaged

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:  # noqa: ARG002
        """One line for each entry. If `annotated`, its bytes are shown below it."""
        for entry in self._entries():
            yield self._line(entry)
            if entry.damage is not None:
                yield f"  damaged: {entry.damage}"
            if annotated:
                yield from (f"  {line}" for line in self._bytes(entry))
        yield self._summary.line()

    def damaged_lines(self) -> Iterator[str]:
        """Show only the damaged entries."""
        for entry in self._entries():
            if entry.damage is not None:
                yield self._line(entry)
                yield f"  damaged: {entry.damage}"
        yield self._summary.line()

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """One object for each entry, and one for each fault of the whole file."""
        for entry in self._entries():
            yield {"entry": entry.slot, **self._values(entry), "damage": entry.damage}
        for fault in self._summary.faults:
            yield {"entry": None, "damage": fault}

    def _entries(self) -> Iterator[Entry]:
        for entry in self._checked(self._check()):
            self._summary.count(entry)
            yield entry

    def _checked(self, check: IndexCheck) -> Iterator[Entry]:
        """All entries in order. Each is yielded as soon as its batch was read."""
        saw_all = False
        try:
            if self._log is not None:
                for position, header in headers(self._log):
                    yield from check.on_batch(header, position)
                saw_all = True
        except CorruptBatch as error:
            self._summary.notes.append(f"the log file is damaged: {error}")
        yield from check.rest(saw_all=saw_all)
        if self._log is None:
            self._summary.notes.append("there is no log file to check the entries against")
        elif check.unchecked:
            self._summary.notes.append(f"{check.unchecked} could not be checked against a batch")
        if saw_all and self._is_closed and (lack := check.missing()) is not None:
            self._summary.faults.append(lack)

    def _bytes(self, entry: Entry) -> Iterator[str]:
        position = entry.slot * self.entry_bytes
        for (name, size), meaning in zip(self.fields, self._meanings(entry), strict=True):
            yield f"{position:>6}  {self._file.pread(size, position).hex(' '):<24} {name:<20} {meaning}"
            position += size

    def _check(self) -> IndexCheck:
        raise NotImplementedError

    def _line(self, entry: Entry) -> str:
        raise NotImplementedError

    def _values(self, entry: Entry) -> dict[str, int]:
        raise NotImplementedError

    def _meanings(self, entry: Entry) -> tuple[str, str]:
        raise NotImplementedError


class OffsetIndexDump(IndexDump):
    """The dump of an `.index` file, which maps offsets to positions."""

    entry_bytes = OffsetIndex.ENTRY_BYTES
    fields = (("relative offset", 4), ("position", 4))

    def _check(self) -> IndexCheck:
        return OffsetCheck(OffsetIndex(self._file), self.base_offset, self._count)

    def _line(self, entry: Entry) -> str:
        return (
            f"entry {entry.slot}: offset {self.base_offset + entry.key} (relative {entry.key}), position {entry.value}"
        )

    def _values(self, entry: Entry) -> dict[str, int]:
        return {
            "offset": self.base_offset + entry.key,
            "relative_offset": entry.key,
            "position": entry.value,
        }

    def _meanings(self, entry: Entry) -> tuple[str, str]:
        return f"{entry.key}: offset {self.base_offset + entry.key}", str(entry.value)


class TimeIndexDump(IndexDump):
    """The dump of a `.timeindex` file, which maps timestamps to offsets."""

    entry_bytes = TimeIndex.ENTRY_BYTES
    fields = (("timestamp", 8), ("relative offset", 4))

    def _check(self) -> IndexCheck:
        return TimeCheck(TimeIndex(self._file), self.base_offset, self._count)

    def _line(self, entry: Entry) -> str:
        offset = self.base_offset + entry.value
        return f"entry {entry.slot}: timestamp {time_text(entry.key)}, offset {offset} (relative {entry.value})"

    def _values(self, entry: Entry) -> dict[str, int]:
        return {
            "timestamp": entry.key,
            "offset": self.base_offset + entry.value,
            "relative_offset": entry.value,
        }

    def _meanings(self, entry: Entry) -> tuple[str, str]:
        return time_text(entry.key), f"{entry.value}: offset {self.base_offset + entry.value}"


# Checkpoints --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of a checkpoint: its position, its meaning, and its damage, if any."""

    position: int
    text: bytes
    meaning: str
    values: dict[str, Any]
    damage: str | None


class CheckpointDump:
    """The dump of a checkpoint, which has a version, a count, and that many lines."""

    def __init__(self, file: File, entry: LineFormat) -> None:
        self._data = file.pread(file.size(), 0)
        self._entry = entry
        self._entries = self._damaged = 0

    @property
    def is_damaged(self) -> bool:
        """Whether a line is wrong, or missing."""
        return self._damaged > 0

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:  # noqa: ARG002
        """The meaning of each line of the file; if `annotated`, after the line's own text."""
        for line in self._lines():
            shown = f"{line.position:>6}  {bytes_text(line.text):<24} " if annotated else ""
            yield shown + line.meaning
            if line.damage is not None:
                yield f"  damaged: {line.damage}"
        yield self._last_line()

    def damaged_lines(self) -> Iterator[str]:
        """Show only the damaged lines."""
        for line in self._lines():
            if line.damage is not None:
                yield line.meaning
                yield f"  damaged: {line.damage}"
        yield self._last_line()

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """One object for each line."""
        for line in self._lines():
            yield {"position": line.position, **line.values, "damage": line.damage}

    def _last_line(self) -> str:
        verdict = f"{self._damaged} damaged" if self._damaged else "all good"
        return f"{counted_text(self._entries, 'entry', 'entries')}: {verdict}"

    def _lines(self) -> Iterator[Line]:
        position = 0
        texts = self._data.splitlines()
        self._entries = max(len(texts) - 2, 0)
        # Kafka creates a checkpoint before it has anything to write: an empty file has no entries.
        for number, text in enumerate(texts):
            line = self._line(number, position, text)
            self._damaged += line.damage is not None
            yield line
            position += len(text) + 1

    def _line(self, number: int, position: int, text: bytes) -> Line:
        if number == 0:
            return _expecting(VERSION, position, text, "version", f"only version {VERSION} is known")
        if number == 1:
            there = counted_text(self._entries, "entry", "entries")
            return _expecting(self._entries, position, text, "entries", f"the file has {there}")
        return Line(position, text, *self._entry.read(text))


def _expecting(expected: int, position: int, text: bytes, name: str, wrong: str) -> Line:
    shown = text.decode(errors="replace")
    damage = None if shown == str(expected) else wrong
    return Line(position, text, f"{name} {shown}", {name: shown}, damage)


# Directories --------------------------------------------------------------------------------------------------------


class DirectoryDump:
    """The check of a partition's directory: every segment, its indexes, and the order of the segments."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._bases = base_offsets(files.list(path))
        self._summary = log_dump.Summary()
        if not self._bases:
            raise LogError(f"{path}: it has no log files; name the directory of a partition, such as data/orders-0")

    @property
    def is_damaged(self) -> bool:
        """Whether anything in the directory is damaged."""
        return self._summary.is_damaged

    def lines(self, *, records: bool, annotated: bool) -> Iterator[str]:  # noqa: ARG002
        """The same as `damaged_lines`. To show undamaged content, dump a single file."""
        return self.damaged_lines()

    def damaged_lines(self) -> Iterator[str]:
        """The damage, the gaps between segments, and the last line."""
        for step in self._check():
            yield str(step)
        yield f"{counted_text(len(self._bases), 'segment')}, {self._summary.line()}"

    def objects(self, *, records: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        """One object for each finding."""
        for step in self._check():
            if isinstance(step, Finding):
                yield {"path": step.path, "position": step.position, "damage": step.what}

    def _check(self) -> Iterator["Finding | str"]:
        """All findings, and notes about gaps, which do not count as damage."""
        for finding in self._check_names():
            self._summary.damaged += 1
            yield finding
        for base_offset, following in zip(self._bases, [*self._bases[1:], None], strict=True):
            for step in self._check_segment(base_offset, following):
                if isinstance(step, Progress):
                    self._count(step)
                else:
                    self._summary.damaged += isinstance(step, Finding)
                    yield step

    def _count(self, progress: Progress) -> None:
        if progress.batch is not None:
            self._summary.batches += 1
            self._summary.records += progress.batch.record_count
            self._summary.size += progress.batch.size

    def _check_names(self) -> Iterator[Finding]:
        logs = {f"{base:0{DIGITS}}" for base in self._bases}
        for name in self._files.list(self._path):
            digits, dot, kind = name.partition(".")
            if dot + kind in (OFFSET_SUFFIX, TIME_SUFFIX) and digits not in logs:
                yield Finding(f"{self._path}/{name}", 0, "an index without its log")
            if name in CHECKPOINTS:
                checkpoint = dump_of(self._files, f"{self._path}/{name}")
                for line in checkpoint.objects(records=False):
                    if line["damage"] is not None:
                        yield Finding(f"{self._path}/{name}", line["position"], line["damage"])

    def _check_segment(self, base_offset: int, following: int | None) -> Iterator[Progress | Finding | str]:
        source = open_source(self._files, lambda suffix: stem(self._path, base_offset) + suffix, base_offset)
        try:
            # The files do not say whether the log was compacted, so gaps do not count as damage.
            for step in check_segment(source, dense=False, is_closed=following is not None):
                if not isinstance(step, End):
                    yield step
                elif following is not None:
                    yield from self._check_end(source, step, following)
        finally:
            source.close()

    def _check_end(self, source: Source, end: End, following: int) -> Iterator[Finding | str]:
        log_path = stem(self._path, following) + LOG_SUFFIX
        log = self._files.open(log_path, create=False, writable=False)
        yield from against_next(source, end, base_offset=following, log=log, dense=False)
        gap = following - end.log_end_offset
        if end.is_sound and gap > 0:
            missing = f"{counted_text(gap, 'offset')} missing before this file"
            yield f"{log_path}: {missing}: the log was compacted, or a segment is missing"
