"""DeleteRecords (key 21): moves the start of logs forward (KIP-107). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class DeleteRecordsPartition(Struct):
    """One partition, and the new start of its log."""

    partition_index: int = int32(about="the partition")
    offset: int = int64(about="records before this offset are deleted; -1 means the high watermark")


class DeleteRecordsTopic(Struct):
    """The partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, about="the partitions of the topic")


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Delete the records before given offsets."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, about="the topics")
    timeout_ms: int = int32(about="how long the broker may wait for the followers")


class DeleteRecordsPartitionResult(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    low_watermark: int = int64(about="the lowest log start offset of the in-sync replicas, -1 with an error")
    error_code: int = int16(about="0, or why nothing was deleted")


class DeleteRecordsTopicResult(Struct):
    """The results for the partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[DeleteRecordsPartitionResult] = array(
        DeleteRecordsPartitionResult, about="the partitions of the topic"
    )


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The new start of each log."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, about="one entry for each topic")


declare(DeleteRecordsRequest, DeleteRecordsResponse)
