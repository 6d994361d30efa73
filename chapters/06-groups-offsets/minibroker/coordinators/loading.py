"""Reading the state of a coordinator from its partition, in slices. A pure module.

A partition of `__consumer_offsets` may hold a million records, which take seconds to read. A node has one event loop,
so `replay` is a generator: it pauses after every few records, so that the driver can serve clients in between.
"""

from collections.abc import Callable, Iterator

from minibroker.groups.records import GroupRecord, decode
from minibroker.log.batch import batches
from minibroker.log.record import Record
from minibroker.segments.segmented import SegmentedLog

_RECORDS_BETWEEN_STOPS = 200


def replay(log: SegmentedLog, on_record: Callable[[GroupRecord, int], None], *, bytes_max: int) -> Iterator[None]:
    """Pass all records of a log to `on_record`, with their offsets. The caller may pause at every step."""
    for number, record in enumerate(_records(log, bytes_max)):
        if record is not None and record.key is not None:
            found = decode(record.key, record.value)
            if found is not None:
                on_record(found, record.offset)
        if number % _RECORDS_BETWEEN_STOPS == 0:
            yield


def _records(log: SegmentedLog, bytes_max: int) -> Iterator[Record | None]:
    """The records of a log, and None after each batch."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, bytes_max=bytes_max)
        # Compaction may have removed the last batches. Then there is nothing to read before the log end offset.
        if not found.count:
            return
        for batch in batches(found.read()):
            if not batch.header.is_control:
                batch.check_crc()
                yield from (it for it in batch.records() if it.offset >= offset)
            # A batch without records must advance the offset, too. Otherwise it would be read again and again.
            offset = max(offset, batch.header.next_offset)
            yield None
