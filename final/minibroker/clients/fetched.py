"""The batches of one partition from one fetch, decoded into records only on demand. A pure module.

A broker sends whole batches, from the one that contains the requested offset on, so the first records may be before
that offset. It also sends batches that applications must not see: control batches and, with read committed, the batches
of aborted transactions together with a list of these transactions.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from minibroker.clients.errors import CorruptRecords
from minibroker.log.batch import ATTRIBUTES_AT, HEADER_SIZE, LENGTH_COUNTS_FROM, MAGIC, Batch, batches
from minibroker.log.control import ControlType, control_type
from minibroker.log.errors import LogError
from minibroker.log.record import Record
from minibroker.segments.checkpoint import TopicPartition

# The fields of a batch header that `span` needs, read without making an object:
# base offset, length, leader epoch, magic, crc, last offset delta.
_HOP = struct.Struct(">q i i b I 2x i")

EMPTY = memoryview(b"")


class Aborted(NamedTuple):
    """An aborted transaction: the records of this producer from this offset up to its marker are hidden."""

    producer_id: int
    first_offset: int


class Span(NamedTuple):
    """The whole batches at the start of a record set: their size, the offset after them, their last leader epoch."""

    byte_count: int
    next_offset: int
    leader_epoch: int


def span(records: memoryview, *, offset: int, check_crcs: bool) -> Span:
    """Find the whole batches of a record set; a last batch that is cut off does not count."""
    position, next_offset, leader_epoch, size = 0, offset, -1, len(records)
    while size - position >= HEADER_SIZE:
        base_offset, length, epoch, magic, crc, last_offset_delta = _HOP.unpack_from(records, position)
        end = position + LENGTH_COUNTS_FROM + length
        if magic != MAGIC or length < HEADER_SIZE - LENGTH_COUNTS_FROM:
            raise CorruptRecords(
                f"the batch at offset {base_offset} has magic {magic} and length {length}: only magic {MAGIC} is read"
            )
        if end > size:
            break
        if check_crcs and crc32c(records[position + ATTRIBUTES_AT : end]) != crc:
            raise CorruptRecords(
                f"the batch at offset {base_offset} has a wrong checksum: check the disk of its broker"
            )
        position, next_offset, leader_epoch = end, base_offset + last_offset_delta + 1, epoch
    return Span(position, next_offset, leader_epoch)


@dataclass(slots=True, eq=False, repr=False)
class FetchedBatches:
    """Batches of one partition, as the broker stores them. Iteration yields the records from `fetch_offset` on."""

    topic: str
    partition: int
    records: memoryview
    fetch_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[Aborted] = ()

    def __repr__(self) -> str:
        return (
            f"FetchedBatches({self.topic}-{self.partition}, offsets {self.fetch_offset} to {self.next_offset - 1},"
            f" {len(self.records)} bytes)"
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the batches."""
        return TopicPartition(self.topic, self.partition)

    def batches(self) -> Iterator[Batch]:
        """The batches that an application may see, not decoded; the first may begin before `fetch_offset`."""
        waiting = sorted(self.aborted, key=lambda it: it.first_offset, reverse=True)
        ignored: set[int] = set()
        for batch in batches(self.records):
            header = batch.header
            while waiting and waiting[-1].first_offset <= header.last_offset:
                ignored.add(waiting.pop().producer_id)
            if header.is_control:
                if header.producer_id in ignored and _is_abort(batch):
                    ignored.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in ignored):
                yield batch

    def __iter__(self) -> Iterator[Record]:
        try:
            for batch in self.batches():
                if batch.header.base_offset >= self.fetch_offset:
                    yield from batch.records()
                else:
                    yield from (record for record in batch.records() if record.offset >= self.fetch_offset)
        except LogError as error:
            raise CorruptRecords(f"{self.topic}-{self.partition}: {error}") from error


def _is_abort(batch: Batch) -> bool:
    return any(control_type(record) == ControlType.ABORT for record in batch.records())
