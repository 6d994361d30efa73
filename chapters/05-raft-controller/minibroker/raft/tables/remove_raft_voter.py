"""RemoveRaftVoter (key 81): remove a voter from the voter set (KIP-853). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, int16, int32, string, uuid


class RemoveRaftVoterRequest(Request, key=81, versions="0", flexible="0+"):
    """Remove a voter."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    voter_id: int = int32(about="the node")
    voter_directory_id: bytes = uuid(about="the directory id of the voter")


class RemoveRaftVoterResponse(Response, key=81, versions="0", flexible="0+"):
    """Whether the voter was removed."""

    throttle_time_ms: int = int32(default=0, about="how long the client should pause")
    error_code: int = int16(default=0, about="0, or why the voter was not removed")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


declare(RemoveRaftVoterRequest, RemoveRaftVoterResponse)
