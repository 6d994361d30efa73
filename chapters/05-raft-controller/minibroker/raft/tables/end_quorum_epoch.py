"""EndQuorumEpoch (key 54): a leader steps down, and names its preferred successors (KIP-595). A pure module.

Version 1 names the successors with their directories (KIP-853).
"""

from minibroker.raft.tables.begin_quorum_epoch import HeardTopic, LeaderEndpoint, NodeEndpoint
from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string, uuid


class Candidate(Struct):
    """A preferred successor."""

    candidate_id: int = int32(versions="1+", about="the node")
    candidate_directory_id: bytes = uuid(versions="1+", about="the directory id of the candidate")


class EndedPartition(Struct):
    """The log whose leader steps down."""

    partition_index: int = int32(about="the partition, 0")
    leader_id: int = int32(about="the leader that steps down")
    leader_epoch: int = int32(about="the epoch of that leader")
    preferred_successors: list[int] = array(
        int32, versions="0", default=(), ignorable=True, about="the nodes to stand for election, best first"
    )
    preferred_candidates: list[Candidate] = array(
        Candidate, versions="1+", default=(), ignorable=True, about="the voters to stand for election, best first"
    )


class EndedTopic(Struct):
    """The topic of the log."""

    topic_name: str = string(about="__cluster_metadata")
    partitions: list[EndedPartition] = array(EndedPartition, about="the only partition")


class EndQuorumEpochRequest(Request, key=54, versions="0-1", flexible="1+"):
    """A leader steps down."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    topics: list[EndedTopic] = array(EndedTopic, about="the log")
    leader_endpoints: list[LeaderEndpoint] = array(
        LeaderEndpoint, versions="1+", default=(), ignorable=True, about="the listeners of the leader"
    )


class EndQuorumEpochResponse(Response, key=54, versions="0-1", flexible="1+"):
    """The answer of a voter."""

    error_code: int = int16(default=0, about="0, or why the whole request was refused")
    topics: list[HeardTopic] = array(HeardTopic, default=(), about="the log")
    node_endpoints: list[NodeEndpoint] = array(
        NodeEndpoint, versions="1+", tag=0, default=(), about="the addresses of the leaders that the response names"
    )


declare(EndQuorumEpochRequest, EndQuorumEpochResponse)
