"""AlterPartitionReassignments (key 45): move partitions to other brokers, or cancel moves (KIP-455). A pure module.

Version 1 can forbid a change of the replication factor.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string


class ReassignablePartition(Struct):
    """One partition to move."""

    partition_index: int = int32(about="the partition")
    replicas: list[int] | None = array(
        int32, nullable="0+", default=None, about="the new replicas; null cancels a move"
    )


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, about="the topic's partitions")


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1", flexible="0+"):
    """Move these partitions."""

    timeout_ms: int = int32(default=60_000, about="how long the broker may take to start the moves")
    allow_replication_factor_change: bool = boolean(
        versions="1+", default=True, about="whether a move may change the replication factor"
    )
    topics: list[ReassignableTopic] = array(ReassignableTopic, about="the topics")


class ReassignablePartitionResponse(Struct):
    """The result for one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the move has not started")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


class ReassignableTopicResponse(Struct):
    """The results for the partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[ReassignablePartitionResponse] = array(
        ReassignablePartitionResponse, about="the topic's partitions"
    )


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1", flexible="0+"):
    """The moves that have started."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    allow_replication_factor_change: bool = boolean(
        versions="1+", default=True, about="whether the request allowed a change of the replication factor"
    )
    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, about="one entry for each topic")


declare(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
