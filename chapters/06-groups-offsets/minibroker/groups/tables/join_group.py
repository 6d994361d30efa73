"""JoinGroup (key 11): a member joins a group of the classic protocol, or joins again. A pure module.

The answer waits until every member has joined, and names the generation and the leader. Version 1 adds the rebalance
timeout. Since version 4 a new member joins a second time, with the member id from the first answer (KIP-394). Version 5
adds static members (KIP-345), version 7 the type of the protocol (KIP-559), and version 8 a reason (KIP-800). Version 9
can tell the leader not to compute an assignment (KIP-814).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, bytes_, int16, int32, string

NO_GENERATION = -1


class JoinGroupRequestProtocol(Struct):
    """A protocol that the member supports. For consumers it is a way to assign partitions, such as `range`."""

    name: str = string(about="the protocol, such as range")
    metadata: bytes = bytes_(about="bytes that the leader gets; for a consumer, its subscription")


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    """Ask to be a member of a group."""

    group_id: str = string(about="the group")
    session_timeout_ms: int = int32(about="the member is removed after this time without a heartbeat")
    rebalance_timeout_ms: int = int32(
        versions="1+",
        default=-1,
        ignorable=True,
        about="how long a rebalance waits for the member to join again; in version 0, the session timeout",
    )
    member_id: str = string(about="the member, or empty if the coordinator has not given it an id")
    group_instance_id: str | None = string(
        versions="5+", nullable="5+", default=None, about="the id of a static member, which it keeps across restarts"
    )
    protocol_type: str = string(about="the kind of group, such as consumer or connect")
    protocols: list[JoinGroupRequestProtocol] = array(
        JoinGroupRequestProtocol, about="the protocols that the member supports, the preferred one first"
    )
    reason: str | None = string(
        versions="8+", nullable="8+", default=None, ignorable=True, about="why the member joins, for the broker's log"
    )


class JoinGroupResponseMember(Struct):
    """A member of the new generation. Only the leader's response lists the members."""

    member_id: str = string(about="the member")
    group_instance_id: str | None = string(
        versions="5+", nullable="5+", default=None, ignorable=True, about="the id of a static member"
    )
    metadata: bytes = bytes_(about="its metadata for the chosen protocol")


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    """The new generation, or why there is none."""

    throttle_time_ms: int = int32(
        versions="2+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(default=0, about="0, or why the member has not joined")
    generation_id: int = int32(default=NO_GENERATION, about="grows with every rebalance; -1 if there is an error")
    protocol_type: str | None = string(
        versions="7+", nullable="7+", default=None, ignorable=True, about="the kind of group, or null"
    )
    protocol_name: str | None = string(nullable="7+", default="", about="the chosen protocol of the group")
    leader: str = string(default="", about="the member that computes the assignment")
    skip_assignment: bool = boolean(
        versions="9+", default=False, about="whether the leader must keep the assignment as it is"
    )
    member_id: str = string(default="", about="the id of the member that asked")
    members: list[JoinGroupResponseMember] = array(
        JoinGroupResponseMember, default=(), about="all members, if this one is the leader"
    )


declare(JoinGroupRequest, JoinGroupResponse)
