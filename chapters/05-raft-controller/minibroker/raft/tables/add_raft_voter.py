"""AddRaftVoter (key 80): a node that has followed the metadata is to vote from now on (KIP-853). A pure module.

Version 1 lets the caller choose whether to wait until that is decided.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, uint16, uuid


class VoterListener(Struct):
    """Where the voter listens."""

    name: str = string(about="the listener's name")
    host: str = string(about="its host name or address")
    port: int = uint16(about="its port")


class AddRaftVoterRequest(Request, key=80, versions="0-1", flexible="0+"):
    """Let this node vote."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    timeout_ms: int = int32(about="how long to wait until it is decided")
    voter_id: int = int32(about="the node")
    voter_directory_id: bytes = uuid(about="the directory that it votes with")
    listeners: list[VoterListener] = array(VoterListener, about="where it is found")
    ack_when_committed: bool = boolean(
        versions="1+", default=True, ignorable=True, about="whether the answer waits until it is decided"
    )


class AddRaftVoterResponse(Response, key=80, versions="0-1", flexible="0+"):
    """Whether it does."""

    throttle_time_ms: int = int32(default=0, about="how long the client should pause")
    error_code: int = int16(default=0, about="0, or why it does not")
    error_message: str | None = string(nullable="0+", default=None, about="in words")


declare(AddRaftVoterRequest, AddRaftVoterResponse)
