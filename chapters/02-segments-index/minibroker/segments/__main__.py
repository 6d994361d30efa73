"""Chapter 02 as a program: append to a partition's directory, search it, and limit its size.

    python -m minibroker.segments append data/orders-0     lines from standard input become records
    python -m minibroker.segments tail data/orders-0       print records from an offset or a time on
    python -m minibroker.segments list data/orders-0       list the segments
    python -m minibroker.segments retain data/orders-0     delete segments by retention.ms or retention.bytes
    python -m minibroker.segments compact data/orders-0    keep the newest record of each key
    python -m minibroker.segments scrub data/orders-0      read everything and look for damage

Settings are Kafka's: `--set segment.bytes=1000`. One process at a time may use a data directory. `append` creates a
missing directory; the other commands refuse it.
"""

import argparse
import fcntl
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from minibroker.log import program
from minibroker.log.batch import Batch, batches
from minibroker.log.disk import OSFiles
from minibroker.log.errors import CorruptBatch, LogError
from minibroker.log.lines import batches_of_lines, lines_of_batch
from minibroker.log.text import counted_text, time_text
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.compaction import clean
from minibroker.segments.config import COMPACT, DELETE, LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.segments.scrub import Finding, scrub
from minibroker.segments.segmented import SegmentedLog

READ_BYTES_MAX = 1024 * 1024
LOCK = ".lock"

SMALLEST = {
    "segment.bytes": 1,
    "segment.ms": 1,
    "index.interval.bytes": 0,
    "segment.index.bytes": 4,
    "retention.ms": -1,
    "retention.bytes": -1,
    "min.compaction.lag.ms": 0,
    "max.compaction.lag.ms": 1,
    "delete.retention.ms": 0,
    "flush.messages": 1,
    "flush.ms": 0,
}
"""The lower limit of each setting that is a whole number. Kafka's limits are the same, except for `segment.bytes`."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    return program.run("minibroker.segments", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    create = options.command is append
    with opened(options.directory, options.config, create=create) as (data, partition, log):
        return options.command(options, data, partition, log) or 0


def _parser() -> argparse.ArgumentParser:
    parser = program.Parser(prog="python -m minibroker.segments", description="A partition's directory.")
    commands = parser.add_subparsers(required=True, metavar="append|tail|list|retain|compact|scrub")
    for name, command, summary in (
        ("append", append, "append lines from standard input"),
        ("tail", tail, "print records"),
        ("list", list_segments, "show the segments"),
        ("retain", retain, "delete segments by retention.ms or retention.bytes"),
        ("compact", compact, "keep the newest record of each key"),
        ("scrub", scrub_all, "read everything and look for damage"),
    ):
        subparser = commands.add_parser(name, help=summary)
        subparser.add_argument("directory", help="<data>/<topic>-<partition>")
        subparser.add_argument("--set", dest="config", action=_Setting, default=LogConfig(), metavar="NAME=VALUE")
        subparser.set_defaults(command=command)
        _options(name, subparser)
    return parser


def _options(name: str, parser: argparse.ArgumentParser) -> None:
    if name == "append":
        parser.add_argument(
            "--batch", type=program.count, default=100, metavar="N", help="records per batch (default 100)"
        )
        separator = "text between key and value"
        parser.add_argument("--key-separator", type=program.separator, metavar="S", help=separator)
        timestamp = "timestamp of the first record (default now); each further record is 1 s newer"
        parser.add_argument("--timestamp", type=program.timestamp, metavar="MS", help=timestamp)
    elif name == "tail":
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--offset", type=program.offset, metavar="N", help="begin at this offset (default: the log's start)"
        )
        time_help = "begin at the first record that is not older than this time"
        where.add_argument("--time", type=program.timestamp, metavar="MS", help=time_help)
    if name in ("retain", "compact"):
        parser.add_argument(
            "--now", type=program.timestamp, metavar="MS", help="the time to use as now (default: the clock's)"
        )


class _Setting(argparse.Action):
    """Collects `--set segment.bytes=1000` into a LogConfig."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, given: Any, _o: object = None
    ) -> None:
        name, _equals, value = str(given).partition("=")
        known = {field.name.replace("_", "."): field for field in fields(LogConfig)}
        if name not in known:
            parser.error(f"there is no setting {name!r}; the settings are {', '.join(known)}")
        try:
            changed = replace(options.config, **{known[name].name: _value(name, value)})
        except ValueError:
            parser.error(f"{name}={value}: {_expected(name)}")
        options.config = changed


def _value(name: str, text: str) -> object:
    if name == "cleanup.policy":
        policies = frozenset(text.split(","))
        return _demand(policies, policies <= {DELETE, COMPACT})
    if name == "min.cleanable.dirty.ratio":
        return _demand(float(text), 0 <= float(text) <= 1)
    return _demand(int(text), int(text) >= SMALLEST[name])


def _demand(value: object, is_allowed: bool) -> object:
    if not is_allowed:
        raise ValueError
    return value


