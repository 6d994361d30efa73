"""CreatePartitions (key 37): adds partitions to topics; none can be removed (KIP-195). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Struct):
    """The replicas of one new partition."""

    broker_ids: list[int] = array(int32, about="the brokers with a replica, the preferred leader first")


class CreatePartitionsTopic(Struct):
    """One topic that gets more partitions."""

    name: str = string(about="the topic")
    count: int = int32(about="the number of partitions afterwards")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment,
        nullable="0+",
        about="the replicas of the new partitions; if null, the controller chooses them",
    )


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Add partitions to topics."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, about="the topics")
    timeout_ms: int = int32(about="how long the controller may take")
    validate_only: bool = boolean(about="whether to check only, and create nothing")


class CreatePartitionsTopicResult(Struct):
    """The result for one topic."""

    name: str = string(about="the topic")
    error_code: int = int16(about="0, or why no partition was added")
    error_message: str | None = string(nullable="0+", default=None, about="the error message, or null")


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """The result for each topic."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, about="one entry for each topic")


declare(CreatePartitionsRequest, CreatePartitionsResponse)
