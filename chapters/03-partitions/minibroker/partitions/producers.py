"""The idempotent producers of a partition: a batch that is sent twice is written once. A pure module.

A producer numbers its batches with its id, its epoch, and the sequence of the batch's first record. A partition keeps
the last five batches of each producer, because a producer may have five requests in flight. The rules are Kafka's:

    the batch is one of the last five            Duplicate: answered as before, and not written again
    an older epoch                               INVALID_PRODUCER_EPOCH: a zombie, whose successor has written
    a new epoch, and the sequence is not 0       OUT_OF_ORDER_SEQUENCE_NUMBER
    the sequence does not follow the last one    OUT_OF_ORDER_SEQUENCE_NUMBER: a batch before it is missing
    unknown producer, sequence > 0, unused log   OUT_OF_ORDER_SEQUENCE_NUMBER: its first batch has yet to arrive
    unknown producer, any other log              any sequence: its batches may have been deleted, or it expired

The state is a companion of the log, so it covers every batch in the log. It is saved in snapshots next to the segments,
in Kafka's format. `<offset>.snapshot` is the state before that offset. A snapshot is written at each roll and at a
clean close, and is deleted with the segment that begins at that offset. It has only the last batch of each producer. So
a producer that repeats an older batch after a restart is refused.

A snapshot is never flushed. Its checksum shows whether it is whole. If not, an older snapshot is used, and more of the
log is read. But snapshots of records that were truncated are removed durably before the log is written to again.
"""

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from minibroker.log.batch import (
    CONTROL_BIT,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from minibroker.log.compression import Bytes
from minibroker.log.interfaces import Files, FileSlice, write_all
from minibroker.partitions.errors import Refused
from minibroker.segments.companions import Companion
from minibroker.segments.segment import LOG_SUFFIX, stem
from minibroker.wire.codes import ErrorCode

BATCHES_KEPT = 5  # an idempotent producer has at most five requests in flight
SEQUENCE_MAX = 2**31 - 1
NO_COORDINATOR_EPOCH = -1
EXPIRATION_MS = 24 * 60 * 60 * 1000  # producer.id.expiration.ms
SNAPSHOT_SUFFIX = ".snapshot"
OFFSET_MAX = 2**63 - 1


class Duplicate(NamedTuple):
    """A batch that is in the log already, and its place there."""

    base_offset: int
    last_offset: int
    timestamp: int


class SequencedBatch(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """The sequence of its first record."""
        return (self.last_sequence - self.offset_delta) % (SEQUENCE_MAX + 1)


def last_sequence_of(header: BatchHeader) -> int:
    """The sequence of a batch's last record. After the largest sequence comes 0."""
    return (header.base_sequence + header.last_offset_delta) % (SEQUENCE_MAX + 1)


class ProducerState:
    """The state of one producer."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "epoch", "timestamp")

    def __init__(
        self,
        *,
        epoch: int = NO_PRODUCER_EPOCH,
        timestamp: int = NO_TIMESTAMP,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        current_txn_first_offset: int = NO_OFFSET,
        batches: Iterable[SequencedBatch] = (),
    ) -> None:
        self.epoch = epoch
        self.timestamp = timestamp
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_first_offset = current_txn_first_offset
        self.batches = list(batches)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. It is -1 if there is no record, so that the next sequence is 0."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def duplicate_of(self, header: BatchHeader) -> Duplicate | None:
        """The place of this batch in the log if it was written before, else None."""
        # Only batches of the current epoch are kept. A batch is the same if it ends with the same sequence and has the
        # same number of records. Then return its place in the log and its time (invariant 19).
        if header.producer_epoch == self.epoch:
            last_sequence = last_sequence_of(header)
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
        return None

    def check(self, header: BatchHeader) -> None:
        """Refuse a batch of an older epoch, or one that does not follow the last batch."""
        # A producer with an older epoch is a zombie: INVALID_PRODUCER_EPOCH.
        if header.producer_epoch < self.epoch:
            message = (
                f"producer {header.producer_id} has epoch {self.epoch} now, but the batch has the older epoch "
                f"{header.producer_epoch}"
            )
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
        # Markers, the control batches of chapter 06 (`is_control`), have no sequence.
        if header.is_control:
            return
        # A batch begins where the last one ended, and a new epoch begins with 0; after SEQUENCE_MAX comes 0.
        # Anything else is OUT_OF_ORDER_SEQUENCE_NUMBER.
        last_sequence = self.last_sequence if header.producer_epoch == self.epoch else NO_SEQUENCE
        expected = 0 if last_sequence == SEQUENCE_MAX else last_sequence + 1
        if header.base_sequence != expected:
            message = (
                f"producer {header.producer_id} in epoch {header.producer_epoch} sent sequence {header.base_sequence}, "
                f"but {expected} was expected: a batch before it is missing"
            )
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)

    def update(self, header: BatchHeader) -> None:
        """Update the state with a batch that is in the log. The batch is not checked again."""
        # A new epoch begins without batches.
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches.clear()
        self.timestamp = header.max_timestamp
        # This runs for every append. Testing the bits here saves method calls.
        if header.attributes & CONTROL_BIT:
            # A marker has no sequence; it ends the transaction.
            self.current_txn_first_offset = NO_OFFSET
            return
        if header.attributes & TRANSACTIONAL_BIT and self.current_txn_first_offset == NO_OFFSET:
            self.current_txn_first_offset = header.base_offset
        delta = header.last_offset_delta
        self.batches.append(
            SequencedBatch(last_sequence_of(header), header.base_offset + delta, delta, header.max_timestamp)
        )
        del self.batches[:-BATCHES_KEPT]

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the producer has not written for `expiration_ms`. With an open transaction it does not expire."""
        return self.current_txn_first_offset == NO_OFFSET and now_ms - self.timestamp >= expiration_ms


# Snapshots ------------------------------------------------------------------------------------------------------------

VERSION = 1
_HEADER = struct.Struct(">h I i")  # version, CRC-32C of the bytes after it, number of producers
_CRC_COVERS_FROM = 2 + 4
# Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of a txn.
_ENTRY = struct.Struct(">q h i q i q i q")
_COUNT = struct.Struct(">i")


class DamagedSnapshot(Exception):
    """A file is not a whole snapshot. It is ignored, and the state is rebuilt from the log."""


def encode_snapshot(producers: dict[int, ProducerState]) -> bytes:
    """The bytes of a snapshot, with the last batch of each producer."""
    body = bytearray(_COUNT.pack(len(producers)))
    for producer_id, state in producers.items():
        offset_delta = state.batches[-1].offset_delta if state.batches else 0
        body += _ENTRY.pack(
            producer_id,
            state.epoch,
            state.last_sequence,
            state.last_offset,
            offset_delta,
            state.timestamp,
            state.coordinator_epoch,
            state.current_txn_first_offset,
        )
    return _HEADER.pack(VERSION, crc32c(bytes(body)), len(producers)) + bytes(body[_COUNT.size :])


def decode_snapshot(data: bytes) -> dict[int, ProducerState]:
    """Read a snapshot; refuse one whose version, checksum or size is wrong."""
    if len(data) < _HEADER.size:
        raise DamagedSnapshot(f"the snapshot has {len(data)} bytes, but its header alone needs {_HEADER.size}")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise DamagedSnapshot(f"the snapshot has version {version}, but only {VERSION} is known")
    actual = crc32c(data[_CRC_COVERS_FROM:])
    if actual != crc:
        raise DamagedSnapshot(f"the snapshot's bytes have the CRC {actual:#010x}, but its header has {crc:#010x}")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise DamagedSnapshot(f"the snapshot's header has {count} producers, but {len(data)} bytes hold another number")
    return dict(map(_decoded, _ENTRY.iter_unpack(data[_HEADER.size :])))


def _decoded(entry: tuple[int, ...]) -> tuple[int, ProducerState]:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first_offset = entry
    batches = [SequencedBatch(last_sequence, last_offset, offset_delta, timestamp)] if last_offset >= 0 else []
    return producer_id, ProducerState(
        epoch=epoch,
        timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_first_offset=first_offset,
        batches=batches,
    )


# The companion --------------------------------------------------------------------------------------------------------


class ProducerStates(Companion):
    """All producers of one partition: a companion of its log. The snapshots are in the log's directory."""

    def __init__(self, files: Files, directory: str, *, expiration_ms: int = EXPIRATION_MS) -> None:
        self._files = files
        self._directory = directory
        self._producers: dict[int, ProducerState] = {}
        self._snapshot_offset = NO_OFFSET  # the offset of the newest snapshot
        self._has_had_records = False  # stays true after all records are deleted
        self.expiration_ms = expiration_ms
        self.snapshot_max: Callable[[int], int] = lambda _recovery_point: OFFSET_MAX
        """Returns, for a recovery point, the largest offset of a snapshot that may be loaded. Chapter 06 needs to see
        all batches from that offset on."""

    @property
    def snapshot_offset(self) -> int:
        """The offset of the newest snapshot. After `restore`, the state is the one before this offset."""
        return self._snapshot_offset

    @property
    def producers(self) -> dict[int, ProducerState]:
        """The state of each producer, by its id. Callers must not change it."""
        return self._producers

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Return None if a batch may be appended, or a `Duplicate` if it is in the log. Raise `Refused` otherwise."""
        if header.producer_id <= NO_PRODUCER_ID:
            return None
        if (header.base_sequence < 0 and not header.is_control) or header.producer_epoch < 0:
            message = f"epoch {header.producer_epoch}, sequence {header.base_sequence} of producer {header.producer_id}"
            raise Refused(ErrorCode.INVALID_RECORD, f"{message}: neither can be negative")
        state = self._producers.get(header.producer_id)
        if state is None:
            if header.base_sequence > 0:
                self.check_first(header)
            return None
        duplicate = state.duplicate_of(header)
        if duplicate is None:
            state.check(header)
        return duplicate

    def check_first(self, header: BatchHeader) -> None:
        """Refuse a later batch of an unknown producer if its first one cannot have been written here."""
        # A producer is unknown if its records were deleted or it has expired. Then it may continue with any sequence.
        # Neither can be the case in a log that never had a record. There, the producer's first batch was refused and
        # will be sent again. If this batch were accepted, the first batch would be lost (KAFKA-15591).
        if not self._has_had_records:
            message = (
                f"producer {header.producer_id} in epoch {header.producer_epoch} begins with sequence "
                f"{header.base_sequence} in a partition that never had a record: its first batch, with "
                "sequence 0, is missing"
            )
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message)

    def expire(self, now_ms: int) -> int:
        """Forget the producers that have not written for `producer.id.expiration.ms`; return how many."""
        expired = [it for it, state in self._producers.items() if state.is_expired(now_ms, self.expiration_ms)]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def last_offsets(self) -> frozenset[tuple[int, int]]:
        """Each producer with the offset of its last record, for compaction's `keep_producers`."""
        return frozenset((producer_id, state.last_offset) for producer_id, state in self._producers.items())

    def last_markers(self) -> frozenset[tuple[int, int]]:
        """Each producer that has no batch of its current epoch, with that epoch, for compaction's `keep_markers`."""
        return frozenset((producer_id, it.epoch) for producer_id, it in self._producers.items() if not it.batches)

    def set_coordinator_epoch(self, producer_id: int, epoch: int) -> None:
        """Note the epoch of the coordinator that has written a producer's last marker (chapter 06)."""
        self._producers[producer_id].coordinator_epoch = epoch

    # Events of the log ------------------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader, batch: Bytes | FileSlice, position: int = 0) -> None:  # noqa: ARG002
        """Update the state with a batch that was appended, or that is read at the start."""
        self._has_had_records = True
        if header.producer_id > NO_PRODUCER_ID:
            state = self._producers.get(header.producer_id)
            if state is None:
                state = self._producers[header.producer_id] = ProducerState()
            state.update(header)

    on_append = replay

    def on_roll(self, base_offset: int) -> None:
        """A segment begins. Write a snapshot for it, and remove the snapshots of deleted segments."""
        self._write(base_offset)
        self._sweep(base_offset)

    def on_close(self, offset: int) -> None:
        """The log is closed. Write a snapshot at its end, so that the next start need not read any batch."""
        self._write(offset)

    def on_delete(self, offset: int) -> None:
        """The log start offset has moved. Remove the snapshots before it, because batches that follow them are gone."""
        self._remove(it for it in self._snapshots() if it < offset)

    def on_truncate(self, offset: int) -> None:
        """The log was truncated. Remove snapshots of the truncated records before other records take their offsets."""
        self._remove_durably(it for it in self._snapshots() if it > offset or offset == 0)

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:
        """Load the newest undamaged snapshot of the log. Return its offset, from which batches must be replayed."""
        self._has_had_records = log_end_offset > 0
        snapshots = self._snapshots()
        self._remove_durably(it for it in snapshots if it > log_end_offset)
        self._remove(it for it in snapshots if it < log_start_offset)
        newest = min(log_end_offset, self.snapshot_max(recovery_point))
        for offset in reversed(snapshots):
            if log_start_offset <= offset <= newest:
                try:
                    self._producers = decode_snapshot(self._read(offset))
                except DamagedSnapshot:
                    self._remove([offset])
                else:
                    self._snapshot_offset = offset
                    return offset
        # Without a snapshot, the state is built from the first batch of the log on.
        self._producers = {}
        self._snapshot_offset = log_start_offset
        return log_start_offset

    # Files ------------------------------------------------------------------------------------------------------------

    def _path(self, offset: int) -> str:
        return stem(self._directory, offset) + SNAPSHOT_SUFFIX

    def _snapshots(self) -> list[int]:
        """The offsets of all snapshots, in order."""
        return _offsets(self._files.list(self._directory), SNAPSHOT_SUFFIX)

    def _read(self, offset: int) -> bytes:
        file = self._files.open(self._path(offset), create=False, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _write(self, offset: int) -> None:
        """Write a snapshot unless it exists. If that fails, the next start is only slower."""
        if offset == self._snapshot_offset:
            return
        try:
            file = self._files.open(self._path(offset))
            try:
                file.truncate(0)
                write_all(file, encode_snapshot(self._producers), 0)
            finally:
                file.close()
            self._snapshot_offset = offset
        except OSError:
            self._remove([offset])

    def _sweep(self, base_offset: int) -> None:
        # Compaction replaces segments, and retention deletes them. A snapshot without its segment is removed.
        names = self._files.list(self._directory)
        bases = {*_offsets(names, LOG_SUFFIX), base_offset}
        self._remove(it for it in _offsets(names, SNAPSHOT_SUFFIX) if it not in bases)

    def _remove_durably(self, offsets: Iterable[int]) -> None:
        doomed = list(offsets)
        for offset in doomed:
            with suppress(FileNotFoundError):
                self._files.unlink(self._path(offset))
        if doomed:
            self._files.fsync_directory(self._directory)

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            with suppress(OSError):
                self._files.unlink(self._path(offset))


def _offsets(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets in the names with this suffix, in order."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(it) for it in stems if len(it) == 20 and it.isdigit())
