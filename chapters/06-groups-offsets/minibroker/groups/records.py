"""The records of `__consumer_offsets`: a key and a value for each kind, as Kafka defines them. A pure module.

The topic is compacted, so the log keeps the last value of each key. A null value is a tombstone: the state that the key
names is deleted. A new coordinator of a partition replays its records in order.

    key   = type:int16 fields       the fields of the type's key; never flexible
    value = version:int16 fields    the fields of the type's value in this version

A record of an unknown type is skipped, because a newer program may have written it.
"""

from functools import lru_cache
from struct import Struct as Layout
from struct import error as struct_error
from typing import NamedTuple

from minibroker.log.errors import ExpectedError
from minibroker.wire.errors import MalformedMessage, WireError
from minibroker.wire.schema import (
    DEFAULTS,
    Message,
    Struct,
    array,
    bytes_,
    decode_whole,
    int8,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from minibroker.wire.uuids import NO_UUID

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class CorruptRecord(ExpectedError):
    """Bytes in `__consumer_offsets` that are not a key and a value of a known type."""


class GroupKey(Message):
    """The key of a record. The number of its schema is the record's type and also the key's version, as in Kafka."""

    group_id: str


class GroupValue(Message):
    """The value of a record."""


class GroupRecord(NamedTuple):
    """One change of the state of a group. If `value` is None, the record is a tombstone."""

    key: GroupKey
    value: GroupValue | None


# Offsets --------------------------------------------------------------------------------------------------------------


class OffsetCommitKey(GroupKey, key=1, versions="0-1"):
    """A partition whose offset a group commits. Type 0 is an older form of type 1 with the same meaning."""

    group_id: str = string(about="the group")
    topic: str = string(about="the topic")
    partition: int = int32(about="the partition")


class OffsetCommitValue(GroupValue, key=1, versions="0-4", flexible="4+"):
    """A committed offset. It is written in version 1 if it has an expire timestamp, otherwise in version 4."""

    offset: int = int64(about="the offset to read next")
    leader_epoch: int = int32(
        versions="3+", default=NO_LEADER_EPOCH, ignorable=True, about="the leader epoch of the last record read, or -1"
    )
    metadata: str = string(default="", about="a text that was committed with the offset")
    commit_timestamp: int = int64(about="when it was committed")
    expire_timestamp: int = int64(
        versions="1", default=NO_TIMESTAMP, ignorable=True, about="when it expires; -1 if the broker decides"
    )
    topic_id: bytes = uuid(versions="4+", tag=0, default=NO_UUID, ignorable=True, about="the topic's id, or zero")


# Classic groups -------------------------------------------------------------------------------------------------------


class GroupMetadataKey(GroupKey, key=2, versions="2"):
    """The name of a classic group."""

    group_id: str = string(about="the group")


class MemberMetadata(Struct):
    """A member of a classic group."""

    member_id: str = string(about="the member")
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", default=None, ignorable=True, about="the id of a static member"
    )
    client_id: str = string(about="its client id")
    client_host: str = string(about="its address")
    rebalance_timeout: int = int32(versions="1+", default=-1, ignorable=True, about="its rebalance timeout in ms")
    session_timeout: int = int32(about="its session timeout in ms")
    subscription: bytes = bytes_(about="its metadata for the group's protocol")
    assignment: bytes = bytes_(about="the assignment bytes that the leader has sent for it")


class GroupMetadataValue(GroupValue, key=2, versions="0-4", flexible="4+"):
    """A classic group with the members of its generation. The record is written in version 3."""

    protocol_type: str = string(about="the kind of group; empty if it has never had a member")
    generation: int = int32(about="the generation")
    protocol: str | None = string(nullable="0+", about="the protocol of this generation")
    leader: str | None = string(nullable="0+", about="the member that computes the assignment")
    current_state_timestamp: int = int64(
        versions="2+", default=NO_TIMESTAMP, ignorable=True, about="when the group entered its state, or -1"
    )
    members: list[MemberMetadata] = array(MemberMetadata, about="the members")


# Groups of the new protocol (KIP-848) ---------------------------------------------------------------------------------


