"""AddRaftVoter (key 80): make a voter of a node that has fetched the metadata log (KIP-853). A pure module.

Version 1 lets the caller choose whether to wait until the change is committed.
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, int16, int32, string, uint16, uuid


class VoterListener(Struct):
    """A listener of the voter."""

    name: str = string(about="the listener's name")
    host: str = string(about="the host name or address of the listener")
    port: int = uint16(about="the port of the listener")


class AddRaftVoterRequest(Request, key=80, versions="0-1", flexible="0+"):
    """Add a voter."""

    cluster_id: str | None = string(nullable="0+", default=None, about="the cluster")
    timeout_ms: int = int32(about="how long to wait until the change is committed")
    voter_id: int = int32(about="the node")
    voter_directory_id: bytes = uuid(about="the directory id of the voter")
    listeners: list[VoterListener] = array(VoterListener, about="the listeners of the voter")
    ack_when_committed: bool = boolean(
        versions="1+", default=True, ignorable=True, about="whether the answer waits until the change is committed"
    )


class AddRaftVoterResponse(Response, key=80, versions="0-1", flexible="0+"):
    """Whether the voter was added."""

    throttle_time_ms: int = int32(default=0, about="how long the client should pause")
    error_code: int = int16(default=0, about="0, or why the voter was not added")
    error_message: str | None = string(nullable="0+", default=None, about="the error in words, or null")


declare(AddRaftVoterRequest, AddRaftVoterResponse)