def _expected(name: str) -> str:
    if name == "cleanup.policy":
        return f"it must be {DELETE}, {COMPACT}, or both, separated by a comma"
    if name == "min.cleanable.dirty.ratio":
        return "it must be a number from 0 to 1"
    return f"it must be a whole number of at least {SMALLEST[name]}"


@contextmanager
def opened(
    directory: str, config: LogConfig, *, create: bool
) -> Iterator[tuple[DataDirectory, TopicPartition, SegmentedLog]]:
    """Open a partition's log for one command, and shut it down cleanly."""
    path = Path(directory)
    partition = TopicPartition.of_directory(path.name)
    if not create and not path.is_dir():
        raise LogError(f"{path}: there is no such directory; the command append creates it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / LOCK, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path.parent}: another process uses this data directory; stop it first") from None
        data = DataDirectory(OSFiles(), str(path.parent))
        log = data.open_log(partition, config)
        try:
            yield data, partition, log
        finally:
            data.close()


def append(options: argparse.Namespace, _data: DataDirectory, _partition: TopicPartition, log: SegmentedLog) -> None:
    """Append lines from standard input."""
    clock = None if options.timestamp is None else itertools.count(options.timestamp, 1000)
    for batch in batches_of_lines(
        iter(sys.stdin.buffer.readline, b""),
        count=options.batch,
        clock_ms=lambda: now_ms() if clock is None else next(clock),
        key_separator=options.key_separator.encode() if options.key_separator else None,
    ):
        base_offset = log.append(batch)
        print(f"acked {base_offset}-{log.log_end_offset - 1}", flush=True)


def tail(options: argparse.Namespace, _data: DataDirectory, _partition: TopicPartition, log: SegmentedLog) -> None:
    """Print records from an offset or a time on."""
    offset = log.log_start_offset if options.offset is None else options.offset
    if options.time is not None:
        found = log.find_time(options.time)
        offset = log.log_end_offset if found is None else found.offset
    while (fetched := log.read(offset, bytes_max=READ_BYTES_MAX)).count:
        for batch in batches(fetched.read()):
            _check(batch)
            sys.stdout.buffer.writelines(lines_of_batch(batch, offset=offset))
            offset = batch.header.next_offset
    sys.stdout.buffer.flush()


def _check(batch: Batch) -> None:
    try:
        batch.check_crc()
    except CorruptBatch as error:
        # The position of the slice in its file is not known here, so the error names the offset.
        what = str(error).removeprefix("batch at position 0: ")
        raise CorruptBatch(f"the batch with base offset {batch.header.base_offset} is damaged: {what}") from None


def list_segments(
    _options: argparse.Namespace, _data: DataDirectory, _partition: TopicPartition, log: SegmentedLog
) -> None:
    """Show the segments."""
    for segment in log.segments:
        indexes = segment.indexes
        print(
            f"{segment.base_offset:020}  {segment.size} bytes, "
            f"{counted_text(indexes.offsets.count, 'offset entry', 'offset entries')}, "
            f"{counted_text(indexes.times.count, 'time entry', 'time entries')}, "
            f"youngest {time_text(segment.max_timestamp)}"
        )
    print(f"offsets {log.log_start_offset} to {log.log_end_offset}, {log.size} bytes")


def retain(options: argparse.Namespace, _data: DataDirectory, _partition: TopicPartition, log: SegmentedLog) -> None:
    """Delete the segments that exceed `retention.ms` or `retention.bytes`."""
    deleted = log.retain(now_ms() if options.now is None else options.now)
    print(f"{counted_text(deleted, 'segment')} deleted; the log starts at offset {log.log_start_offset}")


def compact(options: argparse.Namespace, data: DataDirectory, partition: TopicPartition, log: SegmentedLog) -> None:
    """Keep the newest record of each key. Roll the active segment first, so that it is compacted as well."""
    if not log.config.compacts:
        raise LogError("cleanup.policy does not allow compaction: add --set cleanup.policy=compact")
    log.roll()
    cleaned = clean(
        log,
        first_dirty_offset=data.first_dirty_offset(partition),
        now_ms=now_ms() if options.now is None else options.now,
    )
    data.set_first_dirty_offset(partition, cleaned.first_dirty_offset)
    print(
        f"{counted_text(cleaned.records_before, 'record')}, {cleaned.bytes_before} bytes before; "
        f"{counted_text(cleaned.records_after, 'record')}, {cleaned.bytes_after} bytes after; "
        f"clean up to offset {cleaned.first_dirty_offset}"
    )


def scrub_all(_options: argparse.Namespace, _data: DataDirectory, _partition: TopicPartition, log: SegmentedLog) -> int:
    """Read every closed segment and look for damage."""
    findings, bytes_read = 0, 0
    for event in scrub(OSFiles(), log):
        if isinstance(event, Finding):
            findings += 1
            print(f"{event}; {event.remedy}")
        else:
            bytes_read += event.bytes_read
    closed = counted_text(len(log.segments) - 1, "closed segment")
    print(f"{closed}, {bytes_read} bytes read: {counted_text(findings, 'finding')}")
    return int(findings > 0)


def now_ms() -> int:
    """The time of day in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