class ConsumerGroupMetadataKey(GroupKey, key=3, versions="3"):
    """A group."""

    group_id: str = string(about="the group")


class ConsumerGroupMetadataValue(GroupValue, key=3, versions="0", flexible="0+"):
    """The epoch of a group."""

    epoch: int = int32(about="grows when a member or a subscribed topic changes")
    metadata_hash: int = int64(tag=0, default=0, about="a hash of the subscribed topics and their partitions")


class ConsumerGroupPartitionMetadataKey(GroupKey, key=4, versions="4"):
    """The subscribed topics of a group. Kafka wrote this record up to 4.0. It is never written here."""

    group_id: str = string(about="the group")


class PartitionRacks(Struct):
    """The racks of one partition."""

    partition: int = int32(about="the partition")
    racks: list[str] = array(string, about="its racks")


class SubscribedTopicMetadata(Struct):
    """A subscribed topic."""

    topic_id: bytes = uuid(about="its id")
    topic_name: str = string(about="its name")
    num_partitions: int = int32(about="how many partitions it has")
    partition_metadata: list[PartitionRacks] = array(PartitionRacks, about="its racks")


class ConsumerGroupPartitionMetadataValue(GroupValue, key=4, versions="0", flexible="0+"):
    """The subscribed topics of a group."""

    topics: list[SubscribedTopicMetadata] = array(SubscribedTopicMetadata, about="the topics")


class ConsumerGroupMemberMetadataKey(GroupKey, key=5, versions="5"):
    """A member of a group."""

    group_id: str = string(about="the group")
    member_id: str = string(about="the member")


class ClassicProtocol(Struct):
    """A protocol that a member of the classic protocol supports."""

    name: str = string(about="the protocol, such as range")
    metadata: bytes = bytes_(about="the member's subscription")


class ClassicMemberMetadata(Struct):
    """The additional data about a member that still uses the classic protocol."""

    session_timeout_ms: int = int32(default=0, about="its session timeout")
    supported_protocols: list[ClassicProtocol] = array(
        ClassicProtocol, default=(), about="the protocols that it supports"
    )


class ConsumerGroupMemberMetadataValue(GroupValue, key=5, versions="0", flexible="0+"):
    """A member and its subscription."""

    instance_id: str | None = string(nullable="0+", default=None, about="the id of a static member")
    rack_id: str | None = string(nullable="0+", default=None, about="its rack")
    client_id: str = string(about="its client id")
    client_host: str = string(about="its address")
    subscribed_topic_names: list[str] = array(string, about="the topics that it reads")
    subscribed_topic_regex: str | None = string(
        nullable="0+", default="", about="a regular expression for topics that it reads"
    )
    rebalance_timeout_ms: int = int32(default=-1, about="how long it may take to give up partitions")
    server_assignor: str | None = string(nullable="0+", default=None, about="the assignor that it asks for")
    # A tagged field with its default value is not written. Kafka writes the null for a member of the new protocol, so
    # the default must not be null.
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata,
        nullable="0+",
        tag=0,
        default=DEFAULTS,
        about="set if the member uses the classic protocol",
    )


class ConsumerGroupTargetAssignmentMetadataKey(GroupKey, key=6, versions="6"):
    """The target assignment of a group."""

    group_id: str = string(about="the group")


class ConsumerGroupTargetAssignmentMetadataValue(GroupValue, key=6, versions="0", flexible="0+"):
    """The epoch of a target assignment."""

    assignment_epoch: int = int32(about="the group epoch for which the target was computed")
    assignment_timestamp: int = int64(tag=0, default=NO_TIMESTAMP, about="when it was computed, or -1")


class ConsumerGroupTargetAssignmentMemberKey(GroupKey, key=7, versions="7"):
    """The target assignment of a member."""

    group_id: str = string(about="the group")
    member_id: str = string(about="the member")


class TargetTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")


class ConsumerGroupTargetAssignmentMemberValue(GroupValue, key=7, versions="0", flexible="0+"):
    """The partitions in a member's target assignment."""

    topic_partitions: list[TargetTopicPartitions] = array(TargetTopicPartitions, about="the partitions")


