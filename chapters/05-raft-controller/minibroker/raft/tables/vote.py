"""Vote (key 52): a candidate asks for a vote, or whether it would get one (KIP-595, KIP-996). A pure module.

Version 1 names voters with their directories, so that a node that has lost its disk does not answer as the old voter
(KIP-853). Version 2 has pre-votes, which begin no epoch. Only nodes of the quorum send it.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uint16, uuid
from minibroker.wire.uuids import NO_UUID


class VotePartition(Struct):
    """The vote that a candidate asks for, and the end of the candidate's log."""

    partition_index: int = int32(about="the partition, 0")
    replica_epoch: int = int32(about="the epoch to vote in; in a pre-vote, the candidate's present epoch")
    replica_id: int = int32(about="the candidate")
    replica_directory_id: bytes = uuid(
        versions="1+", default=NO_UUID, ignorable=True, about="the directory id of the candidate"
    )
    voter_directory_id: bytes = uuid(versions="1+", default=NO_UUID, ignorable=True, about="the voter's directory")
    last_offset_epoch: int = int32(about="the epoch of the candidate's last record")
    last_offset: int = int64(about="the candidate's log end offset")
    pre_vote: bool = boolean(versions="2+", default=False, about="whether this is a pre-vote")


class VoteTopic(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[VotePartition] = array(VotePartition, about="the only partition")


class VoteRequest(Request, key=52, versions="0-2", flexible="0+"):
    """Ask for a vote."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    voter_id: int = int32(versions="1+", default=-1, ignorable=True, about="the voter to which the request is sent")
    topics: list[VoteTopic] = array(VoteTopic, about="the log")


class VotePartitionResult(Struct):
    """The voter's answer."""

    partition_index: int = int32(about="the partition, 0")
    error_code: int = int16(about="0, or why the voter does not answer")
    leader_id: int = int32(about="the leader of the voter's epoch, -1 if it is not known")
    leader_epoch: int = int32(about="the voter's epoch")
    vote_granted: bool = boolean(about="whether the vote or pre-vote is granted")


class VoteTopicResult(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[VotePartitionResult] = array(VotePartitionResult, about="the only partition")


class NodeEndpoint(Struct):
    """The address of a leader that the response names."""

    node_id: int = int32(versions="1+", about="the node")
    host: str = string(versions="1+", about="the host name or address of the leader")
    port: int = uint16(versions="1+", about="the port of the leader")


class VoteResponse(Response, key=52, versions="0-2", flexible="0+"):
    """The answer of a voter."""

    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    topics: list[VoteTopicResult] = array(VoteTopicResult, default=(), about="the log")
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="1+", tag=0, default=(), about="the addresses of the leaders that the response names"
    )


declare(VoteRequest, VoteResponse)
