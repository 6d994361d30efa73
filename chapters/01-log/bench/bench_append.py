"""Appending to the log against the least that any log must do: a checksum and a write into the page cache.

All cases write the same batch over one and the same warm file, so that memory and page cache cost them alike; what
differs is our Python.
"""

from minibroker.bench import KIB, MIB, Bar, Benchmark, Case, Context, bytes_text, limits, scaled
from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import NEVER, LogFile
from minibroker.log.record import encode_record
from minibroker.log.recovery import Recovered


def benchmark(context: Context) -> Benchmark:
    size = scaled(full=512 * MIB, quick=2 * MIB)
    descriptor = limits.scratch_file(context, "append.log", size)
    cases, bars = [], []
    for block_bytes in (MIB, 16 * KIB):
        batch = batch_of(block_bytes)
        bare = limits.write(descriptor, size, block_bytes, with_crc32c=True, block=batch)
        ours = append_case(context, size, batch, limit=bare.name)
        cases += [bare, ours]
        if block_bytes == MIB:
            bars.append(Bar(ours.name, "ratio", at_least=0.95))
        else:
            bars.append(Bar(ours.name, "us_beyond", at_most=10))
    return Benchmark(
        "Append to one file, beside a bare checksum and write",
        cases,
        bars,
        note="Each batch is checked (CRC-32C, counts, epoch), stamped in place and written with one call.",
    )


def append_case(context: Context, size: int, batch: bytearray, limit: str) -> Case:
    file = OSFiles().open(str(context.directory / "append.log"))
    context.on_close(file.close)
    count = size // len(batch)

    def run() -> None:
        # This log takes the file for an empty one. So it writes over the warm pages, and the file does not grow.
        log = LogFile(file, Recovered(size=0, log_end_offset=0), base_offset=0, flush_policy=NEVER)
        for _ in range(count):
            log.append(batch)

    name = f"append, {bytes_text(len(batch))} batches"
    return Case(name, run, bytes_count=count * len(batch), operations_count=count, limit=limit)


def batch_of(batch_bytes: int) -> bytearray:
    """A batch of exactly this size: records of 1 KB, and a last one that fills it up."""
    builder = BatchBuilder()
    while builder.size + 2 * KIB < batch_bytes:
        builder.append(timestamp=0, key=None, value=bytes(1000))
    # A record takes a few bytes more than its value, so find the right size of the value by trial.
    for size in range(batch_bytes - builder.size, 0, -1):
        last = encode_record(offset_delta=builder.record_count, timestamp_delta=0, key=None, value=bytes(size))
        if builder.size + len(last) == batch_bytes:
            builder.append(timestamp=0, key=None, value=bytes(size))
            break
    assert builder.size == batch_bytes
    return builder.build()
