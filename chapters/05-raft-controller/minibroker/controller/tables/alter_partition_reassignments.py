"""AlterPartitionReassignments (key 45): move partitions to other brokers, or take moves back (KIP-455). A pure module.

Version 1 can forbid that a move changes how many replicas there are.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string


class ReassignablePartition(Struct):
    """One partition to move."""

    partition_index: int = int32(about="the partition")
    replicas: list[int] | None = array(
        int32, nullable="0+", default=None, about="the brokers that are to have it; null takes a move back"
    )


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string(about="the topic")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, about="its partitions")


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1", flexible="0+"):
    """Move these partitions."""

    timeout_ms: int = int32(default=60_000, about="how long the broker may take to begin the moves")
    allow_replication_factor_change: bool = boolean(
        versions="1+", default=True, about="whether a move may change how many replicas there are"
    )
    topics: list[ReassignableTopic] = array(ReassignableTopic, about="the topics")


class ReassignablePartitionResponse(Struct):
    """What became of one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why the move has not begun")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


class ReassignableTopicResponse(Struct):
    """What became of one topic's partitions."""

    name: str = string(about="the topic")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, about="its partitions")


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1", flexible="0+"):
    """Which moves have begun."""

    throttle_time_ms: int = int32(default=0, about="how long the client is not read because of a quota")
    allow_replication_factor_change: bool = boolean(
        versions="1+", default=True, about="whether a move could change how many replicas there are"
    )
    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, about="one entry for each topic")


declare(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
