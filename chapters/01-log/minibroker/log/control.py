"""Control records, which a broker itself writes into a log. A pure module.

Consumers skip the records of a control batch. Chapter 06 writes such records to end a transaction. They take offsets
like any other record, so a consumer sees gaps between offsets.
"""

import enum
import struct

from minibroker.log.batch import BatchBuilder
from minibroker.log.errors import InvalidRecord
from minibroker.log.record import Record

_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0


class ControlType(enum.IntEnum):
    """The types that Kafka has assigned."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def build_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
) -> bytearray:
    """Build the batch that ends a producer's transaction: ABORT or COMMIT."""
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )
    builder.append(
        timestamp=timestamp,
        key=_KEY.pack(_VERSION, control_type),
        value=_MARKER_VALUE.pack(_VERSION, coordinator_epoch),
    )
    return builder.build()


def control_type(record: Record) -> int:
    """Read the type of a control record. Readers ignore types that they do not know."""
    if record.key is None or len(record.key) < _KEY.size:
        raise InvalidRecord(f"control record at offset {record.offset} has a key of fewer than {_KEY.size} bytes")
    _version, number = _KEY.unpack_from(record.key)
    return int(number)


def coordinator_epoch(record: Record) -> int:
    """Read the coordinator's epoch from an ABORT or COMMIT marker."""
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise InvalidRecord(f"marker at offset {record.offset} has a value of fewer than {_MARKER_VALUE.size} bytes")
    _version, epoch = _MARKER_VALUE.unpack_from(record.value)
    return int(epoch)