class ConsumerGroupCurrentMemberAssignmentKey(GroupKey, key=8, versions="8"):
    """The current assignment of a member."""

    group_id: str = string(about="the group")
    member_id: str = string(about="the member")


class CurrentTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid(about="the topic")
    partitions: list[int] = array(int32, about="its partitions")
    assignment_epochs: list[int] = array(
        int32, tag=0, default=(), about="the member epoch at which each partition was assigned (KIP-1251)"
    )


class ConsumerGroupCurrentMemberAssignmentValue(GroupValue, key=8, versions="0", flexible="0+"):
    """The epoch of a member, and the partitions that it has."""

    member_epoch: int = int32(about="its epoch")
    previous_member_epoch: int = int32(about="its previous epoch, which it sends again if an answer was lost")
    state: int = int8(about="0 stable, 1 it must give up partitions, 2 it waits for partitions of other members")
    assigned_partitions: list[CurrentTopicPartitions] = array(
        CurrentTopicPartitions, about="the partitions that it has"
    )
    partitions_pending_revocation: list[CurrentTopicPartitions] = array(
        CurrentTopicPartitions, about="the partitions that it must give up"
    )


class ConsumerGroupRegularExpressionKey(GroupKey, key=16, versions="16"):
    """A regular expression to which members have subscribed."""

    group_id: str = string(about="the group")
    regular_expression: str = string(about="the regular expression")


class ConsumerGroupRegularExpressionValue(GroupValue, key=16, versions="0", flexible="0+"):
    """The topics whose names match a regular expression."""

    topics: list[str] = array(string, about="the topics")
    version: int = int64(about="the offset of the metadata image that was searched")
    timestamp: int = int64(about="when the search was done")


# Bytes ----------------------------------------------------------------------------------------------------------------

_NUMBER = Layout(">h")  # the type of a key, the version of a value

