"""SyncGroup (key 14): the leader sends all assignments, and every member gets its own. A pure module.

Version 3 adds static members (KIP-345), version 5 the type and the name of the protocol (KIP-559).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, bytes_, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    """The assignment of one member."""

    member_id: str = string(about="the member")
    assignment: bytes = bytes_(about="bytes that the member gets; for a consumer, its partitions")


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    """Ask for the member's assignment. The leader's request has the assignments of all members."""

    group_id: str = string(about="the group")
    generation_id: int = int32(about="the generation that the member has joined")
    member_id: str = string(about="the member")
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", default=None, about="the id of a static member"
    )
    protocol_type: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the kind of group"
    )
    protocol_name: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the protocol of this generation"
    )
    assignments: list[SyncGroupRequestAssignment] = array(
        SyncGroupRequestAssignment, about="the assignments of all members, if this one is the leader"
    )


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    """The member's assignment."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(default=0, about="0, or why there is no assignment")
    protocol_type: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the kind of group"
    )
    protocol_name: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the protocol of this generation"
    )
    assignment: bytes = bytes_(default=b"", about="the bytes that the leader has sent for this member")


declare(SyncGroupRequest, SyncGroupResponse)
