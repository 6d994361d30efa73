"""Lines of text as records, and records as lines, for the programs of the chapters.

A pure module: the clock is an argument.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

from minibroker.log.batch import Batch, BatchBuilder
from minibroker.log.compression import Compression


def batches_of_lines(
    lines: Iterable[bytes],
    *,
    count: int,
    clock_ms: Callable[[], int],
    key_separator: bytes | None = None,
    compression: Compression = Compression.NONE,
) -> Iterator[bytearray]:
    """Build one batch for every `count` lines. The text before the separator is the key."""
    rest = iter(lines)
    while some := list(itertools.islice(rest, count)):
        builder = BatchBuilder(compression=compression)
        for line in some:
            key, value = _key_and_value(line.rstrip(b"\n"), key_separator)
            builder.append(timestamp=clock_ms(), key=key, value=value)
        yield builder.build()


def _key_and_value(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None or separator not in line:
        return None, line
    key, _separator, value = line.partition(separator)
    return key, value


def lines_of_batch(batch: Batch, *, offset: int) -> Iterator[bytes]:
    """The records of a batch from `offset` on: offset, key and value with tabs between. Control records are skipped."""
    if batch.header.is_control:
        return
    for record in batch.records():
        if record.offset >= offset:
            yield b"%d\t%s\t%s\n" % (record.offset, record.key or b"", record.value or b"")
