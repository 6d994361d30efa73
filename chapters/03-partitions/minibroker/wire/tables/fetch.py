"""Fetch (key 1): consumers and followers read record batches from an offset on. A pure module.

Version 7 adds sessions, in which only changes are sent (KIP-227); version 9 fences old leaders (KIP-320); version 12
finds where logs diverge (KIP-595); version 13 names topics by id (KIP-516); version 15 moves the follower's id into
`replica_state` (KIP-903); version 16 names the current leader (KIP-951); version 17 adds the directory of the
follower's log (KIP-853).
"""

from minibroker.wire import schema
from minibroker.wire.apis import declare
from minibroker.wire.schema import (
    DEFAULTS,
    Records,
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from minibroker.wire.uuids import NO_UUID


class ReplicaState(Struct):
    """The follower that sends the request. A consumer sends the defaults."""

    replica_id: int = int32(versions="15+", default=-1, about="the follower's node id, -1 for a consumer")
    replica_epoch: int = int64(versions="15+", default=-1, about="the broker epoch of the follower, -1 if unknown")


class FetchPartition(Struct):
    """One partition to fetch."""

    partition: int = int32(about="the partition")
    current_leader_epoch: int = int32(
        versions="9+", default=-1, ignorable=True, about="the leader epoch that the reader knows; -1 skips the check"
    )
    fetch_offset: int = int64(about="the first offset to fetch")
    last_fetched_epoch: int = int32(
        versions="12+", default=-1, about="the epoch of the follower's last record, to find where logs diverge"
    )
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True, about="the follower's log start offset")
    partition_max_bytes: int = int32(
        about="the most bytes of this partition in the response; the first batch may be larger"
    )
    replica_directory_id: bytes = uuid(
        versions="17+", tag=0, default=NO_UUID, ignorable=True, about="the directory of the follower's log"
    )


class FetchTopic(Struct):
    """The partitions of one topic."""

    topic: str = string(versions="0-12", default="", ignorable=True, about="the topic's name")
    topic_id: bytes = uuid(versions="13+", default=NO_UUID, ignorable=True, about="the topic's id")
    partitions: list[FetchPartition] = array(FetchPartition, about="the partitions to fetch")


class ForgottenTopic(Struct):
    """Partitions to remove from the session."""

    topic: str = string(versions="7-12", default="", ignorable=True, about="the topic's name")
    topic_id: bytes = uuid(versions="13+", default=NO_UUID, ignorable=True, about="the topic's id")
    partitions: list[int] = array(int32, versions="7+", about="the partitions")


class FetchRequest(Request, key=1, versions="4-17", flexible="12+"):
    """Fetch batches from given offsets on."""

    cluster_id: str | None = string(
        versions="12+",
        nullable="12+",
        tag=0,
        default=None,
        ignorable=True,
        about="the cluster's id, for fetches of the metadata log",
    )
    replica_id: int = int32(versions="0-14", default=-1, about="the follower's node id, -1 for a consumer")
    replica_state: ReplicaState = struct(
        ReplicaState, versions="15+", tag=1, default=DEFAULTS, about="the follower that sends the request, if any"
    )
    max_wait_ms: int = int32(about="how long the broker may wait for min_bytes")
    min_bytes: int = int32(about="the broker responds before max_wait_ms if it has this many bytes")
    max_bytes: int = int32(
        versions="3+", default=0x7FFFFFFF, ignorable=True, about="the most bytes in the whole response"
    )
    isolation_level: int = int8(
        versions="4+",
        default=0,
        ignorable=True,
        about="0 read_uncommitted; 1 read_committed: stop at open transactions",
    )
    session_id: int = int32(versions="7+", default=0, ignorable=True, about="the fetch session, 0 for none yet")
    session_epoch: int = int32(
        versions="7+",
        default=-1,
        ignorable=True,
        about="the number of the request in its session; 0 starts a session, -1 uses none",
    )
    topics: list[FetchTopic] = array(
        FetchTopic, about="the partitions to fetch; in a session, only new and changed partitions"
    )
    forgotten_topics_data: list[ForgottenTopic] = array(
        ForgottenTopic, versions="7+", default=(), about="the partitions to remove from the session"
    )
    rack_id: str = string(versions="11+", default="", ignorable=True, about="the consumer's rack")


