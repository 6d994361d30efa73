"""ListPartitionReassignments (key 46): the moves that are under way (KIP-455). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string


class ListedTopic(Struct):
    """A topic and its partitions in the request."""

    name: str = string(about="the topic")
    partition_indexes: list[int] = array(int32, about="the topic's partitions")


class ListPartitionReassignmentsRequest(Request, key=46, versions="0", flexible="0+"):
    """Ask for the moves that are under way."""

    timeout_ms: int = int32(default=60_000, about="how long the broker may take to answer")
    topics: list[ListedTopic] | None = array(
        ListedTopic, nullable="0+", default=None, about="the topics to list; null means all topics"
    )


class OngoingPartitionReassignment(Struct):
    """A partition that is being moved."""

    partition_index: int = int32(about="the partition")
    replicas: list[int] = array(int32, about="the current replicas")
    adding_replicas: list[int] = array(int32, about="the brokers that are being added")
    removing_replicas: list[int] = array(int32, about="the brokers that are being removed")


class OngoingTopicReassignment(Struct):
    """A topic with partitions that are being moved."""

    name: str = string(about="the topic")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, about="the topic's partitions")


class ListPartitionReassignmentsResponse(Response, key=46, versions="0", flexible="0+"):
    """The moves that are under way."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, default=(), about="one for each topic")


declare(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse)
