"""ListOffsets (key 2): finds the offset of a time, of the log's start or of its end. A pure module.

Version 4 fences old leaders (KIP-320), version 7 finds the newest timestamp (KIP-734). Versions 8 to 11 serve tiered
storage: the start of the local log (KIP-405), the last offset that was uploaded (KIP-1005), a timeout for reading from
remote storage (KIP-1075), and the first offset that was not uploaded yet (KIP-1023).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int8, int16, int32, int64, string

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6


class ListOffsetsPartition(Struct):
    """One partition, and the time to look up."""

    partition_index: int = int32(about="the partition")
    current_leader_epoch: int = int32(
        versions="4+", default=-1, ignorable=True, about="the leader epoch that the client knows; -1 skips the check"
    )
    timestamp: int = int64(
        about="a time in ms; or -1 the end, -2 the start, -3 the newest timestamp, -4 to -6 places of tiered storage"
    )


class ListOffsetsTopic(Struct):
    """The partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, about="the partitions of the topic")


class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    """Ask for the offsets of timestamps."""

    replica_id: int = int32(about="a follower's node id, -1 for a client")
    isolation_level: int = int8(
        versions="2+", default=0, about="0 read_uncommitted; 1 read_committed, where the end is the last stable offset"
    )
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, about="the topics")
    timeout_ms: int = int32(
        versions="10+", default=0, ignorable=True, about="how long reading from remote storage may take"
    )


class ListOffsetsPartitionResponse(Struct):
    """The offset found."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the offset could not be found")
    timestamp: int = int64(
        versions="1+", default=-1, about="the timestamp of the record found; -1 for the start and the end"
    )
    offset: int = int64(versions="1+", default=-1, about="the offset; -1 if no record has this time or a later one")
    leader_epoch: int = int32(versions="4+", default=-1, about="the leader epoch of the record")


class ListOffsetsTopicResponse(Struct):
    """The offsets of one topic."""

    name: str = string(about="the topic")
    partitions: list[ListOffsetsPartitionResponse] = array(
        ListOffsetsPartitionResponse, about="the partitions of the topic"
    )


class ListOffsetsResponse(Response, key=2, versions="1-11", flexible="6+"):
    """The offsets of each topic."""

    throttle_time_ms: int = int32(
        versions="2+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, about="one entry for each topic")


declare(ListOffsetsRequest, ListOffsetsResponse)
