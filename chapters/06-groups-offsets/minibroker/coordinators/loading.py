"""Reading the state of a coordinator from its partition, in slices. A pure module.

A partition of `__consumer_offsets` may hold a million records, which take seconds to read. A node has one event loop,
so `replay` is a generator: it pauses after every few records, so that the driver can serve clients in between.
"""

from collections.abc import Iterator

from minibroker.coordinators.sharding import StateShard
from minibroker.groups.pending import Producer
from minibroker.log.batch import Batch, batches
from minibroker.log.control import ControlType, control_type
from minibroker.segments.segmented import SegmentedLog

_RECORDS_BETWEEN_STOPS = 200


def replay(log: SegmentedLog, shard: StateShard, *, bytes_max: int) -> Iterator[None]:
    """Pass all records and markers of a log to a shard. The caller may pause at every step."""
    number = 0
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, bytes_max=bytes_max)
        # Compaction may have removed the last batches. Then there is nothing to read before the log end offset.
        if not found.count:
            return
        for batch in batches(found.read()):
            batch.check_crc()
            for _record in _replay_batch(batch, shard, offset):
                if number % _RECORDS_BETWEEN_STOPS == 0:
                    yield
                number += 1
            # A batch without records must advance the offset, too. Otherwise it would be read again and again.
            offset = max(offset, batch.header.next_offset)
            yield


def _replay_batch(batch: Batch, shard: StateShard, from_offset: int) -> Iterator[None]:
    header = batch.header
    writer = Producer(header.producer_id, header.producer_epoch)
    producer = writer if header.is_transactional else None
    for record in batch.records():
        if record.offset < from_offset or record.key is None:
            continue
        if header.is_control:
            kind = control_type(record)
            if kind in (ControlType.ABORT, ControlType.COMMIT):
                shard.apply_marker(writer, is_commit=kind == ControlType.COMMIT)
        else:
            found = shard.decode(record.key, record.value)
            if found is not None:
                shard.replay(found, record.offset, producer)
        yield
