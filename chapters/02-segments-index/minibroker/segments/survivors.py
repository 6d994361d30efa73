"""Choose the records of a batch that survive compaction, and build the new batch. A pure module.

A batch that keeps all its records is copied unchanged. A batch that keeps only some is rebuilt from the bytes of those
records. Base offset and base timestamp stay, so every delta stays right. The last offset of a batch stays, too, because
the producer's last sequence number is computed from it.

Two kinds of records are kept only for a time (KIP-534). The end of that time, the delete horizon, is stored as the
batch's base timestamp. A bit of the attributes says so.

- A tombstone, a record with a key and no value, deletes the key. It stays for `delete.retention.ms` after the first
  cleaning that finds it, so that a consumer that has read the old value also reads the tombstone.
- A transaction marker stays for `delete.retention.ms` after the last batch of its transaction is gone.
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
        # A producer has one transaction at a time. So only its last transaction that began before the batch can contain
        # the batch.
        at = bisect_right(ranges, header.base_offset, key=_first_offset) - 1
        return at >= 0 and header.base_offset <= ranges[at][1]


def _first_offset(offsets: tuple[int, int]) -> int:
    return offsets[0]


class Survivors:
    """Decides which records of each batch survive. Pass all batches in order: a marker follows its transaction."""

    def __init__(
        self,
        newest: KeyMap,
        *,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        aborted: AbortedTransactions,
        keep_producers: AbstractSet[tuple[int, int]] = frozenset(),
        keep_markers: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        self._newest = newest
        self._end_offset = end_offset  # records from this offset on are not in the map, so they stay
        self._now_ms = now_ms
        self._delete_horizon_ms = now_ms + delete_retention_ms
        self._aborted = aborted
        self._keep_producers = keep_producers
        self._keep_markers = keep_markers
        self._open: set[int] = set()  # producers with a surviving transactional batch whose marker has not come yet

    def of(self, batch: Batch, *, must_stay: bool = False) -> Batch | None:
        """The batch with its surviving records, or None if no record survives.

        A batch that `must_stay`, or that is its producer's last batch, stays even without records. It keeps its offsets
        and its producer's last sequence number. A marker stays if its producer has no other batch of that epoch.
        """
        header = batch.header
        kept = self._of_control(batch) if header.is_control else self._of_records(batch)
        if kept is None and (must_stay or (header.producer_id, header.last_offset) in self._keep_producers):
            kept = emptied(header)
        elif kept is None and header.is_control and (header.producer_id, header.producer_epoch) in self._keep_markers:
            kept = batch
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
        """The surviving records, and whether one of them is a tombstone."""
        # A record is removed if the map has a newer record of its key. A tombstone is removed if its delete horizon has
        # passed; if it stays, the second result is True. Records from the end offset on are not in the map, and stay.
        newest, kept, has_tombstone = self._newest.newest, [], False
        last_delta = self._end_offset - header.base_offset
        is_expired = header.has_delete_horizon and self._now_ms >= header.base_timestamp
        for record in scan_records(data, count=header.record_count):
            _start, _end, _timestamp_delta, offset_delta, key, has_value = record
            # A record without a key always stays. Compacted topics refuse such records, but an older log may hold some.
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


# Building the new batch --------------------------------------------------------------------------------------------


def reduced(header: BatchHeader, data: bytes, kept: Sequence[Scanned]) -> Batch:
    """The batch with only these records, whose bytes are copied unchanged."""
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max([timestamp for _, _, timestamp, _, _, _ in kept])
    records = b"".join([data[start:end] for start, end, _, _, _, _ in kept])
    return Batch(encode_batch(header._replace(max_timestamp=max_timestamp, record_count=len(kept)), records))


def with_delete_horizon(batch: Batch, horizon_ms: int, kept_deltas: Collection[int]) -> Batch:
    """The batch with only the records at these offset deltas. Its base timestamp becomes the delete horizon."""
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
    """The batch without records. The max timestamp stays, because the expiry of the producer depends on it."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    return Batch(encode_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""))
