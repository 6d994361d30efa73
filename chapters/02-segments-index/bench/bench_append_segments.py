"""Appending through segments against chapter 01's single file: what rolling, indexes and companions cost.

All cases write the same batches over one and the same warm file, so that memory and page cache cost them alike. Each
batch is younger than the one before, so that both indexes get their entries.
"""

from collections.abc import Callable

from minibroker.bench import KIB, MIB, Bar, Benchmark, Case, Context, bytes_text, limits, scaled
from minibroker.log.batch import CRC_AT, MAX_TIMESTAMP_AT
from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import Log
from minibroker.log.logfile import NEVER, LogFile
from minibroker.log.recovery import Recovered
from minibroker.segments.config import LogConfig
from minibroker.segments.segment import LOG_SUFFIX, Segment, stem
from minibroker.segments.segmented import SegmentedLog
from minibroker.segments.sparse import START_MS, batch_of, set_timestamps

EMPTY = Recovered(size=0, log_end_offset=0)
FILE = stem("", 0).removeprefix("/") + LOG_SUFFIX
TIMESTAMPS = slice(CRC_AT, MAX_TIMESTAMP_AT + 8)  # the bytes in which batches with different timestamps differ


def benchmark(context: Context) -> Benchmark:
    size = scaled(full=256 * MIB, quick=2 * MIB)
    descriptor = limits.scratch_file(context, FILE, size)
    cases, bars = [], []
    for batch_bytes in (MIB, 16 * KIB):
        batch = batch_of(batch_bytes)
        bare = limits.write(descriptor, size, batch_bytes, with_crc32c=True, block=batch)
        one = append_case(f"one file, {bytes_text(batch_bytes)}", open_one, context, size, batch, limit=bare.name)
        many = append_case(f"segments, {bytes_text(batch_bytes)}", open_many, context, size, batch, limit=one.name)
        cases += [bare, one, many]
        bars.append(Bar(many.name, "ratio", at_least=0.9))
    note = "The file is warm, and no segment gets full: a roll happens once in a gigabyte."
    return Benchmark("Append through segments, beside one file", cases, bars, note=note)


def append_case(
    name: str, open_log: Callable[[Context], Log], context: Context, size: int, batch: bytearray, limit: str
) -> Case:
    stamps = rising_timestamps(batch, size // len(batch))
    log: list[Log] = []

    def run() -> None:
        append = log[0].append
        for stamp in stamps:
            batch[TIMESTAMPS] = stamp
            append(batch, leader_epoch=0)

    work = len(stamps) * len(batch)
    return Case(
        name,
        run,
        bytes_count=work,
        operations_count=len(stamps),
        limit=limit,
        before=lambda: log.append(open_log(context)),
        # The log is not closed: the flush would leave clean pages to the next case, and those cost more to write over.
        after=log.pop,
    )


def open_one(context: Context) -> Log:
    # This log takes the file for an empty one. So it writes over the warm pages, and the file does not grow.
    file = OSFiles().open(str(context.directory / FILE))
    return LogFile(file, EMPTY, base_offset=0, flush_policy=NEVER)


def open_many(context: Context) -> Log:
    directory, config = str(context.directory), LogConfig()
    segment = Segment(OSFiles(), directory, 0, config)
    segment.open_indexes().reset()
    segment.open_tail(EMPTY, NEVER)
    return SegmentedLog(OSFiles(), directory, config, [segment], log_start_offset=0)


def rising_timestamps(batch: bytearray, count: int) -> list[bytes]:
    """What must be put into a batch to make it a millisecond younger each time, its checksum included."""
    stamps = []
    for timestamp in range(START_MS, START_MS + count):
        set_timestamps(batch, timestamp, timestamp)
        stamps.append(bytes(batch[TIMESTAMPS]))
    return stamps
