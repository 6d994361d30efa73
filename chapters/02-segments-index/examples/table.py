"""A table that is nothing but a log: event sourcing on a compacted topic.

Run it with `python chapters/02-segments-index/examples/table.py`. A shop writes every change of its stock as a record:
the article is the key, the number of pieces the value, and an article that is no longer sold is a tombstone. The table
is rebuilt by reading the records from first to last. Compaction removes the changes that were replaced by newer ones,
and the table stays the same; so a new instance of the shop reads a small log instead of a long history.
"""

import random
import sys
import tempfile

from minibroker.log.batch import BatchBuilder, batches
from minibroker.log.disk import OSFiles
from minibroker.segments.compaction import clean
from minibroker.segments.config import COMPACT, LogConfig
from minibroker.segments.segmented import SegmentedLog

ARTICLES = 500
CHANGES = 20_000
BATCH = 50
HOUR_MS = 3_600_000
CONFIG = LogConfig(segment_bytes=64 * 1024, cleanup_policy=frozenset({COMPACT}), delete_retention_ms=HOUR_MS)

Table = dict[bytes, bytes]


def change(log: SegmentedLog, table: Table, changes: list[tuple[bytes, bytes | None]], now_ms: int) -> None:
    """Write changes to the log as one batch, and then to the table in memory."""
    builder = BatchBuilder()
    for article, pieces in changes:
        builder.append(timestamp=now_ms, key=article, value=pieces)
    log.append(builder.build())
    apply(table, changes)


def apply(table: Table, changes: list[tuple[bytes, bytes | None]]) -> None:
    """Apply changes to a table: a value replaces the one before, and None removes the key."""
    for article, pieces in changes:
        if pieces is None:
            table.pop(article, None)
        else:
            table[article] = pieces


def rebuild(log: SegmentedLog) -> tuple[Table, int]:
    """Read the log from first to last into a new table. Return the table and the number of records that were read."""
    table: Table = {}
    count, offset = 0, log.log_start_offset
    while offset < log.log_end_offset:
        for batch in batches(log.read(offset, bytes_max=1024 * 1024).read()):
            records = list(batch.records())
            apply(table, [(record.key, record.value) for record in records if record.key is not None])
            count += len(records)
            offset = batch.header.next_offset
    return table, count


def trade(log: SegmentedLog, table: Table, chance: random.Random) -> int:
    """A long day in the shop; return the time at its end."""
    now_ms = 1_700_000_000_000
    for _ in range(CHANGES // BATCH):
        articles = [b"article-%03d" % chance.randrange(ARTICLES) for _ in range(BATCH)]
        change(log, table, [(a, b"%d pieces" % chance.randrange(99)) for a in articles], now_ms)
        now_ms += 1000
    change(log, table, [(b"article-%03d" % n, None) for n in range(0, ARTICLES, 5)], now_ms)
    return now_ms


def report(what: str, log: SegmentedLog, expected: Table) -> bool:
    """Rebuild the table and say what it took."""
    table, count = rebuild(log)
    verdict = "equals the one in memory" if table == expected else "DIFFERS from the one in memory"
    print(f"{what}: {count} records, {log.size} bytes, {len(log.segments)} segments")
    print(f"  the table read from it has {len(table)} articles and {verdict}")
    return table == expected


def main() -> int:
    """Trade, compact, compact again when the tombstones are due; the table must never change."""
    with tempfile.TemporaryDirectory() as directory:
        log = SegmentedLog.open(OSFiles(), directory, CONFIG)
        table: Table = {}
        now_ms = trade(log, table, random.Random(0))
        log.roll()
        are_equal = [report("every change", log, table)]
        cleaned = clean(log, first_dirty_offset=0, now_ms=now_ms)
        are_equal.append(report("compacted", log, table))
        clean(log, first_dirty_offset=cleaned.first_dirty_offset, now_ms=now_ms + HOUR_MS)
        are_equal.append(report("an hour later, without the tombstones", log, table))
        log.close()
    return 0 if all(are_equal) else 1


if __name__ == "__main__":
    sys.exit(main())
