"""Which records of a batch stay when its log is compacted: bytes in, bytes out. A pure module.

A batch that keeps all its records is copied as it is. A batch that keeps some is built again from the bytes of those
records: base offset and base timestamp stay, so every delta stays right. Offsets never change, and neither does the
last offset of a batch, from which the last sequence of its producer is computed.

Two kinds of records are kept only for a while, and the batch says until when (KIP-534): its base timestamp becomes the
delete horizon, which a bit of its attributes marks.

- A tombstone, a record with a key and no value, deletes the key. It stays for `delete.retention.ms` after the first
  cleaning that met it, so that a reader that has seen the old value also sees the deletion.
- The marker of a transaction stays as long as a batch of that transaction does, and `delete.retention.ms` longer.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from minibroker.log.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    RECORDS_AT,
    Batch,
    BatchHeader,
    TimestampType,
    encode_batch,
)
from minibroker.log.compression import decompress
from minibroker.log.control import ControlType, control_type
from minibroker.log.record import Record, Scanned, encode_record, scan_records
from minibroker.segments.keymap import KeyMap

MARKERS = (ControlType.ABORT, ControlType.COMMIT)


class AbortedTransactions:
    """The aborted transactions: each has a producer id, its first offset, and the offset of its abort marker."""

    def __init__(self, aborted: Iterable[tuple[int, int, int]]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in sorted(aborted):
            self._by_producer.setdefault(producer_id, []).append((first_offset, last_offset))

    def holds(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to one of these transactions."""
        if not header.is_transactional or header.producer_id not in self._by_producer:
            return False
        ranges = self._by_producer[header.producer_id]
        # A producer has one transaction at a time, so only the last one that began before the batch can hold it.
        at = bisect_right(ranges, header.base_offset, key=_first_offset) - 1
        return at >= 0 and header.base_offset <= ranges[at][1]


def _first_offset(offsets: tuple[int, int]) -> int:
    return offsets[0]


class Survivors:
    """Decides what stays of each batch of a log. It must see all batches in order, because of the markers."""

    def __init__(
        self,
        newest: KeyMap,
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        aborted: AbortedTransactions,
        keep_producers: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        self._newest = newest
        self._end_offset = end_offset  # keys from here on are not in the map, so their records stay
        self._now_ms = now_ms
        self._delete_horizon_ms = now_ms + delete_retention_ms
        self._aborted = aborted
        self._keep_producers = keep_producers
        self._open: set[int] = set()  # producers with a kept transactional batch whose marker follows later

    def of(self, batch: Batch, *, must_stay: bool = False) -> Batch | None:
        """What stays of a batch; None if no record does.

        A batch that `must_stay`, or is its producer's last one, stays even without records: it keeps its offsets and
        its producer's last sequence.
        """
        header = batch.header
        kept = self._of_control(batch) if header.is_control else self._of_records(batch)
        if kept is None and (must_stay or (header.producer_id, header.last_offset) in self._keep_producers):
            kept = emptied(header)
        if kept is not None and header.is_transactional and not header.is_control:
            self._open.add(header.producer_id)
        return kept

    def _of_records(self, batch: Batch) -> Batch | None:
        header = batch.header
        if self._aborted.holds(header):
            return None
        if header.base_offset >= self._end_offset:
            return batch
        data = decompress(header.compression, batch.view[RECORDS_AT:])
        kept, has_tombstone = self._scan(header, data)
        if not kept:
            return None
        if has_tombstone and not header.has_delete_horizon:
            return with_delete_horizon(batch, self._delete_horizon_ms, {delta for _, _, _, delta, _, _ in kept})
        return batch if len(kept) == header.record_count else reduced(header, data, kept)

    def _scan(self, header: BatchHeader, data: bytes) -> tuple[list[Scanned], bool]:
        """The records that stay, and whether one of them is a tombstone that needs a delete horizon."""
        # A record is removed if the map has a newer one of its key. A tombstone is removed if its delete horizon is
        # past, and is reported otherwise. Records from the end offset on are not in the map, and stay.
        newest, kept, has_tombstone = self._newest.newest, [], False
        last_delta = self._end_offset - header.base_offset
        is_expired = header.has_delete_horizon and self._now_ms >= header.base_timestamp
        for record in scan_records(data, count=header.record_count):
            _start, _end, _timestamp_delta, offset_delta, key, has_value = record
            # A record without a key always stays. Compacted topics refuse such records, but a log may hold some.
            if key is not None and offset_delta < last_delta:
                if newest(key) > header.base_offset + offset_delta:
                    continue
                if not has_value:
                    if is_expired:
                        continue
                    has_tombstone = True
            kept.append(record)
        return kept, has_tombstone

    def _of_control(self, batch: Batch) -> Batch | None:
        header = batch.header
        record = next(iter(batch.records()), None)
        if record is None:
            return None  # emptied by an earlier cleaning
        if control_type(record) not in MARKERS:
            return batch
        if header.producer_id in self._open:
            self._open.discard(header.producer_id)
            return batch
        if not header.has_delete_horizon:
            return with_delete_horizon(batch, self._delete_horizon_ms, {record.offset - header.base_offset})
        return batch if self._now_ms < header.base_timestamp else None


# Batches made from batches --------------------------------------------------------------------------------------------


def reduced(header: BatchHeader, data: bytes, kept: Sequence[Scanned]) -> Batch:
    """The batch with only these records, byte for byte."""
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max([timestamp for _, _, timestamp, _, _, _ in kept])
    records = b"".join([data[start:end] for start, end, _, _, _, _ in kept])
    return Batch(encode_batch(header._replace(max_timestamp=max_timestamp, record_count=len(kept)), records))


def with_delete_horizon(batch: Batch, horizon_ms: int, kept_deltas: Collection[int]) -> Batch:
    """The batch with the records at these offset deltas, counting their timestamps from the delete horizon."""
    header = batch.header
    kept = [record for record in batch.records() if record.offset - header.base_offset in kept_deltas]
    header = header._replace(
        attributes=header.attributes | DELETE_HORIZON_BIT,
        base_timestamp=horizon_ms,
        max_timestamp=max(record.timestamp for record in kept),
        record_count=len(kept),
    )
    return Batch(encode_batch(header, b"".join(_encoded(record, header) for record in kept)))


def _encoded(record: Record, header: BatchHeader) -> bytes:
    return encode_record(
        offset_delta=record.offset - header.base_offset,
        timestamp_delta=record.timestamp - header.base_timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def emptied(header: BatchHeader) -> Batch:
    """The batch without records. Its largest timestamp stays, because the expiry of its producer depends on it."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return Batch(encode_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""))
