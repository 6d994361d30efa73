"""LeaveGroup (key 13): members leave a classic group, or an administrator removes them. A pure module.

Since version 3 a request can remove many members, and name static members by their instance ids (KIP-345). Version 5
adds a reason (KIP-800).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string


class MemberIdentity(Struct):
    """A member that leaves."""

    member_id: str = string(versions="3+", about="the member; empty if an administrator removes a static member")
    group_instance_id: str | None = string(
        versions="3+", nullable="3+", default=None, about="the id of a static member"
    )
    reason: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="why it leaves, for the broker's log"
    )


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    """Remove members. Up to version 2 a request removes one member, named by `member_id`."""

    group_id: str = string(about="the group")
    member_id: str = string(versions="0-2", default="", about="the member")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+", default=(), about="the members")


class MemberResponse(Struct):
    """The result for one member."""

    member_id: str = string(versions="3+", about="the member of the request")
    group_instance_id: str | None = string(versions="3+", nullable="3+", about="the instance id of the request")
    error_code: int = int16(versions="3+", default=0, about="0, or why the member was not removed")


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    """The members that have left."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(default=0, about="0, or an error of the whole request")
    members: list[MemberResponse] = array(MemberResponse, versions="3+", default=(), about="one for each member")


declare(LeaveGroupRequest, LeaveGroupResponse)
