"""CreateTopics (key 19): creates topics with their partitions, replicas and configurations. A pure module.

From version 4 on, -1 means the broker's default number of partitions or replicas (KIP-464). Version 5 adds the new
topic's configuration to the response (KIP-525), version 7 its id (KIP-516).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, uuid
from minibroker.wire.uuids import NO_UUID


class CreatableReplicaAssignment(Struct):
    """The replicas of one partition."""

    partition_index: int = int32(about="the partition")
    broker_ids: list[int] = array(int32, about="the brokers with a replica, the preferred leader first")


class CreatableTopicConfig(Struct):
    """One configuration value for the topic."""

    name: str = string(about="the name, such as retention.ms")
    value: str | None = string(nullable="0+", about="the value")


class CreatableTopic(Struct):
    """One topic to create."""

    name: str = string(about="the topic")
    num_partitions: int = int32(about="how many partitions; -1 for the default, or if they are assigned below")
    replication_factor: int = int16(
        about="how many replicas per partition; -1 for the default, or if they are assigned below"
    )
    assignments: list[CreatableReplicaAssignment] = array(
        CreatableReplicaAssignment, about="the replicas of each partition; if empty, the controller chooses them"
    )
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, about="values that differ from the defaults")


class CreateTopicsRequest(Request, key=19, versions="2-7", flexible="5+"):
    """Create topics."""

    topics: list[CreatableTopic] = array(CreatableTopic, about="the topics")
    timeout_ms: int = int32(default=60_000, about="how long the controller may take")
    validate_only: bool = boolean(versions="1+", default=False, about="whether to check only, and create nothing")


class CreatableTopicConfigs(Struct):
    """One configuration value of the topic."""

    name: str = string(versions="5+", about="the name")
    value: str | None = string(versions="5+", nullable="5+", about="the value; null if it is a secret")
    read_only: bool = boolean(versions="5+", about="whether the value is read-only")
    config_source: int = int8(
        versions="5+", default=-1, ignorable=True, about="where the value comes from: 1 the topic, 5 the default, …"
    )
    is_sensitive: bool = boolean(versions="5+", about="whether the value is a secret")


class CreatableTopicResult(Struct):
    """The result for one topic."""

    name: str = string(about="the topic")
    topic_id: bytes = uuid(versions="7+", default=NO_UUID, ignorable=True, about="the topic's id")
    error_code: int = int16(about="0, or why the topic was not created")
    error_message: str | None = string(versions="1+", nullable="0+", ignorable=True, about="the error message, or null")
    topic_config_error_code: int = int16(
        versions="5+", tag=0, default=0, ignorable=True, about="why the configuration is not included, or 0"
    )
    num_partitions: int = int32(versions="5+", default=-1, ignorable=True, about="how many partitions the topic has")
    replication_factor: int = int16(
        versions="5+", default=-1, ignorable=True, about="how many replicas each partition has"
    )
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs,
        versions="5+",
        nullable="5+",
        default=(),
        ignorable=True,
        about="the topic's configuration; must not be null, because the Java admin client fails on null",
    )


class CreateTopicsResponse(Response, key=19, versions="2-7", flexible="5+"):
    """The result for each topic."""

    throttle_time_ms: int = int32(
        versions="2+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, about="one entry for each topic")


declare(CreateTopicsRequest, CreateTopicsResponse)
