"""Reading the state of a coordinator from its partition, in slices. A pure module.

A partition of `__consumer_offsets` may hold a million records, which take seconds to read. A node has one event loop,
so `replay` is a generator: it pauses after every few records, so that the driver can serve clients in between.
"""

from collections.abc import Iterator

from minibroker.coordinators.sharding import StateShard
from minibroker.groups.pending import Producer
from minibroker.log.batch import BatchHeader, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.record import Record
from minibroker.segments.segmented import SegmentedLog

_RECORDS_BETWEEN_STOPS = 200


def replay(log: SegmentedLog, shard: StateShard, *, bytes_max: int) -> Iterator[None]:
    """Pass all records of a log to a shard. The caller may pause at every step."""
    for number, found in enumerate(_records(log, bytes_max)):
        if found is not None:
            replay_record(shard, *found)
        if number % _RECORDS_BETWEEN_STOPS == 0:
            yield


def _records(log: SegmentedLog, bytes_max: int) -> Iterator[tuple[BatchHeader, Record] | None]:
    """The records of a log, each with the header of its batch, and None after each batch."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, bytes_max=bytes_max)
        # Compaction may have removed the last batches. Then there is nothing to read before the log end offset.
        if not found.count:
            return
        for batch in batches(found.read()):
            header = batch.header
            batch.check_crc()
            yield from ((header, it) for it in batch.records() if it.offset >= offset)
            # A batch without records must advance the offset, too. Otherwise it would be read again and again.
            offset = max(offset, header.next_offset)
            yield None


def replay_record(shard: StateShard, header: BatchHeader, record: Record) -> None:
    """Pass one record to a shard: a change of its state, perhaps in a transaction, or the end of a transaction."""
    if record.key is None:
        return
    writer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
    if not header.is_control:
        found = shard.decode(record.key, record.value)
        if found is not None:
            shard.replay(found, record.offset, writer)
    elif writer is not None:
        kind = control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            shard.apply_marker(writer, is_commit=kind == ControlType.COMMIT)
