"""A disk fails one fsync, and a log tries again; then the log of this chapter meets the same disk.

The lesson `lessons/04-append-and-flush.md` begins with what `python chapters/01-log/bench/retry.py` prints, and ends
with `--ours`. The disk is the one of the crash tests: it forgets unwritten pages after a failed fsync, as Linux does.
"""

import errno
import sys

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.errors import LogOffline
from minibroker.log.logfile import EVERY_APPEND, LogFile
from minibroker.log.memory import MemoryFiles

ORDERS = ["order 0", "order 1", "order 2"]
FAILS_AT = "order 1"
FAILURE = OSError(errno.EIO, "input/output error")


def retry() -> None:
    """Append lines, and call fsync a second time where the first call fails."""
    files = MemoryFiles()
    file = files.open("orders.txt")
    files.fsync_directory(".")
    for order in ORDERS:
        file.pwrite(f"{order}\n".encode(), file.size())
        try:
            files.fsync_error = FAILURE if order == FAILS_AT else None
            file.fsync()
            print(f"append {order}: acked")
        except OSError as error:
            files.fsync_error = None
            file.fsync()
            print(f"append {order}: fsync failed ({error.strerror}), the second fsync succeeded: acked")
    files.crash()
    print(f"after a power failure the file holds {files.open('orders.txt').pread(100, 0)!r}")


def ours() -> None:
    """Append the same orders to a log that flushes before every ack."""
    files = MemoryFiles()
    log = LogFile.open(files, "a.log", flush_policy=EVERY_APPEND)
    for order in ORDERS:
        files.fsync_error = FAILURE if order == FAILS_AT else None
        _append(log, order)
    log = LogFile.open(files, "a.log", flush_policy=EVERY_APPEND)
    print(f"restart: {_ends(log)}")
    for order in ORDERS[log.log_end_offset :]:
        _append(log, order)
    files.crash()
    log = LogFile.open(files, "a.log")
    print(f"after a power failure the log holds {', '.join(_orders(log))}: {_ends(log)}")


def _append(log: LogFile, order: str) -> None:
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=order.encode())
    try:
        log.append(builder.build())
        print(f"append {order}: acked; {_ends(log)}")
    except LogOffline as error:
        print(f"append {order}: no ack; {_ends(log)}; {error}")


def _ends(log: LogFile) -> str:
    return f"flushed {log.flushed_offset}, log end {log.log_end_offset}"


def _orders(log: LogFile) -> list[str]:
    found = log.read(0, bytes_max=2**31).read()
    return [(record.value or b"").decode() for batch in batches(found) for record in batch.records()]


if __name__ == "__main__":
    ours() if "--ours" in sys.argv else retry()
