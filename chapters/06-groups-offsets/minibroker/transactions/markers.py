"""Markers: the control batches that end transactions. A pure module.

A marker has the producer id and epoch of its transaction in its header. Its record says whether the transaction
commits, and in which epoch the coordinator has decided that. The leader of a partition refuses a marker of an older
producer epoch, and a marker of a coordinator that was replaced by another one.
"""

from typing import NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.log.control import ControlType, build_marker
from minibroker.partitions.admission import Origin
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, LocalPartition
from minibroker.partitions.producers import ProducerState
from minibroker.wire.codes import ErrorCode

TRANSACTION_VERSION_2 = 2


class Marker(NamedTuple):
    """The outcome of one transaction."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0
    """With version 2 each transaction raises the producer's epoch, and the marker has the new epoch."""


def marker_batch(marker: Marker, *, timestamp_ms: int) -> bytearray:
    """The control batch of a marker."""
    return build_marker(
        ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=timestamp_ms,
    )


def append_marker(partition: LocalPartition, marker: Marker, *, now_ms: int) -> Appended:
    """Check a marker against the producer's state, and append it. A marker that is sent again is appended again."""
    partition.check_leader()
    state = partition.producers.producers.get(marker.producer_id)
    if state is not None:
        check_marker(marker, state)
    batch = marker_batch(marker, timestamp_ms=now_ms)
    return partition.append(memoryview(batch), acks=ACKS_ALL, now_ms=now_ms, origin=Origin.COORDINATOR)


def check_marker(marker: Marker, state: ProducerState) -> None:
    """Refuse a marker of an older producer epoch or of an older coordinator."""
    # With transaction version 2, a marker has a new epoch. If it has the known epoch and no transaction is open, it is
    # sent again, because its answer was lost. If it were refused, the coordinator would send it for ever.
    is_retry = marker.producer_epoch == state.epoch and state.current_txn_first_offset == NO_OFFSET
    is_new = marker.producer_epoch > state.epoch
    if not (is_new or is_retry or (marker.producer_epoch == state.epoch and not _raises_epoch(marker))):
        message = f"producer {marker.producer_id} has epoch {state.epoch}, but the marker has {marker.producer_epoch}"
        raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if marker.coordinator_epoch < state.coordinator_epoch:
        message = (
            f"producer {marker.producer_id} has a marker of coordinator epoch {state.coordinator_epoch}, but this is "
            f"one of the older epoch {marker.coordinator_epoch}"
        )
        raise Refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)


def _raises_epoch(marker: Marker) -> bool:
    return marker.transaction_version >= TRANSACTION_VERSION_2
