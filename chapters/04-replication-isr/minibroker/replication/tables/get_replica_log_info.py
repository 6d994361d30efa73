"""GetReplicaLogInfo (key 93): where a broker's logs end, for an unclean election (KIP-966). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, uuid


class TopicPartitions(Struct):
    """One topic of the request."""

    topic_id: bytes = uuid(ignorable=True, about="the topic")
    partitions: list[int] = array(int32, about="the topic's partitions")


class GetReplicaLogInfoRequest(Request, key=93, versions="0", flexible="0+"):
    """The controller asks a broker where its logs of these partitions end."""

    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+", about="the partitions")


class PartitionLogInfo(Struct):
    """The log of one partition."""

    partition: int = int32(about="the partition")
    last_written_leader_epoch: int = int32(about="the leader epoch of the last record")
    current_leader_epoch: int = int32(about="the leader epoch that the broker knows")
    log_end_offset: int = int64(about="the offset after the last record")
    error_code: int = int16(about="0, or why the log cannot be described")


class TopicPartitionLogInfo(Struct):
    """The logs of one topic."""

    topic_id: bytes = uuid(about="the topic")
    partition_log_info: list[PartitionLogInfo] = array(PartitionLogInfo, about="one entry for each partition")


class GetReplicaLogInfoResponse(Response, key=93, versions="0", flexible="0+"):
    """Where the logs end."""

    throttle_time_ms: int = int32(default=0, about="how long the broker stops reading, because of a quota")
    broker_epoch: int = int64(about="the broker's epoch")
    truncated: bool = boolean(about="whether only the first 1000 partitions were answered")
    topic_partition_log_info_list: list[TopicPartitionLogInfo] = array(
        TopicPartitionLogInfo, about="one entry for each topic"
    )


declare(GetReplicaLogInfoRequest, GetReplicaLogInfoResponse)
