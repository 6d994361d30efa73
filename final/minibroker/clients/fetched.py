"""What came back from one fetch of a partition: the broker's bytes, and records only for those who ask. A pure module.

A broker sends whole batches from the one that holds the offset asked for, so the first records may be older than that.
It also sends what is not meant for applications: control batches and, to those that read committed records, the batches
of transactions that were aborted, with a list of which these are.
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

# What is needed of each batch to know where it ends and which offset follows, without making an object of it:
# base offset, length, leader epoch, magic, crc, last offset delta.
_HOP = struct.Struct(">q i i b I 2x i")

EMPTY = memoryview(b"")


class Aborted(NamedTuple):
    """A transaction that was aborted: records of this producer from this offset on, up to its marker, do not count."""

    producer_id: int
    first_offset: int


class Span(NamedTuple):
    """What the headers of a run of batches say."""

    byte_count: int
    next_offset: int
    leader_epoch: int


def span(records: memoryview, *, offset: int, check_crcs: bool) -> Span:
    """Hop over the whole batches of a record set; one that is cut off at its end does not count."""
    position, next_offset, leader_epoch, size = 0, offset, -1, len(records)
    while size - position >= HEADER_SIZE:
        base_offset, length, epoch, magic, crc, last_offset_delta = _HOP.unpack_from(records, position)
        end = position + LENGTH_COUNTS_FROM + length
        if magic != MAGIC or length < HEADER_SIZE - LENGTH_COUNTS_FROM:
            raise CorruptRecords(
                f"the batch at offset {base_offset} has magic {magic} and length {length}: only format {MAGIC} is read"
            )
        if end > size:
            break
        if check_crcs and crc32c(records[position + ATTRIBUTES_AT : end]) != crc:
            raise CorruptRecords(f"the batch at offset {base_offset} has a wrong checksum: its broker's disk may fail")
        position, next_offset, leader_epoch = end, base_offset + last_offset_delta + 1, epoch
    return Span(position, next_offset, leader_epoch)


@dataclass(slots=True, eq=False, repr=False)
class FetchedBatches:
    """Batches of one partition, as the broker stores them. Iterating gives the records from `fetch_offset` on."""

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
        """Where the batches are from."""
        return TopicPartition(self.topic, self.partition)

    def batches(self) -> Iterator[Batch]:
        """The batches that are meant for an application, not decoded; the first may begin before `fetch_offset`."""
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
