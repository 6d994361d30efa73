"""DescribeTopicPartitions (KIP-966): describes topics in pages, with eligible leader replicas. A pure module."""

from collections.abc import Callable, Sequence

from minibroker.controller.tables.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from minibroker.metadata.image import Image, PartitionImage
from minibroker.metadata.names import is_internal
from minibroker.partitions.describe import Reach, find_topic, partition_fields
from minibroker.partitions.errors import Refused
from minibroker.partitions.operations import TOPIC_OPERATIONS
from minibroker.partitions.registry import Answer, Call
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import NO_UUID


class DescribeTopicPartitions:
    """The handler of DescribeTopicPartitions. `partitions_max` limits the partitions on one page."""

    def __init__(self, image: Callable[[], Image], *, partitions_max: int = 2000) -> None:
        self._read_image = image
        self._partitions_max = partitions_max

    @property
    def _image(self) -> Image:
        return self._read_image()

    def __call__(self, call: Call[DescribeTopicPartitionsRequest]) -> Answer:
        """Answer with one page."""
        request, reach = call.request, Reach.of(self._image, call.session.listener)
        names = sorted({topic.name for topic in request.topics} or self._image.topics)
        cursor = request.cursor
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
        left = min(request.response_partition_limit, self._partitions_max)
        topics: list[DescribeTopicPartitionsResponseTopic] = []
        for name in names:
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            if left <= 0:
                return _page(topics, Cursor(topic_name=name, partition_index=first))
            described = self._described(name, first, left, reach)
            topics.append(described)
            left -= len(described.partitions)
            known = self._image.topics.get(name)
            next_index = first + len(described.partitions)
            if known is not None and next_index < len(known.partitions):
                return _page(topics, Cursor(topic_name=name, partition_index=next_index))
        return _page(topics, None)

    def _described(self, name: str, first: int, count_max: int, reach: Reach) -> DescribeTopicPartitionsResponseTopic:
        try:
            topic = find_topic(self._image, name)
        except Refused as refused:
            return DescribeTopicPartitionsResponseTopic(
                error_code=refused.code,
                name=name,
                topic_id=NO_UUID,
                partitions=[],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        indexes = [index for index in sorted(topic.partitions) if index >= first][:count_max]
        return DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=topic.topic_id,
            is_internal=is_internal(name),
            partitions=[_described_partition(reach, index, topic.partitions[index]) for index in indexes],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )


def _page(topics: Sequence[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None) -> Answer:
    return DescribeTopicPartitionsResponse(topics=list(topics), next_cursor=cursor)


def _described_partition(
    reach: Reach, index: int, partition: PartitionImage
) -> DescribeTopicPartitionsResponsePartition:
    # If there are no eligible leader replicas, the lists are empty, not null, because the Java client fails on null.
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        eligible_leader_replicas=list(partition.eligible_leader_replicas),
        last_known_elr=list(partition.last_known_elr),
        **partition_fields(reach, partition),
    )
