"""DescribeProducers (key 61): which producers a partition remembers (KIP-664). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string


class TopicRequest(Struct):
    """One topic of the request."""

    name: str = string(about="the topic")
    partition_indexes: list[int] = array(int32, about="the topic's partitions")


class DescribeProducersRequest(Request, key=61, versions="0", flexible="0+"):
    """Describe the producers of these partitions."""

    topics: list[TopicRequest] = array(TopicRequest, about="the topics")


class ProducerState(Struct):
    """The state of one producer after its last batch."""

    producer_id: int = int64(about="the producer")
    producer_epoch: int = int32(about="the producer epoch; it is an int16 everywhere else")
    last_sequence: int = int32(default=-1, about="the sequence number of the producer's last record")
    last_timestamp: int = int64(default=-1, about="the largest timestamp of the producer's last batch")
    coordinator_epoch: int = int32(about="the coordinator's epoch at the end of the last transaction, -1 for none")
    current_txn_start_offset: int = int64(
        default=-1, about="the first offset of the open transaction, -1 if none is open"
    )


class PartitionResponse(Struct):
    """One partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the partition cannot be described")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    active_producers: list[ProducerState] = array(ProducerState, about="the known producers")


class TopicResponse(Struct):
    """One topic."""

    name: str = string(about="the topic")
    partitions: list[PartitionResponse] = array(PartitionResponse, about="the topic's partitions")


class DescribeProducersResponse(Response, key=61, versions="0", flexible="0+"):
    """The producers that the partitions remember."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    topics: list[TopicResponse] = array(TopicResponse, about="one entry for each topic")


declare(DescribeProducersRequest, DescribeProducersResponse)
