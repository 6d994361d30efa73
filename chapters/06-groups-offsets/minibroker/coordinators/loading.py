"""Reading the state of a coordinator from its partition, in slices. A pure module.

A partition of `__consumer_offsets` may hold a million records, which take seconds to read. A node has one event loop,
so `replay` is a generator: it stops again and again, and the driver serves other clients before it goes on.
"""

from collections.abc import Callable, Iterator

from minibroker.groups.records import GroupRecord, decode
from minibroker.log.batch import Batch, batches
from minibroker.segments.segmented import SegmentedLog

_RECORDS_BETWEEN_STOPS = 200


def replay(log: SegmentedLog, on_record: Callable[[GroupRecord, int], None], *, bytes_max: int) -> Iterator[None]:
    """Pass all records of a log to `on_record`, with their offsets. The caller may pause at every step."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, bytes_max=bytes_max)
        # Compaction may have emptied the last batches, or removed them: then there is nothing up to the log's end.
        if not found.count:
            return
        for batch in batches(found.read()):
            if not batch.header.is_control:
                yield from _replay_batch(batch, offset, on_record)
            # A batch without records moves the offset, too. Otherwise it would be read for ever.
            offset = max(offset, batch.header.next_offset)
        yield


def _replay_batch(batch: Batch, from_offset: int, on_record: Callable[[GroupRecord, int], None]) -> Iterator[None]:
    batch.check_crc()
    for number, record in enumerate(batch.records(), start=1):
        if record.offset >= from_offset:
            found = None if record.key is None else decode(record.key, record.value)
            if found is not None:
                on_record(found, record.offset)
        if number % _RECORDS_BETWEEN_STOPS == 0:
            yield
