"""ListOffsets (key 2): the offset that belongs to a time, or to one of the log's ends. A pure module.

Version 4 fences old leaders (KIP-320), version 7 finds the newest timestamp (KIP-734).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, int64, string

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4


class ListOffsetsPartition(Struct):
    """One partition asked about."""

    partition_index: int = int32(about="the partition")
    current_leader_epoch: int = int32(
        versions="4+", default=-1, ignorable=True, about="the epoch that the client believes in; -1: do not check"
    )
    timestamp: int = int64(about="a time in ms; or -1 the end, -2 the start, -3 the record with the newest timestamp")


class ListOffsetsTopic(Struct):
    """One topic asked about."""

    name: str = string(about="the topic")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, about="its partitions")


class ListOffsetsRequest(Request, key=2, versions="1-8", flexible="6+"):
    """Which offsets are these?"""

    replica_id: int = int32(about="a follower's node id, -1 for a client")
    isolation_level: int = int8(
        versions="2+", default=0, about="1 read_committed: the end is then the last stable offset"
    )
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, about="what is asked about")


class ListOffsetsPartitionResponse(Struct):
    """The offset found."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why there is no offset")
    timestamp: int = int64(versions="1+", default=-1, about="the time of the record found; -1 if none was asked for")
    offset: int = int64(versions="1+", default=-1, about="its offset; -1 if no record is as late as the time asked for")
    leader_epoch: int = int32(versions="4+", default=-1, about="the epoch in which it was written")


class ListOffsetsTopicResponse(Struct):
    """The offsets found in one topic."""

    name: str = string(about="the topic")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, about="its partitions")


class ListOffsetsResponse(Response, key=2, versions="1-8", flexible="6+"):
    """The offsets found."""

    throttle_time_ms: int = int32(
        versions="2+", default=0, ignorable=True, about="how long the client is not read because of a quota"
    )
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, about="one entry for each topic")


declare(ListOffsetsRequest, ListOffsetsResponse)
