"""GetReplicaLogInfo: where a broker's logs end, so that an unclean election chooses the longest. A pure module."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from minibroker.metadata.image import Image
from minibroker.partitions.errors import Refused
from minibroker.partitions.registry import Answer, Call
from minibroker.replication.authority import LogEnd
from minibroker.replication.replica import Replica
from minibroker.replication.tables.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    PartitionLogInfo,
    TopicPartitionLogInfo,
    TopicPartitions,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.codes import ErrorCode

PARTITIONS_MAX = 1000
"""The most partitions in one response, as in Kafka."""


class GetReplicaLogInfo:
    """The handler of GetReplicaLogInfo."""

    def __init__(
        self,
        topic_name: Callable[[bytes], str],
        replica_of: Callable[[TopicPartition], Replica | None],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._topic_name = topic_name
        self._replica_of = replica_of
        self._broker_epoch = broker_epoch

    def __call__(self, call: Call[GetReplicaLogInfoRequest]) -> Answer:
        """Answer for each partition separately."""
        asked = [(bytes(it.topic_id), index) for it in call.request.topic_partitions or () for index in it.partitions]
        topics: dict[bytes, list[PartitionLogInfo]] = {}
        for topic_id, index in islice(asked, PARTITIONS_MAX):
            topics.setdefault(topic_id, []).append(self._answer(topic_id, index))
        return GetReplicaLogInfoResponse(
            broker_epoch=self._broker_epoch(),
            truncated=len(asked) > PARTITIONS_MAX,
            topic_partition_log_info_list=[
                TopicPartitionLogInfo(topic_id=topic_id, partition_log_info=found) for topic_id, found in topics.items()
            ],
        )

    def _answer(self, topic_id: bytes, index: int) -> PartitionLogInfo:
        try:
            replica = self._replica_of(TopicPartition(self._topic_name(topic_id), index))
        except Refused as refused:
            return _refused(index, refused.code)
        if replica is None:
            return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if replica.log.failure is not None:
            return _refused(index, ErrorCode.KAFKA_STORAGE_ERROR)
        end = replica.log.log_end_offset
        return PartitionLogInfo(
            partition=index,
            last_written_leader_epoch=replica.epochs.epoch_of(end - 1),
            current_leader_epoch=replica.leader_epoch,
            log_end_offset=end,
            error_code=ErrorCode.NONE,
        )


def _refused(index: int, code: ErrorCode) -> PartitionLogInfo:
    return PartitionLogInfo(
        partition=index, last_written_leader_epoch=-1, current_leader_epoch=-1, log_end_offset=-1, error_code=code
    )


def log_info_request(image: Image, names: Iterable[TopicPartition]) -> GetReplicaLogInfoRequest:
    """The request that asks a broker about these partitions, which are in the image."""
    topics: dict[bytes, list[int]] = {}
    for name in names:
        topics.setdefault(image.topics[name.topic].topic_id, []).append(name.partition)
    return GetReplicaLogInfoRequest(
        topic_partitions=[TopicPartitions(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]
    )


def log_ends_of(image: Image, response: GetReplicaLogInfoResponse) -> Mapping[TopicPartition, LogEnd]:
    """The ends of the logs that the broker could describe."""
    return {
        TopicPartition(image.topic_names[bytes(topic.topic_id)], it.partition): LogEnd(
            it.last_written_leader_epoch, it.log_end_offset
        )
        for topic in response.topic_partition_log_info_list
        for it in topic.partition_log_info
        if it.error_code == ErrorCode.NONE and bytes(topic.topic_id) in image.topic_names
    }
