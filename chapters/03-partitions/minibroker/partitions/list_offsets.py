"""ListOffsets: the first and the last offset of a log, and the offset of a timestamp. A pure module."""

from collections import Counter

from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import Found, Partition, Reader
from minibroker.partitions.registry import Answer, Call
from minibroker.partitions.routes import Routes
from minibroker.partitions.slices import Steps, sliced
from minibroker.wire.codes import ErrorCode
from minibroker.wire.tables.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

# Special values in place of a timestamp.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

LEADER_EPOCH_FROM_VERSION = 4
OFFSET_NOT_AVAILABLE_FROM_VERSION = 5
_LEAST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1
# Kafka's id of a reader that asks a replica, which need not be the leader, for the end of that replica's log.
DEBUGGING_REPLICA = -2
_PARTITIONS_PER_TURN = 500


class ListOffsets:
    """The handler of ListOffsets."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def __call__(self, call: Call[ListOffsetsRequest]) -> Answer:
        """Answer for every partition, each with its own error."""
        return sliced(self._topics(call), steps_per_turn=_PARTITIONS_PER_TURN)

    def _topics(self, call: Call[ListOffsetsRequest]) -> Steps:
        request = call.request
        reader = Reader(request.replica_id, is_committed_only=request.isolation_level == _READ_COMMITTED)
        named = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
        topics = []
        for topic in request.topics:
            partitions: list[ListOffsetsPartitionResponse] = []
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
            yield None
            for wanted in topic.partitions:
                is_only_one = named[topic.name, wanted.partition_index] == 1
                partitions.append(
                    self._answer(topic.name, wanted, reader, call.version) if is_only_one else _named_twice(wanted)
                )
                yield None
        return ListOffsetsResponse(topics=topics)

    def _answer(
        self, topic: str, wanted: ListOffsetsPartition, reader: Reader, version: int
    ) -> ListOffsetsPartitionResponse:
        response = ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=ErrorCode.NONE)
        try:
            partition = self._routes.partition(topic, wanted.partition_index)
            if reader.replica_id == DEBUGGING_REPLICA and wanted.timestamp == LATEST:
                found = partition.find_end()
            else:
                partition.check_leader(wanted.current_leader_epoch)
                found = find(partition, wanted.timestamp, reader, version)
        except Refused as refused:
            response.error_code = _code_for(refused.code, version)
            return response
        response.offset, response.timestamp = found.offset, found.timestamp
        if version >= LEADER_EPOCH_FROM_VERSION:
            response.leader_epoch = found.leader_epoch
        return response


def _named_twice(wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    # A lookup may read much data, so a request may name each partition only once.
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST)


def _code_for(code: ErrorCode, version: int) -> ErrorCode:
    # An older client does not know OFFSET_NOT_AVAILABLE. LEADER_NOT_AVAILABLE makes it retry, too.
    is_new = code is ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_FROM_VERSION
    return ErrorCode.LEADER_NOT_AVAILABLE if is_new else code


def find(partition: Partition, timestamp: int, reader: Reader, version: int) -> Found:
    """The offset of a timestamp, or of one of the special values, in a partition."""
    if version < _LEAST_VERSION.get(timestamp, 0):
        message = f"timestamp {timestamp} needs version {_LEAST_VERSION[timestamp]}, but the request has {version}"
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, message)
    if timestamp == LATEST:
        return partition.find_latest(reader=reader)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.find_earliest()
    if timestamp == MAX_TIMESTAMP:
        return partition.find_max_timestamp(reader=reader)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # There is no tiered storage, so there is no such offset. Kafka without tiered storage gives the same answer.
        return Found()
    if timestamp < 0:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} is unknown: use 0 or more, or -6 to -1")
    return partition.find_time(timestamp, reader=reader)
