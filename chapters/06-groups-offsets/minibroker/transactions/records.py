"""The records of `__transaction_state`: the state of each transactional id, as Kafka defines them. A pure module.

    key   = type:int16 transactional id      type 0; never flexible
    value = version:int16 fields             a null value is a tombstone: the id has expired

A record of an unknown type is skipped, because a newer program may have written it.
"""

from collections.abc import Iterable
from itertools import groupby
from struct import Struct as Layout
from struct import error as struct_error
from typing import NamedTuple

from minibroker.groups.records import CorruptRecord
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.ids import NO_EPOCH, NO_PRODUCER_ID, Transaction
from minibroker.transactions.transitions import TransactionState
from minibroker.wire.errors import WireError
from minibroker.wire.schema import Message, Struct, array, decode_whole, int8, int16, int32, int64, string

ID_BYTES_MAX = 2**15 - 1  # a key has the id as a string with a length of two bytes

_NUMBER = Layout(">h")
_TYPE = 0
_VERSION = 1  # the version that is written; version 0 has no tagged fields
_DEAD = 6


class TransactionRecord(NamedTuple):
    """One change of the state of a transactional id. If `value` is None, the record is a tombstone."""

    transactional_id: str
    value: Transaction | None


class TransactionLogKey(Message, key=0, versions="0"):
    """The key of a record."""

    transactional_id: str = string(about="the transactional id")


class PartitionsSchema(Struct):
    """Partitions of one topic."""

    topic: str = string(about="the topic")
    partition_ids: list[int] = array(int32, about="its partitions")


class TransactionLogValue(Message, key=0, versions="0-1", flexible="1+"):
    """The value of a record."""

    producer_id: int = int64(about="the producer id")
    previous_producer_id: int = int64(
        versions="1+", tag=0, default=NO_PRODUCER_ID, ignorable=True, about="the producer id before, or -1"
    )
    next_producer_id: int = int64(
        versions="1+", tag=1, default=NO_PRODUCER_ID, ignorable=True, about="the producer id after the end, or -1"
    )
    producer_epoch: int = int16(about="the epoch of the producer id")
    transaction_timeout_ms: int = int32(about="after how long an open transaction is aborted")
    transaction_status: int = int8(about="the state of the transaction")
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, nullable="0+", about="the partitions of the transaction; null if it is empty"
    )
    transaction_last_update_timestamp_ms: int = int64(about="when the state changed")
    transaction_start_timestamp_ms: int = int64(about="when the transaction began, or -1")
    client_transaction_version: int = int16(
        versions="1+", tag=2, default=0, ignorable=True, about="the transaction version of the client"
    )
    next_producer_epoch: int = int16(
        versions="1+", tag=3, default=NO_EPOCH, ignorable=True, about="the epoch after a two-phase commit; not used"
    )


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record, as bytes for the log."""
    key = _NUMBER.pack(_TYPE) + TransactionLogKey(transactional_id=record.transactional_id).encode(0)
    return key, None if record.value is None else encode_value(record.value)


def encode_value(state: Transaction, version: int = _VERSION) -> bytes:
    """The version and the fields of a state."""
    is_empty = state.state is TransactionState.EMPTY
    value = TransactionLogValue(
        producer_id=state.producer_id,
        previous_producer_id=state.previous_producer_id,
        next_producer_id=state.next_producer_id,
        producer_epoch=state.producer_epoch,
        transaction_timeout_ms=state.timeout_ms,
        transaction_status=state.state,
        transaction_partitions=None if is_empty else _by_topic(state.partitions),
        transaction_last_update_timestamp_ms=state.updated_ms,
        transaction_start_timestamp_ms=state.started_ms,
        client_transaction_version=state.client_version,
    )
    return _NUMBER.pack(version) + value.encode(version)


def by_topic(names: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """The partitions of each topic, in order, so that equal states have equal bytes."""
    return [(topic, [it.partition for it in found]) for topic, found in groupby(sorted(names), lambda it: it.topic)]


def _by_topic(names: Iterable[TopicPartition]) -> list[PartitionsSchema]:
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic(names)]


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record. None means that its type is unknown; damaged bytes raise CorruptRecord."""
    try:
        (number,) = _NUMBER.unpack_from(key)
        if number != _TYPE:
            return None
        found = decode_whole(TransactionLogKey, memoryview(key), _NUMBER.size, 0)
        return TransactionRecord(found.transactional_id, None if value is None else _decode_value(value))
    except (WireError, struct_error, ValueError) as error:
        message = f"record of __transaction_state with the key {key[:64].hex(' ')} cannot be decoded: {error}"
        raise CorruptRecord(message) from error


def _decode_value(value: bytes) -> Transaction | None:
    (version,) = _NUMBER.unpack_from(value)
    found = decode_whole(TransactionLogValue, memoryview(value), _NUMBER.size, version)
    if found.transaction_status == _DEAD:
        return None
    return Transaction(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        timeout_ms=found.transaction_timeout_ms,
        state=TransactionState(found.transaction_status),
        updated_ms=found.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(it.topic, index) for it in found.transaction_partitions or () for index in it.partition_ids
        ),
        started_ms=found.transaction_start_timestamp_ms,
        client_version=found.client_transaction_version,
        previous_producer_id=found.previous_producer_id,
        next_producer_id=found.next_producer_id,
    )
