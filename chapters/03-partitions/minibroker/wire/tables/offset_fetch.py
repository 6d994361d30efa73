"""OffsetFetch (key 9): the offsets that a group has committed. A pure module.

From version 2 on, null instead of a list of topics requests every topic that the group has committed. Version 8
requests many groups at once (KIP-709), version 9 names the requesting member, version 10 has topic ids in place of
names (KIP-848).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uuid
from minibroker.wire.uuids import NO_UUID

NO_COMMITTED_OFFSET = -1
NO_LEADER_EPOCH = -1


class OffsetFetchRequestTopic(Struct):
    """One topic whose offsets are requested."""

    name: str = string(versions="1-9", default="", ignorable=True, about="the topic")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic")
    partition_indexes: list[int] = array(int32, about="the partitions of the topic")


class OffsetFetchRequestGroup(Struct):
    """One group whose offsets are requested."""

    group_id: str = string(versions="8+", about="the group")
    member_id: str | None = string(
        versions="9+", nullable="9+", default=None, ignorable=True, about="the member that sends the request, or null"
    )
    member_epoch: int = int32(versions="9+", default=-1, ignorable=True, about="the epoch of that member, or -1")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, versions="8+", nullable="8+", about="the requested topics; null means all"
    )


class OffsetFetchRequest(Request, key=9, versions="1-10", flexible="6+"):
    """Ask for committed offsets. Up to version 7 there is one group, and its fields are in the request itself."""

    group_id: str = string(versions="1-7", default="", about="the group")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic,
        versions="1-7",
        nullable="2-7",
        default=(),
        about="the requested topics; null means all",
    )
    groups: list[OffsetFetchRequestGroup] = array(
        OffsetFetchRequestGroup, versions="8+", default=(), about="the requested groups"
    )
    require_stable: bool = boolean(
        versions="7+",
        default=False,
        about="whether to get a retriable error while a transaction that commits offsets is open",
    )


class OffsetFetchResponsePartition(Struct):
    """The committed offset of one partition."""

    partition_index: int = int32(about="the partition")
    committed_offset: int = int64(about="the offset to read next; -1 if none is committed")
    committed_leader_epoch: int = int32(
        versions="5+", default=NO_LEADER_EPOCH, ignorable=True, about="the leader epoch of the last record read, or -1"
    )
    metadata: str | None = string(nullable="1+", about="a text that was committed with the offset")
    error_code: int = int16(about="0, or why there is no offset")


class OffsetFetchResponseTopic(Struct):
    """The committed offsets of one topic."""

    name: str = string(versions="1-9", default="", ignorable=True, about="the topic")
    topic_id: bytes = uuid(versions="10+", default=NO_UUID, ignorable=True, about="the topic")
    partitions: list[OffsetFetchResponsePartition] = array(
        OffsetFetchResponsePartition, about="the partitions of the topic"
    )


class OffsetFetchResponseGroup(Struct):
    """The committed offsets of one group."""

    group_id: str = string(versions="8+", about="the group")
    topics: list[OffsetFetchResponseTopic] = array(
        OffsetFetchResponseTopic, versions="8+", about="the topics of the group"
    )
    error_code: int = int16(versions="8+", default=0, about="0, or why the group's offsets cannot be read")


class OffsetFetchResponse(Response, key=9, versions="1-10", flexible="6+"):
    """The committed offsets. Up to version 7 there is one group, and its fields are in the response itself."""

    throttle_time_ms: int = int32(
        versions="3+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    topics: list[OffsetFetchResponseTopic] = array(
        OffsetFetchResponseTopic, versions="1-7", default=(), about="the topics of the group"
    )
    error_code: int = int16(
        versions="2-7", default=0, ignorable=True, about="0, or why the group's offsets cannot be read"
    )
    groups: list[OffsetFetchResponseGroup] = array(
        OffsetFetchResponseGroup, versions="8+", default=(), about="one entry for each requested group"
    )


declare(OffsetFetchRequest, OffsetFetchResponse)
