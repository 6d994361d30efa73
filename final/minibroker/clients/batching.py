"""A batch that a producer sends, and the promise for each of its records (`Delivery`). A pure module.

Records are encoded when they are added. The header is written when the batch is first sent, because its sequence
number is not known before. If the batch gets another number later, the producer's fields and the checksum are
overwritten in place.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from minibroker.client.errors import ClientError
from minibroker.log.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    MAGIC,
    MAX_TIMESTAMP_AT,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    encode_batch,
)
from minibroker.log.record import Header, encode_record

PRODUCER_AT = MAX_TIMESTAMP_AT + 8
_PRODUCER = struct.Struct(">q h i")  # producer id, producer epoch, base sequence
_CRC = struct.Struct(">I")

RECORD_BYTES_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5  # longest varints of length, attributes, timestamp, offset, three counts
Callback = Callable[["Delivery"], None]


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """The producer id and epoch by which a broker knows a producer; the epoch rises when sequences restart at 0."""

    producer_id: int
    producer_epoch: int


ANONYMOUS = Identity(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records for one partition that are sent, acknowledged and refused together."""

    topic: str
    partition: int
    order: int
    ready_ms: float
    deadline_ms: float
    place: int = -1  # its index among the numbered batches of its partition
    records: bytearray = field(default_factory=bytearray)
    size: int = HEADER_SIZE
    base_timestamp: int = -1
    max_timestamp: int = -1
    is_closed: bool = False
    is_done: bool = False
    identity: Identity = ANONYMOUS
    sequence: int = NO_SEQUENCE
    encoded: bytearray | None = None
    attempts: int = 0
    was_lost: bool = False
    not_before_ms: float = 0.0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    error: ClientError | None = None
    cause: ClientError | None = None  # the error of the last failed attempt
    callbacks: "list[tuple[Callback, Delivery]]" = field(default_factory=list)
    _next_delta: int = 0

    @property
    def record_count(self) -> int:
        """The number of records in the batch."""
        return self._next_delta

    def append(
        self, *, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> "Delivery":
        """Add one record."""
        assert not self.is_closed, "a closed batch takes no more records"
        if self._next_delta == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        record = encode_record(
            offset_delta=self._next_delta,
            timestamp_delta=timestamp - self.base_timestamp,
            key=key,
            value=value,
            headers=headers,
        )
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.records += record
        self.size += len(record)
        self._next_delta += 1
        return Delivery(self, self._next_delta - 1)

    def number(self, identity: Identity, sequence: int) -> None:
        """Set or replace the producer and the sequence number of the batch."""
        self.identity = Identity(producer_id=identity.producer_id, producer_epoch=identity.producer_epoch)
        self.sequence = sequence
        if self.encoded is None:
            return
        _PRODUCER.pack_into(self.encoded, PRODUCER_AT, identity.producer_id, identity.producer_epoch, sequence)
        _CRC.pack_into(self.encoded, CRC_AT, crc32c(memoryview(self.encoded)[ATTRIBUTES_AT:]))

    def encode(self, attributes: int) -> bytearray:
        """The bytes to send; they are compressed once, even if the batch is sent several times."""
        if self.encoded is None:
            self.encoded = encode_batch(self._header(attributes), self.records)
            self.records = bytearray()
        return self.encoded

    def _header(self, attributes: int) -> BatchHeader:
        return BatchHeader(
            0,
            0,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            attributes,
            self._next_delta - 1,
            self.base_timestamp,
            self.max_timestamp,
            self.identity.producer_id,
            self.identity.producer_epoch,
            self.sequence,
            self._next_delta,
        )

    def finish(
        self, *, base_offset: int = NO_OFFSET, log_append_time_ms: int = -1, error: ClientError | None = None
    ) -> None:
        """Set the outcome of all records of this batch, which never changes afterwards."""
        assert not self.is_done, "the outcome of a batch is set only once"
        self.is_done = True
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error


class Delivery:
    """The promise for one record; it is done when the record is acknowledged or has failed."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def topic(self) -> str:
        """The topic that the record goes to."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """The partition that the record goes to."""
        return self._batch.partition

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known; then `error` is None, or says why the record was not written."""
        return self._batch.is_done

    @property
    def error(self) -> ClientError | None:
        """Why the record was not written, or None."""
        return self._batch.error

    @property
    def offset(self) -> int:
        """The offset of the acknowledged record; -1 if the broker sent none, as with acks=0."""
        base_offset = self._batch.base_offset
        return base_offset + self._index if base_offset >= 0 else NO_OFFSET

    @property
    def log_append_time_ms(self) -> int:
        """The broker's time of the append, if the topic uses log append time; otherwise -1."""
        return self._batch.log_append_time_ms

    def on_done(self, callback: Callback) -> None:
        """Call a function with this delivery when it is done."""
        self._batch.callbacks.append((callback, self))
