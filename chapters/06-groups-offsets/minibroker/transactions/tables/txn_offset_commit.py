"""TxnOffsetCommit (key 28): stores offsets that count only if a transaction commits. A pure module.

Version 2 adds the leader epoch, version 3 the member of the group (KIP-447), version 4 the error TRANSACTION_ABORTABLE.
With version 5 the broker adds the offsets to the transaction itself (KIP-890).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string
from minibroker.wire.tables.offset_fetch import NO_LEADER_EPOCH


class TxnOffsetCommitRequestPartition(Struct):
    """The offset of one partition."""

    partition_index: int = int32(about="the partition")
    committed_offset: int = int64(about="the offset to read next")
    committed_leader_epoch: int = int32(
        versions="2+", default=NO_LEADER_EPOCH, ignorable=True, about="the leader epoch of the last record read, or -1"
    )
    committed_metadata: str | None = string(nullable="0+", default=None, about="a text to keep with the offset")


class TxnOffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: str = string(about="the topic")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, about="its partitions")


class TxnOffsetCommitRequest(Request, key=28, versions="0-5", flexible="3+"):
    """Store offsets in a transaction."""

    transactional_id: str = string(about="the transactional id")
    group_id: str = string(about="the group")
    producer_id: int = int64(about="the producer id that the transactional id has")
    producer_epoch: int = int16(about="the epoch of the producer id")
    generation_id: int = int32(versions="3+", default=-1, about="the generation or the epoch of the member, or -1")
    member_id: str = string(versions="3+", default="", about="the member, or empty")
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", default=None, about="the id of a static member"
    )
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, about="the topics")


class TxnOffsetCommitResponsePartition(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(default=0, about="0, or why the offset was not stored")


class TxnOffsetCommitResponseTopic(Struct):
    """The results for one topic."""

    name: str = string(about="the topic")
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition, about="its partitions")


class TxnOffsetCommitResponse(Response, key=28, versions="0-5", flexible="3+"):
    """The offsets that were stored."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, about="one for each topic")


declare(TxnOffsetCommitRequest, TxnOffsetCommitResponse)
