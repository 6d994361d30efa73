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
    offset, number = log.log_start_offset, 0
    while offset < log.log_end_offset:
        found = log.read(offset, bytes_max=bytes_max)
        # Compaction may have removed the last batches. Then there is nothing to read before the log end offset.
        if not found.count:
            return
        for batch in batches(found.read()):
            header = batch.header
            batch.check_crc()
            is_plain = not header.is_transactional and not header.is_control
            for record in batch.records():
                if record.offset < offset:
                    continue
                # Most batches belong to no transaction. Their header need not be looked at for each record.
                if is_plain:
                    _replay_change(shard, record)
                else:
                    replay_record(shard, header, record)
                number += 1
                if number % _RECORDS_BETWEEN_STOPS == 0:
                    yield
            # A batch without records must advance the offset, too. Otherwise it would be read again and again.
            offset = max(offset, header.next_offset)
            yield


def replay_record(shard: StateShard, header: BatchHeader, record: Record) -> None:
    """Pass one record to a shard: a change of its state, perhaps in a transaction, or the end of a transaction."""
    writer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
    if not header.is_control:
        _replay_change(shard, record, writer)
    elif writer is not None and record.key is not None:
        kind = control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            shard.apply_marker(writer, is_commit=kind == ControlType.COMMIT)


def _replay_change(shard: StateShard, record: Record, writer: Producer | None = None) -> None:
    if record.key is not None:
        found = shard.decode(record.key, record.value)
        if found is not None:
            shard.replay(found, record.offset, writer)
