"""CreateTopics (key 19): topics, with their partitions, replicas and configuration. A pure module.

From version 4 on -1 stands for the broker's default number of partitions or replicas (KIP-464); version 5 answers with
the new topic's configuration (KIP-525), version 7 with its id (KIP-516).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, uuid
from minibroker.wire.uuids import NO_UUID


class CreatableReplicaAssignment(Struct):
    """Where one partition shall be."""

    partition_index: int = int32(about="the partition")
    broker_ids: list[int] = array(int32, about="the brokers that shall hold it, the preferred leader first")


class CreatableTopicConfig(Struct):
    """One configuration value for the topic."""

    name: str = string(about="the name, such as retention.ms")
    value: str | None = string(nullable="0+", about="the value")


class CreatableTopic(Struct):
    """One topic to create."""

    name: str = string(about="the topic")
    num_partitions: int = int32(about="how many partitions; -1 for the default, or if they are assigned below")
    replication_factor: int = int16(about="how many replicas each; -1 for the default, or if they are assigned below")
    assignments: list[CreatableReplicaAssignment] = array(
        CreatableReplicaAssignment, about="which broker holds what; empty leaves it to the cluster"
    )
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, about="what shall differ from the defaults")


class CreateTopicsRequest(Request, key=19, versions="2-7", flexible="5+"):
    """Create these topics."""

    topics: list[CreatableTopic] = array(CreatableTopic, about="the topics")
    timeout_ms: int = int32(default=60_000, about="how long the broker may wait until they are there")
    validate_only: bool = boolean(versions="1+", default=False, about="check everything, create nothing")


class CreatableTopicConfigs(Struct):
    """One configuration value of the topic."""

    name: str = string(versions="5+", about="the name")
    value: str | None = string(versions="5+", nullable="5+", about="the value; null if it is a secret")
    read_only: bool = boolean(versions="5+", about="whether it cannot be altered")
    config_source: int = int8(
        versions="5+", default=-1, ignorable=True, about="where the value comes from: 1 the topic, 5 the default, …"
    )
    is_sensitive: bool = boolean(versions="5+", about="whether it is a secret")


class CreatableTopicResult(Struct):
    """What became of one topic."""

    name: str = string(about="the topic")
    topic_id: bytes = uuid(versions="7+", default=NO_UUID, ignorable=True, about="its id")
    error_code: int = int16(about="0, or why it was not created")
    error_message: str | None = string(
        versions="1+", nullable="0+", ignorable=True, about="the error in words, or null"
    )
    topic_config_error_code: int = int16(
        versions="5+", tag=0, default=0, ignorable=True, about="why the configuration is not shown, if it is not"
    )
    num_partitions: int = int32(versions="5+", default=-1, ignorable=True, about="how many partitions it has")
    replication_factor: int = int16(versions="5+", default=-1, ignorable=True, about="how many replicas each has")
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs,
        versions="5+",
        nullable="5+",
        default=(),
        ignorable=True,
        about="its configuration; never send null, the Java admin client fails on it",
    )


class CreateTopicsResponse(Response, key=19, versions="2-7", flexible="5+"):
    """What became of the topics."""

    throttle_time_ms: int = int32(
        versions="2+", default=0, ignorable=True, about="how long the client is not read because of a quota"
    )
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, about="one entry for each topic")


declare(CreateTopicsRequest, CreateTopicsResponse)
