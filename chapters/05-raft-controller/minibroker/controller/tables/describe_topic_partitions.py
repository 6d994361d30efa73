"""DescribeTopicPartitions (key 75): topics in pages, with their eligible leader replicas (KIP-966). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, struct, uuid

NO_AUTHORIZED_OPERATIONS = -(2**31)


class TopicRequest(Struct):
    """One topic of the request."""

    name: str = string(about="the topic")


class Cursor(Struct):
    """Where a page begins."""

    topic_name: str = string(about="the first topic")
    partition_index: int = int32(about="the first partition on the page")


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible="0+"):
    """Ask for a page of these topics."""

    topics: list[TopicRequest] = array(TopicRequest, about="the topics; none means all")
    response_partition_limit: int = int32(default=2000, about="the most partitions on the page")
    cursor: Cursor | None = struct(
        Cursor, nullable="0+", default=None, about="where the page begins; null for the first page"
    )


class DescribeTopicPartitionsResponsePartition(Struct):
    """One partition."""

    error_code: int = int16(about="0, or an error such as LEADER_NOT_AVAILABLE")
    partition_index: int = int32(about="the partition")
    leader_id: int = int32(about="the leader, -1 if there is none")
    leader_epoch: int = int32(default=-1, ignorable=True, about="the leader's epoch")
    replica_nodes: list[int] = array(int32, about="the brokers with a replica, the preferred leader first")
    isr_nodes: list[int] = array(int32, about="the brokers whose replicas are in sync")
    eligible_leader_replicas: list[int] | None = array(
        int32,
        nullable="0+",
        default=None,
        about="replicas outside the ISR that have every acknowledged record; never null",
    )
    last_known_elr: list[int] | None = array(
        int32, nullable="0+", default=None, about="replicas that were eligible before an unclean stop; never null"
    )
    offline_replicas: list[int] = array(int32, ignorable=True, about="the replicas that are down")


class DescribeTopicPartitionsResponseTopic(Struct):
    """One topic."""

    error_code: int = int16(about="0, or why the topic cannot be described")
    name: str | None = string(nullable="0+", about="the name of the topic")
    topic_id: bytes = uuid(ignorable=True, about="the id of the topic")
    is_internal: bool = boolean(default=False, ignorable=True, about="whether the topic is internal")
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, about="the topic's partitions on this page"
    )
    topic_authorized_operations: int = int32(
        default=NO_AUTHORIZED_OPERATIONS, about="a bit for each operation that the client may do"
    )


class DescribeTopicPartitionsResponse(Response, key=75, versions="0", flexible="0+"):
    """One page."""

    throttle_time_ms: int = int32(
        default=0, ignorable=True, about="how long the broker stops reading from the client, because of a quota"
    )
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, about="the topics on the page"
    )
    next_cursor: Cursor | None = struct(
        Cursor, nullable="0+", default=None, about="where the next page begins; null if this is the last page"
    )


declare(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse)
