"""DescribeLogDirs (key 35): how much disk each partition takes (KIP-113). A pure module.

Version 3 adds an error for the whole answer (KIP-784), version 4 the size of the disk (KIP-827).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    """The partitions of one topic."""

    topic: str = string(about="the topic")
    partitions: list[int] = array(int32, about="the topic's partitions")


class DescribeLogDirsRequest(Request, key=35, versions="1-4", flexible="2+"):
    """Describe the data directories and the sizes of their logs."""

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable="0+", about="the partitions to describe; null means all"
    )


class DescribeLogDirsPartition(Struct):
    """One partition."""

    partition_index: int = int32(about="the partition")
    partition_size: int = int64(about="the size of the partition's segments")
    offset_lag: int = int64(about="how far the log end is below the high watermark")
    is_future_key: bool = boolean(about="whether the log is being moved here from another directory")


class DescribeLogDirsTopic(Struct):
    """One topic."""

    name: str = string(about="the topic")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, about="the topic's partitions")


class DescribeLogDirsResult(Struct):
    """One log directory."""

    error_code: int = int16(about="0, or KAFKA_STORAGE_ERROR if the directory is offline")
    log_dir: str = string(about="the absolute path of the directory")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, about="the topics in the directory")
    total_bytes: int = int64(versions="4+", default=-1, ignorable=True, about="the size of the volume")
    usable_bytes: int = int64(versions="4+", default=-1, ignorable=True, about="the free bytes of the volume")


class DescribeLogDirsResponse(Response, key=35, versions="1-4", flexible="2+"):
    """The data directories and the sizes of their logs."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    error_code: int = int16(versions="3+", default=0, ignorable=True, about="0, or an error of the whole request")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, about="one entry for each log directory")


declare(DescribeLogDirsRequest, DescribeLogDirsResponse)
