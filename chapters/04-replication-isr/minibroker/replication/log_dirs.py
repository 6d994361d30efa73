"""DescribeLogDirs: which replicas a node has on its disk, and how large they are. A pure module."""

from collections.abc import Callable, Iterable

from minibroker.partitions.registry import Answer, Call
from minibroker.replication.tables.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode


class DescribeLogDirs:
    """The handler of DescribeLogDirs. `disk` returns the path of the data, and the size and free bytes of its disk."""

    def __init__(
        self,
        logs: Callable[[], Iterable[tuple[TopicPartition, SegmentedLog]]],
        disk: Callable[[], tuple[str, int, int]],
    ) -> None:
        self._logs = logs
        self._disk = disk

    def __call__(self, call: Call[DescribeLogDirsRequest]) -> Answer:
        """Answer with the node's only directory and the requested topics in it."""
        wanted = call.request.topics
        names = None if wanted is None else {(it.topic, index) for it in wanted for index in it.partitions}
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for name, log in self._logs():
            if names is None or name in names:
                found = DescribeLogDirsPartition(
                    partition_index=name.partition, partition_size=log.size, offset_lag=0, is_future_key=False
                )
                topics.setdefault(name.topic, []).append(found)
        path, total_bytes, usable_bytes = self._disk()
        result = DescribeLogDirsResult(
            error_code=ErrorCode.NONE,
            log_dir=path,
            topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()],
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
        )
        return DescribeLogDirsResponse(results=[result], throttle_time_ms=0)
