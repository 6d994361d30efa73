"""CreateTopics, DeleteTopics, CreatePartitions: turn requests into commands, and results into responses. A pure module.

The rules are in `minibroker.metadata`. This module handles the differences between versions of a request. The ids of
new topics are random, so the function that generates them is an argument.
"""

from collections.abc import Callable, Mapping, Sequence

from minibroker.metadata.authority import Authority
from minibroker.metadata.configs import NodeConfig
from minibroker.metadata.described import describe_topic
from minibroker.metadata.placement import Placing, place
from minibroker.metadata.topic_commands import (
    CreatedTopic,
    CreatePartitions,
    CreateTopics,
    DeletedTopic,
    DeleteTopics,
    GrownTopic,
    MorePartitions,
    NewTopic,
    TopicReference,
)
from minibroker.partitions.registry import Answer, Call, propose
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.tables.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from minibroker.wire.tables.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker.wire.tables.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

_DISABLED_FROM = 3  # clients of older versions of DeleteTopics do not know TOPIC_DELETION_DISABLED


class Administration:
    """The handlers that change topics. `new_topic_id` makes an id that no topic ever had; `placing` chooses brokers."""

    def __init__(
        self,
        authority: Authority,
        node: NodeConfig,
        *,
        new_topic_id: Callable[[], bytes],
        placing: Placing = place,
    ) -> None:
        self._authority = authority
        self._started_with = node
        self._new_topic_id = new_topic_id
        self._placing = placing

    @property
    def _node(self) -> NodeConfig:
        """The configuration from the start of the node, with all dynamic changes since then."""
        return self._started_with.with_dynamic(self._authority.image.configs)

    # Create -----------------------------------------------------------------------------------------------------------

    def create_topics(self, call: Call[CreateTopicsRequest]) -> Answer:
        """The handler of CreateTopics."""
        topics = [self._new_topic(topic) for topic in call.request.topics]
        command = CreateTopics(topics, self._node, call.request.validate_only, self._placing)
        return propose(self._authority, command, self._created, timeout_ms=max(call.request.timeout_ms, 0))

    def _new_topic(self, topic: CreatableTopic) -> NewTopic:
        return NewTopic(
            name=topic.name,
            topic_id=self._new_topic_id(),
            partition_count=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=[(it.partition_index, it.broker_ids) for it in topic.assignments],
            configs={config.name: config.value for config in topic.configs},
        )

    def _created(self, topics: list[CreatedTopic]) -> Response:
        node = self._node
        return CreateTopicsResponse(topics=[_created_topic(topic, node) for topic in topics])

    def create_on_demand(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        """Create topics with default settings, because a client asked for their metadata. Return the error code of
        each topic that was refused.

        With a quorum, the topics are created after this call has returned, so none is reported as refused.
        """
        topics = [NewTopic(name, self._new_topic_id()) for name in names]
        proposal = self._authority.propose(CreateTopics(topics, self._node, placing=self._placing))
        return {it.name: it.code for it in proposal.result if it.code is not ErrorCode.NONE} if proposal.is_done else {}

    # Delete and grow --------------------------------------------------------------------------------------------------

    def delete_topics(self, call: Call[DeleteTopicsRequest]) -> Answer:
        """The handler of DeleteTopics."""
        # Up to version 5 a request lists names; since version 6 each topic is a name or an id.
        named = [TopicReference(name) for name in call.request.topic_names]
        command = DeleteTopics(named + [TopicReference(it.name, it.topic_id) for it in call.request.topics])
        if not self._node.delete_topic_enable:
            code = ErrorCode.TOPIC_DELETION_DISABLED if call.version >= _DISABLED_FROM else ErrorCode.INVALID_REQUEST
            return _deleted(command.refuse(code, "delete.topic.enable is false: this broker deletes no topics"))
        return propose(self._authority, command, _deleted, timeout_ms=max(call.request.timeout_ms, 0))

    def create_partitions(self, call: Call[CreatePartitionsRequest]) -> Answer:
        """The handler of CreatePartitions."""
        topics = [
            MorePartitions(
                topic.name,
                topic.count,
                None if topic.assignments is None else [it.broker_ids for it in topic.assignments],
            )
            for topic in call.request.topics
        ]
        command = CreatePartitions(topics, call.request.validate_only, self._placing)
        return propose(self._authority, command, _grown, timeout_ms=max(call.request.timeout_ms, 0))


# Responses ------------------------------------------------------------------------------------------------------------


def _created_topic(topic: CreatedTopic, node: NodeConfig) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=topic.code,
        error_message=topic.message,
        # The list is never null: the Java client reads null as hidden configurations, and throws.
        configs=_configs(topic, node) if topic.code == ErrorCode.NONE else [],
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
    )


def _configs(topic: CreatedTopic, node: NodeConfig) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=it.key.name,
            value=it.value,
            read_only=it.is_read_only,
            config_source=it.source,
            is_sensitive=it.key.is_sensitive,
        )
        for it in describe_topic(topic.configs, node)
    ]


def _deleted(topics: list[DeletedTopic]) -> Response:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=topic.code, error_message=topic.message
            )
            for topic in topics
        ]
    )


def _grown(topics: list[GrownTopic]) -> Response:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=topic.code, error_message=topic.message)
            for topic in topics
        ]
    )