_TYPES: dict[int, tuple[type[GroupKey], type[GroupValue]]] = {
    0: (OffsetCommitKey, OffsetCommitValue),
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record, as bytes for the log."""
    key, value = record
    if type(value) is OffsetCommitValue:
        assert type(key) is OffsetCommitKey
        found = _encode_offset_commit(key, value)
        if found is not None:
            return found
    return encode_key(key), None if value is None else encode_value(value)


def encode_key(key: GroupKey) -> bytes:
    """The type and the fields of a key."""
    number = key.schema.key
    assert number is not None
    return _NUMBER.pack(number) + key.encode(number)


def encode_value(value: GroupValue) -> bytes:
    """The version and the fields of a value. The version is the one that Kafka writes."""
    version = _version_to_write(value)
    return _NUMBER.pack(version) + value.encode(version)


def _version_to_write(value: GroupValue) -> int:
    if isinstance(value, OffsetCommitValue):
        # Only version 1 has the expire timestamp. It has no leader epoch, so the epoch is lost, as in Kafka.
        return 4 if value.expire_timestamp == NO_TIMESTAMP else 1
    return 3 if isinstance(value, GroupMetadataValue) else 0


def decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    """Decode a record. None means that its type is unknown; damaged bytes raise CorruptRecord."""
    if value is not None and key[:2] == _OFFSET_COMMIT:
        record = _decode_offset_commit(key, value)
        if record is not None:
            return record
    return decode_by_tables(key, value)


def decode_by_tables(key: bytes, value: bytes | None) -> GroupRecord | None:
    """Like `decode`, but without the faster decoder for committed offsets."""
    try:
        (number,) = _NUMBER.unpack_from(key)
        if number not in _TYPES:
            return None
        key_class, value_class = _TYPES[number]
        found = decode_whole(key_class, memoryview(key), _NUMBER.size, number)
        return GroupRecord(found, None if value is None else _decode_value(value_class, value))
    except (WireError, struct_error) as error:
        message = f"record of __consumer_offsets with the key {key[:64].hex(' ')} cannot be decoded: {error}"
        raise CorruptRecord(message) from error


def _decode_value(value_class: type[GroupValue], value: bytes) -> GroupValue:
    (version,) = _NUMBER.unpack_from(value)
    return decode_whole(value_class, memoryview(value), _NUMBER.size, version)


# A faster decoder of committed offsets --------------------------------------------------------------------------------

_OFFSET_COMMIT = _NUMBER.pack(1)
_OFFSET_HEAD = Layout(">hqiB")  # version, offset, leader epoch, length of the metadata + 1
_OFFSET_TAIL = Layout(">qB")  # commit timestamp, count of tagged fields
_PARTITION = Layout(">i")
_TAG = b"\x00\x10"  # the topic id: tag 0, 16 bytes


def _encode_offset_commit(key: OffsetCommitKey, value: OffsetCommitValue) -> tuple[bytes, bytes] | None:
    """Encode a committed offset of version 4 with short metadata. None means that the tables must encode it.

    Most records of a coordinator are commits, and the tables take seven times as long.
    """
    if value.expire_timestamp != NO_TIMESTAMP:
        return None
    try:
        metadata = value.metadata.encode()
        if len(metadata) > 0x7E:
            return None
        place = _key_without_partition(key.group_id, key.topic) + _PARTITION.pack(key.partition)
        head = _OFFSET_HEAD.pack(4, value.offset, value.leader_epoch, len(metadata) + 1) + metadata
        if value.topic_id == NO_UUID:
            return place, head + _OFFSET_TAIL.pack(value.commit_timestamp, 0)
        return place, head + _OFFSET_TAIL.pack(value.commit_timestamp, 1) + _TAG + value.topic_id
    except (struct_error, UnicodeEncodeError):
        return None


@lru_cache(maxsize=4096)
def _key_without_partition(group_id: str, topic: str) -> bytes:
    """The part of a key that all commits of a group for a topic share."""
    group, name = group_id.encode(), topic.encode()
    return _OFFSET_COMMIT + _NUMBER.pack(len(group)) + group + _NUMBER.pack(len(name)) + name


def _decode_offset_commit(key: bytes, value: bytes) -> GroupRecord | None:
    """Decode a committed offset of version 4 with short metadata. None means that `decode_by_tables` must decode it.

    A partition can hold a million of these records, and a new coordinator must replay all of them before it answers.
    """
    try:
        version, offset, leader_epoch, size = _OFFSET_HEAD.unpack_from(value)
        end = _OFFSET_HEAD.size + size - 1
        commit_timestamp, tags = _OFFSET_TAIL.unpack_from(value, end)
        metadata = value[_OFFSET_HEAD.size : end].decode()
        end += _OFFSET_TAIL.size
        if version != 4 or not 0 < size < 0x80 or tags > 1 or len(value) != end + 18 * tags:
            return None
        if tags and value[end : end + 2] != _TAG:
            return None
        place = _decode_offset_commit_key(key)
    except (struct_error, UnicodeDecodeError, WireError):
        return None
    # Setting the fields is faster than calling the constructor with keyword arguments.
    found = object.__new__(OffsetCommitValue)
    found.offset = offset
    found.leader_epoch = leader_epoch
    found.metadata = metadata
    found.commit_timestamp = commit_timestamp
    found.expire_timestamp = NO_TIMESTAMP
    found.topic_id = value[end + 2 :] if tags else NO_UUID
    return GroupRecord(place, found)


def _decode_offset_commit_key(key: bytes) -> OffsetCommitKey:
    place = object.__new__(OffsetCommitKey)
    place.group_id, place.topic = _group_and_topic(key[: -_PARTITION.size])
    (place.partition,) = _PARTITION.unpack_from(key, len(key) - _PARTITION.size)
    return place


@lru_cache(maxsize=4096)
def _group_and_topic(key: bytes) -> tuple[str, str]:
    """The group id and the topic name in a key without its last field, the partition.

    The results are cached, so that all records of a group and topic share the two strings.
    """
    (group_size,) = _NUMBER.unpack_from(key, 2)
    end = 4 + group_size
    (topic_size,) = _NUMBER.unpack_from(key, end)
    if group_size < 0 or topic_size != len(key) - end - 2:
        raise MalformedMessage(f"a key of {len(key)} bytes cannot have names of {group_size} and {topic_size} bytes")
    return key[4:end].decode(), key[end + 2 :].decode()
