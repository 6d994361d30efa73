"""Chapter 01 as a program: a log on one file that you can append to, tail and dump.

    python -m minibroker.log append FILE      lines from standard input become records
    python -m minibroker.log tail FILE        print records to standard output
    python -m minibroker.log dump FILE        print batches, records and bytes

`append` locks the file. `tail` and `dump` neither lock nor change it. `append` cuts off a torn tail, the unfinished
write that a crash leaves. It refuses a file that is damaged in any other way, unless `--cut` is given.
"""

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minibroker.log import program
from minibroker.log.batch import Batch
from minibroker.log.compression import Compression
from minibroker.log.disk import OSFiles
from minibroker.log.dump import Summary, is_foreign, lines
from minibroker.log.errors import LogError
from minibroker.log.interfaces import File
from minibroker.log.lines import batches_of_lines, lines_of_batch
from minibroker.log.logfile import EVERY_APPEND, NEVER, FlushPolicy, LogFile
from minibroker.log.recovery import Recovered, headers, is_torn_tail, recover

POLL_S = 0.1
BASE_OFFSET_BYTES = 8


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    return program.run("minibroker.log", lambda: int(options.command(options)))


def _parser() -> argparse.ArgumentParser:
    parser = program.Parser(prog="python -m minibroker.log", description="A log on one file.")
    commands = parser.add_subparsers(required=True, metavar="append|tail|dump")
    _append_options(commands.add_parser("append", help="append lines from standard input"))
    _tail_options(commands.add_parser("tail", help="print records"))
    _dump_options(commands.add_parser("dump", help="show batches, records and bytes"))
    return parser


# append -------------------------------------------------------------------------------------------------------------


def _append_options(parser: argparse.ArgumentParser) -> None:
    codecs = [codec.name.lower() for codec in Compression]
    parser.add_argument("file")
    parser.add_argument(
        "--batch", type=program.count, metavar="N", help="records per batch (default 100; 1 from a terminal)"
    )
    parser.add_argument("--key-separator", type=program.separator, metavar="S", help="text between key and value")
    parser.add_argument(
        "--compression", choices=codecs, default="none", help=f"the codec: {', '.join(codecs)} (default none)"
    )
    parser.add_argument(
        "--timestamp", type=program.timestamp, metavar="MS", help="timestamp of the records (default now)"
    )
    flush = "when to flush to disk: never, after every N records, or before every ack (default never)"
    parser.add_argument("--flush", type=_flush_policy, default=NEVER, metavar="never|N|ack", help=flush)
    parser.add_argument(
        "--cut", action="store_true", help="if the file is damaged, cut it there and lose all later records"
    )
    parser.set_defaults(command=_append)


def _flush_policy(text: str) -> FlushPolicy:
    named = {"never": NEVER, "ack": EVERY_APPEND}
    if text in named:
        return named[text]
    try:
        return FlushPolicy(interval_messages=program.count(text))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; 'never' and 'ack' are allowed, too") from None


def _append(options: argparse.Namespace) -> int:
    with _locked(options.file):
        if not options.cut:
            _demand_log(options.file)
        log = LogFile.open(OSFiles(), options.file, flush_policy=options.flush)
        try:
            if log.recovered.damage is not None:
                print(f"recovered: the log ends at offset {log.log_end_offset}; cut off: {log.recovered.damage}")
            for batch in _batches(options):
                base_offset = log.append(batch)
                print(f"acked {base_offset}-{log.log_end_offset - 1}", flush=True)
        finally:
            log.close()
    return 0


@contextmanager
def _locked(path: str) -> Iterator[None]:
    if Path(path).exists():
        program.demand_file(path)
    # Lock the file: two writers would give the same offsets to different records.
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{path}: another process is appending to this file; stop it first") from None
        yield


def _demand_log(path: str) -> None:
    """Refuse a file if opening it would cut off more than one unfinished write."""
    file = program.open_file(path)
    recovered = recover(file, start=Recovered(size=0, log_end_offset=0))
    if recovered.damage is None or _is_torn(file, recovered):
        return
    what = "it is damaged in the middle" if recovered.size else "it is not a log that begins with offset 0"
    raise LogError(
        f"{path}: {what} ({recovered.damage}); nothing was changed: --cut would cut it at position {recovered.size} "
        f"and lose {file.size() - recovered.size} bytes"
    )


def _is_torn(file: File, recovered: Recovered) -> bool:
    # This program's first batch has base offset 0, so its file begins with eight zero bytes, even if the batch is torn.
    is_ours = recovered.size > 0 or not any(file.pread(BASE_OFFSET_BYTES, 0))
    return is_ours and is_torn_tail(file, recovered)


def _batches(options: argparse.Namespace) -> Iterator[bytearray]:
    return batches_of_lines(
        iter(sys.stdin.buffer.readline, b""),
        count=options.batch or (1 if sys.stdin.isatty() else 100),
        clock_ms=lambda: time.time_ns() // 1_000_000 if options.timestamp is None else options.timestamp,
        key_separator=options.key_separator.encode() if options.key_separator else None,
        compression=Compression[options.compression.upper()],
    )


# tail ---------------------------------------------------------------------------------------------------------------


def _tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    parser.add_argument(
        "--offset", type=program.offset, default=0, metavar="N", help="begin at this offset (default 0)"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="wait for more records until Ctrl-C")
    parser.set_defaults(command=_tail)


def _tail(options: argparse.Namespace) -> int:
    file = program.open_file(options.file)
    if is_foreign(file):
        raise LogError(f"{options.file}: it is not a log")
    printed = Recovered(size=0, log_end_offset=0)
    given_up: int | None = None
    while True:
        # Only valid batches are printed. The file may begin in the middle of a log, and it may have gaps.
        valid = recover(file, start=printed, dense=False)
        _print_records(file, printed.size, valid.size, options.offset)
        printed = valid._replace(damage=None)
        # A torn tail may become a whole batch, because a writer may still be writing it. Real damage stays, so with
        # --follow it is reported only if a second check finds it again.
        if valid.damage is not None and (not options.follow or printed.size == given_up):
            raise valid.damage
        if not options.follow:
            return 0
        is_given_up = valid.damage is not None and not is_torn_tail(file, valid)
        given_up = printed.size if is_given_up else None
        time.sleep(POLL_S)


def _print_records(file: File, position: int, size: int, offset: int) -> None:
    """Print the records in the file's bytes from `position` to `size`, except those before `offset`."""
    for found, header in headers(file, position=position, size=size):
        if header.next_offset > offset:
            batch = Batch(file.pread(header.size, found))
            sys.stdout.buffer.writelines(lines_of_batch(batch, offset=offset))
    sys.stdout.buffer.flush()


# dump ---------------------------------------------------------------------------------------------------------------


def _dump_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    parser.add_argument("--batches", action="store_true", help="leave out the records")
    parser.add_argument("--bytes", action="store_true", help="annotate every byte")
    parser.set_defaults(command=_dump)


def _dump(options: argparse.Namespace) -> int:
    summary = Summary()
    file = program.open_file(options.file)
    for line in lines(file, summary, records=not options.batches, annotated=options.bytes):
        print(line)
    return int(summary.is_damaged)


if __name__ == "__main__":
    sys.exit(main())
