"""CreatePartitions (key 37): makes a topic wider; it can never be made narrower (KIP-195). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Struct):
    """Where one new partition shall be."""

    broker_ids: list[int] = array(int32, about="the brokers that shall hold it, the preferred leader first")


class CreatePartitionsTopic(Struct):
    """One topic to widen."""

    name: str = string(about="the topic")
    count: int = int32(about="how many partitions it shall have in all")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+", about="where the new ones shall be; null leaves it to the cluster"
    )


class CreatePartitionsRequest(Request, key=37, versions="0-3", flexible="2+"):
    """Give these topics more partitions."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, about="the topics")
    timeout_ms: int = int32(about="how long the broker may wait until they are there")
    validate_only: bool = boolean(about="check everything, create nothing")


class CreatePartitionsTopicResult(Struct):
    """What became of one topic."""

    name: str = string(about="the topic")
    error_code: int = int16(about="0, or why it is as it was")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


class CreatePartitionsResponse(Response, key=37, versions="0-3", flexible="2+"):
    """What became of the topics."""

    throttle_time_ms: int = int32(default=0, about="how long the client is not read because of a quota")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, about="one entry for each topic")


declare(CreatePartitionsRequest, CreatePartitionsResponse)
