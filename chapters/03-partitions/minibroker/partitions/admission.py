"""The rules that a batch must meet before it is appended, in order. A pure module.

A rule checks one batch. It returns None if the batch may pass, or a `Duplicate` if the batch is in the log already. It
raises `Refused` with Kafka's error code, or `Held` if the verdict depends on something that has not happened yet. The
rules run in order, so a rule may rely on the rules before it. For example, the sequence number is read only after the
checksum was verified.

The rules read the 61 bytes of the header, and follow the lengths of the first records. They open the records only for a
compacted topic, for a topic that limits the age of its records, and with `minibroker.validate.records=true`.

A rule knows the `Origin` of a batch. A client's batch must meet all rules. A coordinator's own batch may be a control
batch, and its sequence number is not checked.

`LocalPartition` gets the function that lists the rules. Chapter 06 has two others. The list of the first lacks
`is_in_no_transaction`, and ends with a rule about transactions. The second is for internal topics, and keeps clients
out of them. The checks of the replica (is it the leader, are enough replicas in sync) come before any rule, through
`ReplicaPort`.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from minibroker.log.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_COUNTS_FROM,
    MAGIC,
    MAGIC_AT,
    RECORDS_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    BatchHeader,
    read_header,
)
from minibroker.log.checks import check_whole
from minibroker.log.compression import Compression, decompressed_bytes_max
from minibroker.log.errors import InvalidRecord, LogError
from minibroker.log.record import RECORD_BYTES_MIN, Record, follow_lengths
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.errors import Refused, refusal
from minibroker.partitions.producers import Duplicate, ProducerStates
from minibroker.wire.codes import ErrorCode


class Origin(Enum):
    """The sender of a batch: a client, or a coordinator on this node."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Claim:
    """The transaction that a Produce request names for its transactional batches."""

    __slots__ = ("guards", "transactional_id", "version")

    def __init__(self, transactional_id: str, version: int) -> None:
        self.transactional_id = transactional_id
        self.version = version
        """The version of the request. From version 12 on, a batch adds its partition to the transaction (KIP-890)."""
        self.guards: dict[object, object] = {}
        """For each partition whose batch was held: its guard, a question to the coordinator (chapter 06)."""


class Incoming(NamedTuple):
    """A batch that is to be appended, with its header."""

    header: BatchHeader
    batch: memoryview
    now_ms: int
    origin: Origin = Origin.CLIENT
    claim: Claim | None = None


_CODEC_MAX = int(max(Compression))
_LENGTHS_MAX = 16  # how many record lengths of a batch are followed
_UNPACKED_BYTES_MAX = 32 * 1024**2  # the largest size to which a rule decompresses a batch

Rule = Callable[[Incoming], Duplicate | None]
Rules = Callable[[TopicConfig, ProducerStates], list[Rule]]


def incoming(
    batch: memoryview | None, now_ms: int, origin: Origin = Origin.CLIENT, claim: Claim | None = None
) -> Incoming:
    """Read the header of the records for one partition, which must be one batch of the current format."""
    if batch is None or len(batch) == 0:
        raise Refused(ErrorCode.INVALID_RECORD, "there is no record batch in the request")
    if len(batch) >= HEADER_SIZE and batch[MAGIC_AT] != MAGIC:
        message = (
            f"the batch has magic {batch[MAGIC_AT]}: only {MAGIC} is accepted, which every client since 2017 can send"
        )
        raise Refused(ErrorCode.INVALID_RECORD, message)
    try:
        header = read_header(batch)
    except LogError as error:
        raise refusal(error) from error
    if header.base_offset != 0:
        message = (
            f"the batch has base offset {header.base_offset}, but a producer must send 0: the broker assigns the offset"
        )
        raise Refused(ErrorCode.INVALID_RECORD, message)
    if header.length + LENGTH_COUNTS_FROM < len(batch):
        message = (
            f"{len(batch)} bytes for one partition, but its first batch has {header.size}: send one batch per partition"
        )
        raise Refused(ErrorCode.INVALID_RECORD, message)
    return tuple.__new__(Incoming, (header, batch, now_ms, origin, claim))  # saves one call for every batch


# The rules, in their order --------------------------------------------------------------------------------------------


def rules_of(config: TopicConfig, producers: ProducerStates) -> list[Rule]:
    """The rules of a topic. The check of the sequence number comes last, because a batch that passes it is appended."""
    rules = [small_enough(config.max_message_bytes), is_whole, is_in_no_transaction, has_client_attributes]
    if not config.is_log_append_time:
        rules.append(
            timely(
                before_max_ms=config.message_timestamp_before_max_ms,
                after_max_ms=config.message_timestamp_after_max_ms,
            )
        )
    if config.log_config.compacts:
        rules.append(has_keys)
    if config.is_validating_records:
        rules.append(has_sound_records)
    return [*rules, is_next(producers)]


def small_enough(bytes_max: int) -> Rule:
    """A batch has at most `max.message.bytes`, its header included."""

    def rule(it: Incoming) -> None:
        if len(it.batch) > bytes_max:
            message = f"the batch has {len(it.batch)} bytes, but max.message.bytes is {bytes_max}"
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, message)

    return rule


