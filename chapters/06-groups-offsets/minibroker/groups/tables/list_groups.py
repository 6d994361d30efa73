"""ListGroups (key 16): the groups whose coordinator this broker is. A pure module.

Version 4 filters by state (KIP-518), version 5 by type (KIP-848).
"""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    """Ask for all groups, or for some."""

    states_filter: list[str] = array(
        string, versions="4+", default=(), about="only groups in these states; none means all"
    )
    types_filter: list[str] = array(
        string, versions="5+", default=(), about="only groups of these types; none means all"
    )


class ListedGroup(Struct):
    """One group."""

    group_id: str = string(about="the group")
    protocol_type: str = string(about="the kind of group, such as consumer; empty if it has only offsets")
    group_state: str = string(versions="4+", default="", ignorable=True, about="its state, such as Stable")
    group_type: str = string(versions="5+", default="", ignorable=True, about="its type: classic or consumer")


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    """The groups."""

    throttle_time_ms: int = int32(
        versions="1+",
        default=0,
        ignorable=True,
        about="how long the broker stops reading from the client, because of a quota",
    )
    error_code: int = int16(default=0, about="0, or why the list is not complete")
    groups: list[ListedGroup] = array(ListedGroup, default=(), about="the groups")


declare(ListGroupsRequest, ListGroupsResponse)
