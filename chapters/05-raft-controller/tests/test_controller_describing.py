"""DescribeTopicPartitions: pages, errors, and the same words as Metadata."""

from typing import Any

import pytest
from partitions_house import House

from minibroker.controller.describing import DescribeTopicPartitions
from minibroker.controller.tables.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.metadata import MetadataRequest


@pytest.fixture
def house() -> House:
    house = House()
    house.registry.add(ApiKey.DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitions(lambda: house.authority.image))
    house.create("orders", 3)
    house.create("other")
    return house


def test_describe_topic_partitions_comes_in_pages(house: House) -> None:
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=None)
    seen = []
    for _page in range(10):
        response = house.ask(request)
        seen += [(topic.name, it.partition_index) for topic in response.topics for it in topic.partitions]
        assert all(it.eligible_leader_replicas == [] for topic in response.topics for it in topic.partitions)
        if response.next_cursor is None:
            break
        request.cursor = response.next_cursor
    assert seen == [("orders", 0), ("orders", 1), ("orders", 2), ("other", 0)]


def test_describe_topic_partitions_of_an_unknown_topic_is_an_error(house: House) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="nowhere")], response_partition_limit=10)
    assert house.ask(request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def said(answer: Any) -> list[tuple[object, ...]]:
    return [
        (it.error_code, it.leader_id, it.leader_epoch, it.replica_nodes, it.isr_nodes, it.offline_replicas)
        for topic in answer.topics
        for it in topic.partitions
    ]


def test_it_says_of_a_partition_what_metadata_says(house: House) -> None:
    house.register(2)
    house.change("orders", 0, leader=-1, isr=[1])
    assert said(house.ask(DescribeTopicPartitionsRequest(topics=[]))) == said(house.ask(MetadataRequest(topics=None)))
