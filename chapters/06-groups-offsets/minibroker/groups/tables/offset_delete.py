"""OffsetDelete (key 47): delete committed offsets of topics that no member reads (KIP-496). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string


class OffsetDeleteRequestPartition(Struct):
    """A partition whose offset is deleted."""

    partition_index: int = int32(about="the partition")


class OffsetDeleteRequestTopic(Struct):
    """Partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, about="its partitions")


class OffsetDeleteRequest(Request, key=47, versions="0"):
    """Delete these offsets."""

    group_id: str = string(about="the group")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, about="the topics")


class OffsetDeleteResponsePartition(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(default=0, about="0, or why the offset was not deleted")


class OffsetDeleteResponseTopic(Struct):
    """The results for one topic."""

    name: str = string(about="the topic")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, about="its partitions")


class OffsetDeleteResponse(Response, key=47, versions="0"):
    """The offsets that were deleted."""

    error_code: int = int16(default=0, about="0, or an error of the whole request")
    throttle_time_ms: int = int32(
        default=0, ignorable=True, about="how long the broker stops reading from the client, because of a quota"
    )
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, default=(), about="one for each topic")


declare(OffsetDeleteRequest, OffsetDeleteResponse)
