"""DeleteGroups (key 42): delete groups without members, and their committed offsets (KIP-229). A pure module."""

from minibroker.wire.apis import declare
from minibroker.wire.schema import Request, Response, Struct, array, int16, int32, string


class DeleteGroupsRequest(Request, key=42, versions="0-2", flexible="2+"):
    """Delete these groups."""

    groups_names: list[str] = array(string, about="the groups")


class DeletableGroupResult(Struct):
    """The result for one group."""

    group_id: str = string(about="the group")
    error_code: int = int16(default=0, about="0, or why the group was not deleted")


class DeleteGroupsResponse(Response, key=42, versions="0-2", flexible="2+"):
    """The groups that were deleted."""

    throttle_time_ms: int = int32(
        default=0, about="how long the broker stops reading from the client, because of a quota"
    )
    results: list[DeletableGroupResult] = array(DeletableGroupResult, about="one for each group of the request")


declare(DeleteGroupsRequest, DeleteGroupsResponse)
