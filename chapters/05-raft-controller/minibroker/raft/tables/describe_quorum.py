"""DescribeQuorum (key 55): the voters, the leader, and how far each replica is (KIP-595, KIP-836). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, int64, string, uint16, uuid
from minibroker.wire.uuids import NO_UUID


class QuorumPartition(Struct):
    """The log to describe."""

    partition_index: int = int32(about="the partition, 0")


class QuorumTopic(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[QuorumPartition] = array(QuorumPartition, about="the only partition")


class DescribeQuorumRequest(Request, key=55, versions="0-2", flexible="0+"):
    """Ask for the state of the quorum."""

    topics: list[QuorumTopic] = array(QuorumTopic, about="the log")


class ReplicaState(Struct):
    """One voter or observer."""

    replica_id: int = int32(about="the node")
    replica_directory_id: bytes = uuid(
        versions="2+", default=NO_UUID, ignorable=True, about="the directory id of the replica"
    )
    log_end_offset: int = int64(about="the log end offset, -1 if unknown")
    last_fetch_timestamp: int = int64(
        versions="1+", default=-1, ignorable=True, about="when the replica fetched last, -1 if never"
    )
    last_caught_up_timestamp: int = int64(
        versions="1+", default=-1, ignorable=True, about="when the replica last had the leader's whole log, -1 if never"
    )


class QuorumPartitionResult(Struct):
    """The state of the log."""

    partition_index: int = int32(about="the partition, 0")
    error_code: int = int16(about="0, or why the state is not known")
    error_message: str | None = string(
        versions="2+", nullable="2+", default=None, ignorable=True, about="the error in words, or null"
    )
    leader_id: int = int32(about="the leader, -1 if there is none")
    leader_epoch: int = int32(about="the epoch")
    high_watermark: int = int64(about="every record before this offset is committed")
    current_voters: list[ReplicaState] = array(ReplicaState, default=(), about="the voters")
    observers: list[ReplicaState] = array(ReplicaState, default=(), about="the replicas that are not voters")


class QuorumTopicResult(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[QuorumPartitionResult] = array(QuorumPartitionResult, about="the only partition")


class QuorumListener(Struct):
    """A listener of a voter."""

    name: str = string(versions="2+", about="the listener's name")
    host: str = string(versions="2+", about="the host name or address of the listener")
    port: int = uint16(versions="2+", about="the port of the listener")


class QuorumNode(Struct):
    """A voter and its listeners."""

    node_id: int = int32(versions="2+", about="the node")
    listeners: list[QuorumListener] = array(QuorumListener, versions="2+", about="the listeners of the voter")


class DescribeQuorumResponse(Response, key=55, versions="0-2", flexible="0+"):
    """The state of the quorum."""

    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    error_message: str | None = string(
        versions="2+", nullable="2+", default=None, ignorable=True, about="the error in words, or null"
    )
    topics: list[QuorumTopicResult] = array(QuorumTopicResult, default=(), about="the log")
    nodes: list[QuorumNode] = array(QuorumNode, versions="2+", default=(), ignorable=True, about="the voters")


declare(DescribeQuorumRequest, DescribeQuorumResponse)
