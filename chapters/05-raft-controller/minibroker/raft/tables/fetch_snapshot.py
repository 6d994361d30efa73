"""FetchSnapshot (key 59): a piece of a snapshot of the metadata log (KIP-630). A pure module.

Version 1 names the directory of the follower's log (KIP-853). Only nodes send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import (
    DEFAULTS,
    Records,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uuid,
)
from minibroker.wire.uuids import NO_UUID


class SnapshotId(Struct):
    """The records that a snapshot replaces."""

    end_offset: int = int64(about="everything before this offset")
    epoch: int = int32(about="the epoch of the last of these records")


class WantedSnapshot(Struct):
    """The requested piece."""

    partition: int = int32(about="the partition, 0")
    current_leader_epoch: int = int32(about="the follower's epoch")
    snapshot_id: SnapshotId = struct(SnapshotId, about="the snapshot")
    position: int = int64(about="the position in the snapshot where the piece begins")
    replica_directory_id: bytes = uuid(
        versions="1+", tag=0, default=NO_UUID, ignorable=True, about="the directory of the follower's log"
    )


class WantedTopic(Struct):
    """The topic of the log."""

    name: str = string(about="__cluster_metadata")
    partitions: list[WantedSnapshot] = array(WantedSnapshot, about="the only partition")


class FetchSnapshotRequest(Request, key=59, versions="0-1", flexible="0+"):
    """Ask for a piece of a snapshot."""

    cluster_id: str | None = string(nullable="0+", tag=0, default=None, ignorable=True, about="the cluster")
    replica_id: int = int32(default=-1, about="the follower")
    max_bytes: int = int32(default=0x7FFFFFFF, about="how large the piece may be")
    topics: list[WantedTopic] = array(WantedTopic, about="the log")


class LeaderIdAndEpoch(Struct):
    """The current leader."""

    leader_id: int = int32(default=0, about="the leader, -1 if it is not known")
    leader_epoch: int = int32(default=0, about="the epoch")


class FoundSnapshot(Struct):
    """A piece of the snapshot."""

    index: int = int32(about="the partition, 0")
    error_code: int = int16(about="0, or why there is no piece")
    snapshot_id: SnapshotId = struct(SnapshotId, about="the snapshot")
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0, default=DEFAULTS, about="the current leader")
    size: int = int64(about="the size of the whole snapshot")
    position: int = int64(about="the position in the snapshot where the piece begins")
    unaligned_records: Records = records(about="the bytes, which may end in the middle of a batch")


class FoundTopic(Struct):
    """The topic of the log."""

    name: str = string(about="__cluster_metadata")
    partitions: list[FoundSnapshot] = array(FoundSnapshot, about="the only partition")


class NodeEndpoint(Struct):
    """The address of a leader that the response names."""

    node_id: int = int32(versions="1+", about="the node")
    host: str = string(versions="1+", about="the host name or address of the leader")
    port: int = uint16(versions="1+", about="the port of the leader")


class FetchSnapshotResponse(Response, key=59, versions="0-1", flexible="0+"):
    """The answer: a piece of the snapshot."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the sender, because of a quota"
    )
    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    topics: list[FoundTopic] = array(FoundTopic, default=(), about="the log")
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="1+", tag=0, default=(), about="the addresses of the leaders that the response names"
    )


declare(FetchSnapshotRequest, FetchSnapshotResponse)
