"""For each group API, the answer that has only an error. A pure module.

Some answers have one error for the whole request, others one for each group, topic or member. The place of the error
also depends on the version.
"""

from collections.abc import Callable
from typing import Any

from minibroker.groups.offsets import refused_commit, refused_topics
from minibroker.groups.tables.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from minibroker.groups.tables.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker.groups.tables.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from minibroker.groups.tables.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from minibroker.groups.tables.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupResponse
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse
from minibroker.groups.tables.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker.groups.tables.offset_commit import OffsetCommitRequest
from minibroker.groups.tables.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup

_FETCH_CODE_FROM = 2
_FETCH_GROUPS_FROM = 8


def refusal(request: Request, version: int, code: ErrorCode) -> Response:
    """The answer to a request that is refused as a whole."""
    return _REFUSALS[type(request)](request, version, code)


def _join(request: JoinGroupRequest, _version: int, code: ErrorCode) -> Response:
    return JoinGroupResponse(error_code=code, member_id=request.member_id)


def _heartbeat(_request: HeartbeatRequest, _version: int, code: ErrorCode) -> Response:
    # As in Kafka, a heartbeat succeeds while the coordinator is loading, so that the member does not join again.
    is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else code)


def _consumer_heartbeat(_request: ConsumerGroupHeartbeatRequest, _version: int, code: ErrorCode) -> Response:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=code.message, heartbeat_interval_ms=0)


def _offset_fetch(request: OffsetFetchRequest, version: int, code: ErrorCode) -> Response:
    if version >= _FETCH_GROUPS_FROM:
        groups = [OffsetFetchResponseGroup(group_id=it.group_id, topics=[], error_code=code) for it in request.groups]
        return OffsetFetchResponse(groups=groups)
    if version >= _FETCH_CODE_FROM:
        return OffsetFetchResponse(topics=[], error_code=code)
    return OffsetFetchResponse(topics=refused_topics(request.topics, code))


def _describe(request: DescribeGroupsRequest, _version: int, code: ErrorCode) -> Response:
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id=it, error_code=code) for it in request.groups])


def _consumer_describe(request: ConsumerGroupDescribeRequest, _version: int, code: ErrorCode) -> Response:
    groups = [DescribedConsumerGroup(group_id=it, error_code=code) for it in request.group_ids]
    return ConsumerGroupDescribeResponse(groups=groups)


def _delete(request: DeleteGroupsRequest, _version: int, code: ErrorCode) -> Response:
    results = [DeletableGroupResult(group_id=it, error_code=code) for it in request.groups_names]
    return DeleteGroupsResponse(results=results)


_REFUSALS: dict[type[Request], Callable[[Any, int, ErrorCode], Response]] = {
    JoinGroupRequest: _join,
    SyncGroupRequest: lambda _request, _version, code: SyncGroupResponse(error_code=code),
    HeartbeatRequest: _heartbeat,
    LeaveGroupRequest: lambda _request, _version, code: LeaveGroupResponse(error_code=code),
    ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    OffsetCommitRequest: lambda request, _version, code: refused_commit(request, code),
    OffsetFetchRequest: _offset_fetch,
    OffsetDeleteRequest: lambda _request, _version, code: OffsetDeleteResponse(error_code=code),
    DescribeGroupsRequest: _describe,
    ConsumerGroupDescribeRequest: _consumer_describe,
    DeleteGroupsRequest: _delete,
    ListGroupsRequest: lambda _request, _version, code: ListGroupsResponse(error_code=code),
}
