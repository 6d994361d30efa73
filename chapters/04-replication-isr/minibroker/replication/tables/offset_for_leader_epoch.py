"""OffsetForLeaderEpoch (key 23): where a leader epoch ends in the leader's log (KIP-101). A pure module.

A consumer sends it to learn whether the log was truncated since its last fetch (KIP-320). Followers sent it, too,
before Fetch told them where the logs diverge (KIP-595). Version 3 names the replica that asks.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class OffsetForLeaderPartition(Struct):
    """One partition of the request."""

    partition: int = int32(about="the partition")
    current_leader_epoch: int = int32(
        versions="2+", default=-1, ignorable=True, about="the leader epoch that the sender knows; -1: do not check"
    )
    leader_epoch: int = int32(about="the epoch whose end offset is requested")


class OffsetForLeaderTopic(Struct):
    """One topic of the request."""

    topic: str = string(about="the topic")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, about="the topic's partitions")


class OffsetForLeaderEpochRequest(Request, key=23, versions="2-4", flexible="4+"):
    """Ask where these epochs end."""

    replica_id: int = int32(
        versions="3+",
        default=-2,
        ignorable=True,
        about="the follower's node id; -1 for a consumer; -2 for a consumer that may read beyond the high watermark",
    )
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, about="the topics")


class EpochEndOffset(Struct):
    """Where an epoch ends in one partition."""

    error_code: int = int16(about="0, or why the end is not known")
    partition: int = int32(about="the partition")
    leader_epoch: int = int32(
        versions="1+", default=-1, ignorable=True, about="the largest epoch in the log up to the requested one"
    )
    end_offset: int = int64(default=-1, about="the offset after that epoch's last record; -1 if there is no such epoch")


class OffsetForLeaderTopicResult(Struct):
    """The end offsets for one topic."""

    topic: str = string(about="the topic")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, about="the topic's partitions")


class OffsetForLeaderEpochResponse(Response, key=23, versions="2-4", flexible="4+"):
    """Where the epochs end."""

    throttle_time_ms: int = int32(
        versions="2+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, about="one entry for each topic")


declare(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse)
