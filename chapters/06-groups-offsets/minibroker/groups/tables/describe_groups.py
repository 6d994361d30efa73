"""DescribeGroups (key 15): the states and the members of classic groups. A pure module.

Version 3 adds the operations that the client may do, version 4 static members (KIP-345), version 6 an error message and
an error for an unknown group (KIP-1043).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, boolean, bytes_, int16, int32, string
from minibroker.wire.tables.metadata import NO_AUTHORIZED_OPERATIONS


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    """Ask about groups."""

    groups: list[str] = array(string, about="the groups")
    include_authorized_operations: bool = boolean(
        versions="3+", default=False, about="whether to include the operations that the client may do on each group"
    )


class DescribedGroupMember(Struct):
    """One member of a group."""

    member_id: str = string(about="the member")
    group_instance_id: str | None = string(
        versions="4+", nullable="4+", default=None, ignorable=True, about="the id of a static member"
    )
    client_id: str = string(about="the client id of its last JoinGroup request")
    client_host: str = string(about="the address of its last JoinGroup request")
    member_metadata: bytes = bytes_(default=b"", about="its metadata for the group's protocol, if the group is stable")
    member_assignment: bytes = bytes_(default=b"", about="its assignment, if the group is stable")


class DescribedGroup(Struct):
    """One group."""

    error_code: int = int16(default=0, about="0, or why the group cannot be described")
    error_message: str | None = string(
        versions="6+", nullable="6+", default=None, ignorable=True, about="the error in words, or null"
    )
    group_id: str = string(about="the group")
    group_state: str = string(
        default="", about="Empty, PreparingRebalance, CompletingRebalance, Stable or Dead; empty if there is an error"
    )
    protocol_type: str = string(default="", about="the kind of group, such as consumer")
    protocol_data: str = string(default="", about="the chosen protocol, if the group is stable")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, default=(), about="its members")
    authorized_operations: int = int32(
        versions="3+", default=NO_AUTHORIZED_OPERATIONS, about="one bit for each operation that the client may do"
    )


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    """The groups."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    groups: list[DescribedGroup] = array(DescribedGroup, about="one for each group of the request")


declare(DescribeGroupsRequest, DescribeGroupsResponse)