class EpochEndOffset(Struct):
    """Where the leader's log and the follower's log diverge."""

    epoch: int = int32(versions="12+", default=-1, about="the last epoch that both logs have")
    end_offset: int = int64(versions="12+", default=-1, about="the end of this epoch in the leader's log")


class LeaderIdAndEpoch(Struct):
    """The current leader of the partition."""

    leader_id: int = int32(versions="12+", default=-1, about="the leader's node id, -1 if it is not known")
    leader_epoch: int = int32(versions="12+", default=-1, about="the leader's epoch")


class SnapshotId(Struct):
    """A snapshot of the metadata log."""

    end_offset: int = int64(default=-1, about="the offset after the snapshot's last record")
    epoch: int = int32(default=-1, about="the epoch of the snapshot's last record")


class AbortedTransaction(Struct):
    """A transaction whose records a read_committed consumer drops."""

    producer_id: int = int64(versions="4+", about="the producer")
    first_offset: int = int64(
        versions="4+", about="the first offset of the transaction, which ends with the abort marker"
    )


class PartitionData(Struct):
    """The batches of one partition."""

    partition_index: int = int32(about="the partition")
    error_code: int = int16(about="0, or why nothing was fetched")
    high_watermark: int = int64(
        about="consumers read up to this offset; every in-sync replica has the records before it"
    )
    last_stable_offset: int = int64(
        versions="4+", default=-1, ignorable=True, about="every transaction before this offset has ended"
    )
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True, about="the first offset still in the log")
    diverging_epoch: EpochEndOffset = struct(
        EpochEndOffset,
        versions="12+",
        tag=0,
        default=DEFAULTS,
        about="where the follower truncates, if the logs diverge",
    )
    current_leader: LeaderIdAndEpoch = struct(
        LeaderIdAndEpoch, versions="12+", tag=1, default=DEFAULTS, about="the current leader, if it is another broker"
    )
    snapshot_id: SnapshotId = struct(
        SnapshotId, versions="12+", tag=2, default=DEFAULTS, about="the snapshot to fetch, if the offset is deleted"
    )
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, versions="4+", nullable="4+", default=(), ignorable=True, about="null if read_uncommitted"
    )
    preferred_read_replica: int = int32(versions="11+", default=-1, about="a closer replica to fetch from, -1 for none")
    records: Records | None = schema.records(
        nullable="0+", about="batches in the format of the log; the last may be cut off"
    )


class FetchableTopicResponse(Struct):
    """The batches of one topic."""

    topic: str = string(versions="0-12", default="", ignorable=True, about="the topic's name")
    topic_id: bytes = uuid(versions="13+", default=NO_UUID, ignorable=True, about="the topic's id")
    partitions: list[PartitionData] = array(PartitionData, about="the partitions of the topic")


class NodeEndpoint(Struct):
    """The address of a leader that is named in the response."""

    node_id: int = int32(versions="16+", about="the node")
    host: str = string(versions="16+", about="the node's host name or address")
    port: int = int32(versions="16+", about="the node's port")
    rack: str | None = string(versions="16+", nullable="16+", default=None, about="the node's rack, if it has one")


class FetchResponse(Response, key=1, versions="4-17", flexible="12+"):
    """The batches of each partition."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(versions="7+", default=0, ignorable=True, about="0, or an error of the session")
    session_id: int = int32(versions="7+", default=0, about="the fetch session, 0 if there is none")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, about="one entry for each topic")
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="16+", tag=0, default=(), about="the addresses of the current leaders"
    )


declare(FetchRequest, FetchResponse)
