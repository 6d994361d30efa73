"""What each flush policy costs, beside the same writes and the same flushes without a log."""

import os

from minibroker.bench import KIB, MIB, Benchmark, Case, Context, limits, scaled
from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import EVERY_APPEND, NEVER, FlushPolicy, LogFile
from minibroker.log.recovery import Recovered

RECORDS = 16  # in a batch, of 1 KB each


def benchmark(context: Context) -> Benchmark:
    size = scaled(full=8 * MIB, quick=128 * KIB)
    batch = batch_of_16_kib()
    count = size // len(batch)
    every_mib = MIB // len(batch) * RECORDS
    cases = []
    for policy, name, flush_every_bytes in (
        (NEVER, "never", None),
        (FlushPolicy(interval_messages=every_mib), f"every {every_mib} records", MIB),
        (EVERY_APPEND, "before every ack", len(batch)),
    ):
        descriptor = limits.scratch_file(context, f"bare {name}")
        bare = limits.append(
            descriptor, count * len(batch), len(batch), f"bare, {name}", flush_every_bytes=flush_every_bytes
        )
        cases += [bare, append_case(context, policy, name, batch, count, limit=bare.name)]
    return Benchmark(
        "Appends of 16 KB with each flush policy",
        cases,
        log=True,
        note="A flush waits for the disk; every record before it shares the wait.",
    )


def append_case(context: Context, policy: FlushPolicy, name: str, batch: bytearray, count: int, limit: str) -> Case:
    file = OSFiles().open(str(context.directory / f"log {name}"))
    context.on_close(file.close)

    def empty() -> None:
        file.truncate(0)
        file.fsync()

    def run() -> None:
        log = LogFile(file, Recovered(size=0, log_end_offset=0), base_offset=0, flush_policy=policy)
        for _ in range(count):
            log.append(batch)

    work = count * len(batch)
    return Case(f"log, {name}", run, bytes_count=work, operations_count=count, limit=limit, before=empty)


def batch_of_16_kib() -> bytearray:
    builder = BatchBuilder()
    for _ in range(RECORDS):
        builder.append(timestamp=0, key=None, value=os.urandom(1000))
    return builder.build()
