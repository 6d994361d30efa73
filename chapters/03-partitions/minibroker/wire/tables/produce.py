"""Produce (key 0): a producer sends record batches to the leaders of their partitions. A pure module.

Version 7 allows zstd (KIP-110), version 8 names invalid records (KIP-467), version 10 names the current leader
(KIP-951), version 12 adds partitions to the transaction without a separate request (KIP-890).
"""

from minibroker.wire import schema
from minibroker.wire.apis import declare
from minibroker.wire.schema import (
    DEFAULTS,
    Records,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    struct,
)


class PartitionProduceData(Struct):
    """The batch for one partition."""

    index: int = int32(about="the partition")
    records: Records | None = schema.records(nullable="0+", about="one record batch, in the format of the log")


class TopicProduceData(Struct):
    """The batches for one topic."""

    name: str = string(about="the topic")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, about="one entry for each partition")


class ProduceRequest(Request, key=0, versions="3-12", flexible="9+"):
    """Append batches."""

    transactional_id: str | None = string(
        versions="3+", nullable="3+", default=None, about="the producer's name if it is transactional"
    )
    acks: int = int16(
        about="which replicas must have the batch before the response: 0 none, no response; 1 leader; -1 ISR"
    )
    timeout_ms: int = int32(about="how long the leader may wait for the ISR")
    topic_data: list[TopicProduceData] = array(TopicProduceData, about="one entry for each topic")


class BatchIndexAndErrorMessage(Struct):
    """One invalid record, which caused the whole batch to be refused."""

    batch_index: int = int32(versions="8+", about="the record's index in the batch")
    batch_index_error_message: str | None = string(
        versions="8+", nullable="8+", default=None, about="why the record is invalid"
    )


class LeaderIdAndEpoch(Struct):
    """The current leader of the partition."""

    leader_id: int = int32(versions="10+", default=-1, about="the leader's node id, -1 if it is not known")
    leader_epoch: int = int32(versions="10+", default=-1, about="the leader's epoch")


class PartitionProduceResponse(Struct):
    """The result for one partition."""

    index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the batch was refused")
    base_offset: int = int64(about="the offset of the first record")
    log_append_time_ms: int = int64(
        versions="2+", default=-1, ignorable=True, about="the broker's clock if the topic uses LogAppendTime, else -1"
    )
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True, about="the first offset still in the log")
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, versions="8+", default=(), ignorable=True, about="the invalid records"
    )
    error_message: str | None = string(
        versions="8+", nullable="8+", default=None, ignorable=True, about="the error message"
    )
    current_leader: LeaderIdAndEpoch = struct(
        LeaderIdAndEpoch,
        versions="10+",
        tag=0,
        default=DEFAULTS,
        about="the current leader, with NOT_LEADER_OR_FOLLOWER",
    )


class TopicProduceResponse(Struct):
    """The results for one topic."""

    name: str = string(about="the topic")
    partition_responses: list[PartitionProduceResponse] = array(
        PartitionProduceResponse, about="one entry for each partition of the request"
    )


class NodeEndpoint(Struct):
    """The address of a leader that is named in the response."""

    node_id: int = int32(versions="10+", about="the node")
    host: str = string(versions="10+", about="the node's host name or address")
    port: int = int32(versions="10+", about="the node's port")
    rack: str | None = string(versions="10+", nullable="10+", default=None, about="the node's rack, if it has one")


class ProduceResponse(Response, key=0, versions="3-12", flexible="9+"):
    """The results. No response is sent if acks is 0."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, about="one entry for each topic of the request")
    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="10+", tag=0, default=(), about="the addresses of the current leaders"
    )


declare(ProduceRequest, ProduceResponse)
