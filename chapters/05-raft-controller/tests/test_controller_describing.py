"""DescribeTopicPartitions: pages, errors, and the same state as in Metadata."""

from typing import Any

import pytest
from partitions_broker import MemoryBroker

from minibroker.controller.describing import DescribeTopicPartitions
from minibroker.controller.tables.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataRequest


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.registry.add(ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitions(lambda: broker.authority.image))
    broker.create("orders", 3)
    broker.create("other")
    return broker


def test_describe_topic_partitions_comes_in_pages(broker: MemoryBroker) -> None:
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=None)
    seen = []
    for _page in range(10):
        response = broker.ask(request)
        seen += [(topic.name, it.partition_index) for topic in response.topics for it in topic.partitions]
        assert all(it.eligible_leader_replicas == [] for topic in response.topics for it in topic.partitions)
        # Without an authorizer a client may do everything with a topic (KIP-430).
        assert {topic.topic_authorized_operations for topic in response.topics} == {0b1101_1111_1000}
        if response.next_cursor is None:
            break
        request.cursor = response.next_cursor
    assert seen == [("orders", 0), ("orders", 1), ("orders", 2), ("other", 0)]


def test_describe_topic_partitions_of_an_unknown_topic_is_an_error(broker: MemoryBroker) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="nowhere")], response_partition_limit=10)
    assert broker.ask(request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def said(answer: Any) -> list[tuple[object, ...]]:
    return [
        (it.error_code, it.leader_id, it.leader_epoch, it.replica_nodes, it.isr_nodes, it.offline_replicas)
        for topic in answer.topics
        for it in topic.partitions
    ]


def test_describe_topic_partitions_agrees_with_metadata(broker: MemoryBroker) -> None:
    broker.register(2)
    broker.change("orders", 0, leader=-1, isr=[1])
    assert said(broker.ask(DescribeTopicPartitionsRequest(topics=[]))) == said(broker.ask(MetadataRequest(topics=None)))
