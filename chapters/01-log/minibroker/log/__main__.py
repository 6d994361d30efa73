"""Chapter 01 as a program: a log on one file that you can append to, tail and dump.

    python -m minibroker.log append FILE      lines from standard input become records
    python -m minibroker.log tail FILE        records to standard output
    python -m minibroker.log dump FILE        what is in the file, down to the byte

Appending locks the file; reading does not, and never changes it.
"""

import argparse
import fcntl
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minibroker.log.batch import Batch, BatchBuilder
from minibroker.log.compression import Compression
from minibroker.log.disk import OSFiles
from minibroker.log.dump import Summary, lines
from minibroker.log.errors import CorruptBatch, LogError
from minibroker.log.interfaces import File
from minibroker.log.logfile import EVERY_APPEND, NEVER, FlushPolicy, LogFile
from minibroker.log.recovery import check_batch, headers

POLL_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (LogError, OSError) as error:
        print(f"minibroker.log: {_message(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minibroker.log", description="A log on one file.")
    commands = parser.add_subparsers(required=True, metavar="append|tail|dump")
    _append_options(commands.add_parser("append", help="append lines from standard input"))
    _tail_options(commands.add_parser("tail", help="print records"))
    _dump_options(commands.add_parser("dump", help="show batches, records and bytes"))
    return parser


# append -------------------------------------------------------------------------------------------------------------


def _append_options(parser: argparse.ArgumentParser) -> None:
    codecs = [codec.name.lower() for codec in Compression]
    parser.add_argument("file")
    parser.add_argument("--batch", type=int, metavar="N", help="records in a batch (100; 1 from a terminal)")
    parser.add_argument("--key-separator", metavar="S", help="what stands before it is the key")
    parser.add_argument("--compression", choices=codecs, default="none", help=f"{', '.join(codecs)} (none)")
    parser.add_argument("--timestamp", type=int, metavar="MS", help="the records' time (now)")
    flush = "to disk never, every N records, or before every ack (never)"
    parser.add_argument("--flush", type=_flush_policy, default=NEVER, metavar="never|N|ack", help=flush)
    parser.set_defaults(command=_append)


def _flush_policy(text: str) -> FlushPolicy:
    named = {"never": NEVER, "ack": EVERY_APPEND}
    return named[text] if text in named else FlushPolicy(interval_messages=int(text))


def _append(options: argparse.Namespace) -> int:
    with _locked(options.file):
        log = LogFile.open(OSFiles(), options.file, flush_policy=options.flush)
        try:
            if log.recovered.damage is not None:
                print(f"recovered: the log ends at offset {log.log_end_offset}; cut off: {log.recovered.damage}")
            for batch in _batches_of_lines(options):
                base_offset = log.append(batch)
                print(f"acked {base_offset}-{log.log_end_offset - 1}", flush=True)
        finally:
            log.close()
    return 0


@contextmanager
def _locked(path: str) -> Iterator[None]:
    # Two writers would give the same offsets to different records.
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path}: another process is appending to it; end that one first") from None
        yield


def _batches_of_lines(options: argparse.Namespace) -> Iterator[bytearray]:
    count = options.batch or (1 if sys.stdin.isatty() else 100)
    lines_read = iter(sys.stdin.buffer.readline, b"")
    while some := list(itertools.islice(lines_read, count)):
        builder = BatchBuilder(compression=Compression[options.compression.upper()])
        for line in some:
            key, value = _key_and_value(line.rstrip(b"\n"), options.key_separator)
            builder.append(timestamp=options.timestamp or time.time_ns() // 1_000_000, key=key, value=value)
        yield builder.build()


def _key_and_value(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None or separator.encode() not in line:
        return None, line
    key, _separator, value = line.partition(separator.encode())
    return key, value


# tail ---------------------------------------------------------------------------------------------------------------


def _tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="begin at this offset (0)")
    parser.add_argument("--follow", "-f", action="store_true", help="wait for more, until Ctrl-C")
    parser.set_defaults(command=_tail)


def _tail(options: argparse.Namespace) -> int:
    file = OSFiles().open(options.file, create=False, writable=False)
    position = 0
    while True:
        position, damage = _print_records(file, position, options.offset)
        if not options.follow:
            break
        # Whatever is not a batch yet may become one: somebody may be writing it right now.
        time.sleep(POLL_S)
    if damage is not None:
        raise damage
    return 0


def _print_records(file: File, position: int, offset: int) -> tuple[int, CorruptBatch | None]:
    """Print what follows `position`; return where to go on, and what stopped it."""
    try:
        for found, header in headers(file, position=position):
            if header.next_offset > offset:
                check_batch(file, found, header)
                _print_batch(Batch(file.pread(header.size, found)), offset)
            position = found + header.size
    except CorruptBatch as damage:
        return position, damage
    finally:
        sys.stdout.buffer.flush()
    return position, None


def _print_batch(batch: Batch, offset: int) -> None:
    if batch.header.is_control:
        return
    for record in batch.records():
        if record.offset >= offset:
            key = b"" if record.key is None else record.key
            sys.stdout.buffer.write(b"%d\t%s\t%s\n" % (record.offset, key, record.value or b""))


# dump ---------------------------------------------------------------------------------------------------------------


def _dump_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    parser.add_argument("--batches", action="store_true", help="leave out the records")
    parser.add_argument("--bytes", action="store_true", help="annotate every byte")
    parser.set_defaults(command=_dump)


def _dump(options: argparse.Namespace) -> int:
    summary = Summary()
    file = OSFiles().open(options.file, create=False, writable=False)
    for line in lines(file, summary, records=not options.batches, annotated=options.bytes):
        print(line)
    return int(summary.is_damaged)


if __name__ == "__main__":
    sys.exit(main())
