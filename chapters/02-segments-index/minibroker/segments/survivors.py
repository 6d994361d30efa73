"""What stays of a batch when its log is compacted: bytes in, bytes out. A pure module.

A batch that keeps all its records is passed on as it is. One that keeps some is put together anew from the bytes of
those records: base offset and base timestamp stay, so every delta stays right. Offsets never change, and neither does
the last offset of a batch: with it goes the last sequence of its producer.

Two kinds of records are kept for a while only, and the batch says until when (KIP-534): its base timestamp becomes the
delete horizon, and a bit of its attributes says so.

- A tombstone, a record with a key and no value, deletes the key. It stays for `delete.retention.ms` after the first
  cleaning that met it, so that a reader who has seen the old value also sees that it is gone.
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
    """Which batches were aborted: producer id, first offset, and the offset of the abort marker of each transaction."""

    def __init__(self, aborted: Iterable[tuple[int, int, int]]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in sorted(aborted):
            self._by_producer.setdefault(producer_id, []).append((first_offset, last_offset))

    def holds(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to one of them."""
        if not header.is_transactional or header.producer_id not in self._by_producer:
            return False
        ranges = self._by_producer[header.producer_id]
        # A producer has one transaction at a time: only the last one that began before the batch can be its own.
        at = bisect_right(ranges, header.base_offset, key=_first_offset) - 1
        return at >= 0 and header.base_offset <= ranges[at][1]


def _first_offset(offsets: tuple[int, int]) -> int:
    return offsets[0]


class Survivors:
    """Decides what stays of each batch of a log. It is shown all of them, in order, because of the markers."""

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
        self._end_offset = end_offset  # behind it keys are not in the map: whatever stands there stays
        self._now_ms = now_ms
        self._delete_horizon_ms = now_ms + delete_retention_ms
        self._aborted = aborted
        self._keep_producers = keep_producers
        self._open: set[int] = set()  # producers of whose transaction a batch has stayed, and whose marker is to come

    def of(self, batch: Batch, *, must_stay: bool = False) -> Batch | None:
        """What stays of a batch; nothing if no record does, unless it `must_stay` or is its producer's last one.

        Such a batch stays empty: it has its offsets and its producer's last sequence, and no record.
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
        """The records that stay, and whether a tombstone is among them that was cleaned."""
        # A record goes if the map knows a newer one of its key. A tombstone goes if its horizon is past, and is else
        # to be told of. What stands at the end offset or behind it is not in the map, and stays.
        newest, kept, has_tombstone = self._newest.newest, [], False
        last_delta = self._end_offset - header.base_offset
        is_expired = header.has_delete_horizon and self._now_ms >= header.base_timestamp
        for record in scan_records(data, count=header.record_count):
            _start, _end, _timestamp_delta, offset_delta, key, has_value = record
            # A record without a key has no newer one. Compacted topics refuse them; an old one may be there.
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
    """The batch with only these records, byte for byte what they were."""
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
    """The batch without records. Its largest timestamp stays, by which its producer is one day forgotten."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return Batch(encode_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""))
