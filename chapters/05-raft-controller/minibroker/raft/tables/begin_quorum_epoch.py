"""BeginQuorumEpoch (key 53): a new leader announces itself to the voters (KIP-595). A pure module.

Version 1 names the voter with its directory, and the listeners of the leader (KIP-853).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string, uint16, uuid
from minibroker.wire.uuids import NO_UUID


class BegunPartition(Struct):
    """The log and its new leader."""

    partition_index: int = int32(about="the partition, 0")
    voter_directory_id: bytes = uuid(versions="1+", default=NO_UUID, ignorable=True, about="the voter's directory")
    leader_id: int = int32(about="the leader")
    leader_epoch: int = int32(about="the epoch of the leader")


class BegunTopic(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[BegunPartition] = array(BegunPartition, about="the only partition")


class LeaderEndpoint(Struct):
    """A listener of the leader."""

    name: str = string(versions="1+", about="the listener's name")
    host: str = string(versions="1+", about="the host name or address of the leader")
    port: int = uint16(versions="1+", about="the port of the leader")


class BeginQuorumEpochRequest(Request, key=53, versions="0-1", flexible="1+"):
    """A leader announces itself."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    voter_id: int = int32(versions="1+", default=-1, ignorable=True, about="the voter to which the request is sent")
    topics: list[BegunTopic] = array(BegunTopic, about="the log")
    leader_endpoints: list[LeaderEndpoint] = array(
        LeaderEndpoint, versions="1+", default=(), ignorable=True, about="the listeners of the leader"
    )


class HeardPartition(Struct):
    """The epoch and the leader that the voter knows."""

    partition_index: int = int32(about="the partition, 0")
    error_code: int = int16(about="0, or why the voter does not follow the leader")
    leader_id: int = int32(about="the leader of the voter's epoch, -1 if it is not known")
    leader_epoch: int = int32(about="the voter's epoch")


class HeardTopic(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[HeardPartition] = array(HeardPartition, about="the only partition")


class NodeEndpoint(Struct):
    """The address of a leader that the response names."""

    node_id: int = int32(versions="1+", about="the node")
    host: str = string(versions="1+", about="the host name or address of the leader")
    port: int = uint16(versions="1+", about="the port of the leader")


class BeginQuorumEpochResponse(Response, key=53, versions="0-1", flexible="1+"):
    """The answer of a voter."""

    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    topics: list[HeardTopic] = array(HeardTopic, default=(), about="the log")
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="1+", tag=0, default=(), about="the addresses of the leaders that the response names"
    )


declare(BeginQuorumEpochRequest, BeginQuorumEpochResponse)
