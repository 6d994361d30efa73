"""OffsetCommit (key 8): a group stores how far it has read. A pure module.

Versions 2 to 4 have a retention time. Version 6 adds the leader epoch (KIP-320), version 7 static members (KIP-345),
version 9 members of the new protocol, and version 10 has topic ids in place of names (KIP-848).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string, uuid
from minibroker.wire.tables.offset_fetch import NO_LEADER_EPOCH
from minibroker.wire.uuids import NO_UUID


class OffsetCommitRequestPartition(Struct):
    """The offset of one partition."""

    partition_index: int = int32(about="the partition")
    committed_offset: int = int64(about="the offset to read next")
    committed_leader_epoch: int = int32(
        versions="6+", default=NO_LEADER_EPOCH, ignorable=True, about="the leader epoch of the last record read, or -1"
    )
    committed_metadata: str | None = string(nullable="0+", default=None, about="a text to keep with the offset")


class OffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: str = string(versions="0-9", default="", ignorable=True, about="the topic")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, about="its partitions")


class OffsetCommitRequest(Request, key=8, versions="2-10", flexible="8+"):
    """Store offsets."""

    group_id: str = string(about="the group")
    generation_id_or_member_epoch: int = int32(
        versions="1+",
        default=-1,
        ignorable=True,
        about="the generation of a classic group, or the epoch of a member; -1 if the client assigns partitions itself",
    )
    member_id: str = string(versions="1+", default="", ignorable=True, about="the member, or empty")
    group_instance_id: str | None = string(
        versions="7+", nullable="7+", default=None, about="the id of a static member"
    )
    retention_time_ms: int = int64(
        versions="2-4", default=-1, ignorable=True, about="how long to keep the offsets; -1 if the broker decides"
    )
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, about="the topics")


class OffsetCommitResponsePartition(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(default=0, about="0, or why the offset was not stored")


class OffsetCommitResponseTopic(Struct):
    """The results for one topic."""

    name: str = string(versions="0-9", default="", ignorable=True, about="the topic")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, about="its partitions")


class OffsetCommitResponse(Response, key=8, versions="2-10", flexible="8+"):
    """The offsets that were stored."""

    throttle_time_ms: int = int32(
        versions="3+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, about="one for each topic")


declare(OffsetCommitRequest, OffsetCommitResponse)