def is_whole(it: Incoming) -> None:
    """The checksum is right, the counts in the header agree, and the batch has room for that many records."""
    try:
        check_whole(it.batch)
        _check_room(it)
    except LogError as error:
        raise refusal(error) from error


def _check_room(it: Incoming) -> None:
    """Require that the bytes of a batch have room for as many records as the header says.

    A consumer trusts the header. If it finds fewer records, it waits for the others for ever.
    """
    header, batch = it.header, it.batch
    codec = header.attributes & COMPRESSION_MASK
    if codec == Compression.NONE:
        follow_lengths(batch, RECORDS_AT, count=header.record_count, count_max=_LENGTHS_MAX)
    elif header.record_count * RECORD_BYTES_MIN > decompressed_bytes_max(codec, len(batch) - RECORDS_AT):
        raise InvalidRecord(f"the header says {header.record_count} records, too many for {len(batch)} bytes")


def is_in_no_transaction(it: Incoming) -> None:
    """The batch is not part of a transaction (see chapter 06). A transactional control batch may pass."""
    if it.header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT:
        message = "the batch is part of a transaction, and this broker has no transactions yet"
        raise Refused(ErrorCode.INVALID_TXN_STATE, message)


def has_client_attributes(it: Incoming) -> None:
    """Refuse a batch that sets an attribute that only a broker may set, or that names an unknown codec.

    The records are stored as they were sent, so the broker need not have the codec installed.
    """
    attributes = it.header.attributes
    if attributes & CONTROL_BIT and it.origin is Origin.CLIENT:
        raise Refused(ErrorCode.INVALID_RECORD, "a client may not write control batches")
    if attributes & TIMESTAMP_TYPE_BIT:
        message = "the batch has the timestamp type LogAppendTime, which only a broker may set"
        raise Refused(ErrorCode.INVALID_TIMESTAMP, message)
    if attributes & COMPRESSION_MASK > _CODEC_MAX:
        message = f"codec {it.header.compression} is unknown: 0 to {_CODEC_MAX} are none, gzip, snappy, lz4, zstd"
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message)


def timely(*, before_max_ms: int, after_max_ms: int) -> Rule:
    """Records are at most `message.timestamp.before.max.ms` old, and at most `message.timestamp.after.max.ms` ahead."""

    def rule(it: Incoming) -> None:
        latest = it.now_ms + after_max_ms
        if it.header.max_timestamp > latest:
            message = f"timestamp {it.header.max_timestamp} is more than {after_max_ms} ms ahead of the broker's clock"
            raise Refused(ErrorCode.INVALID_TIMESTAMP, message, records=_late(it, latest))
        earliest = it.now_ms - before_max_ms
        if earliest > 0:
            early = [
                (index, f"timestamp {record.timestamp}")
                for index, record in _records(it)
                if 0 <= record.timestamp < earliest
            ]
            if early:
                message = (
                    f"{len(early)} of {it.header.record_count} records are older than "
                    f"message.timestamp.before.max.ms={before_max_ms}"
                )
                raise Refused(ErrorCode.INVALID_TIMESTAMP, message, records=early)

    return rule


def _late(it: Incoming, latest: int) -> list[tuple[int, str]]:
    return [(index, f"timestamp {record.timestamp}") for index, record in _records(it) if record.timestamp > latest]


def has_keys(it: Incoming) -> None:
    """On a compacted topic every record has a key, because a record without a key could never be replaced."""
    keyless = [(index, "no key") for index, record in _records(it) if record.key is None]
    if keyless:
        message = (
            f"{len(keyless)} of {it.header.record_count} records have no key, but the topic is compacted and keeps the "
            "newest record of each key"
        )
        raise Refused(ErrorCode.INVALID_RECORD, message, records=keyless)


def has_sound_records(it: Incoming) -> None:
    """All records can be read, their offsets have no gaps, and there are as many as the header says."""
    for index, record in _records(it):
        if record.offset != index:
            message = (
                f"record {index} of the batch has offset delta {record.offset}: a producer numbers records without gaps"
            )
            raise Refused(ErrorCode.INVALID_RECORD, message, records=[(index, f"offset delta {record.offset}")])


def is_next(producers: ProducerStates) -> Rule:
    """A client's batch follows its producer's last batch, or is a duplicate of a batch that the partition remembers."""
    check = producers.check

    def rule(it: Incoming) -> Duplicate | None:
        return check(it.header) if it.origin is Origin.CLIENT else None

    return rule


def _records(it: Incoming) -> Iterator[tuple[int, Record]]:
    refused = None
    try:
        yield from enumerate(Batch(it.batch).records(bytes_max=_UNPACKED_BYTES_MAX))
    except LogError as error:
        # Raise the refusal after this block. Inside the block Python would set `error` as its context, and the
        # traceback of `error` would keep the records in memory.
        refused = refusal(error)
    if refused is not None:
        raise refused
