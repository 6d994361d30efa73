"""The handlers of the group APIs: each finds the coordinators of a request, and passes the request to their shards.

Most requests are about one group. Others name many groups, which may have different coordinators, on this node or on
others. Such a request is split into one part for each group, and the answers to the parts are merged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from minibroker.coordinators.coordinator import Coordinator, Event
from minibroker.coordinators.refusing import refusal
from minibroker.coordinators.tickets import Ticket, answer_of, merged
from minibroker.groups.describing import GROUP_OPERATIONS, filter_of
from minibroker.groups.shard import GroupShard
from minibroker.groups.steps import Client, Step
from minibroker.groups.tables.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from minibroker.groups.tables.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker.groups.tables.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from minibroker.groups.tables.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.leave_group import LeaveGroupRequest
from minibroker.groups.tables.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker.groups.tables.offset_commit import OffsetCommitRequest
from minibroker.groups.tables.offset_delete import OffsetDeleteRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.partitions.slices import in_parts
from minibroker.partitions.waiting import Wait
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Request, Response, codes_in
from minibroker.wire.tables.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

MANY_GROUPS_FROM = 8
_GROUPS_PER_TURN = 200
_ELSEWHERE = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}

Act = Callable[[GroupShard, Ticket, int], Step]


class Pass(Protocol):
    """Passes a request to the coordinator of a group, if it is on this node."""

    def __call__(self, key: str, ticket: Ticket, event: Event[GroupShard], *, may_wait: bool = True) -> None:
        """`may_wait` says whether the request may wait until the coordinator can answer."""


class GroupHandlers:
    """The handlers of the group APIs. `pass_on` passes a request to the coordinator of its group."""

    def __init__(self, pass_on: Pass, coordinators: Callable[[], Iterable[Coordinator[GroupShard]]]) -> None:
        self._pass_on = pass_on
        self._coordinators = coordinators

    def add_handlers(self, registry: Registry) -> None:
        """Register the handlers of the group APIs."""
        registry.add(ApiKey.JOIN_GROUP, self.join)
        registry.add(ApiKey.SYNC_GROUP, self.sync)
        registry.add(ApiKey.HEARTBEAT, self.heartbeat)
        registry.add(ApiKey.LEAVE_GROUP, self.leave)
        registry.add(ApiKey.CONSUMER_GROUP_HEARTBEAT, self.consumer_heartbeat)
        registry.add(ApiKey.OFFSET_COMMIT, self.commit)
        registry.add(ApiKey.OFFSET_FETCH, in_parts(self.fetch, "groups", "groups", size=_GROUPS_PER_TURN))
        registry.add(ApiKey.OFFSET_DELETE, self.delete_offsets)
        registry.add(ApiKey.DESCRIBE_GROUPS, in_parts(self.describe, "groups", "groups", size=_GROUPS_PER_TURN))
        registry.add(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            in_parts(self.consumer_describe, "group_ids", "groups", size=_GROUPS_PER_TURN),
        )
        registry.add(ApiKey.DELETE_GROUPS, in_parts(self.delete, "groups_names", "results", size=_GROUPS_PER_TURN))
        registry.add(ApiKey.LIST_GROUPS, self.list)

    # One group --------------------------------------------------------------------------------------------------------

    def _answer(self, call: Call[Any], group_id: str, act: Act, *, may_wait: bool = True) -> Answer:
        return answer_of(self._ask(call.request, call.version, group_id, act, may_wait=may_wait))

    def _ask(self, request: Request, version: int, group_id: str, act: Act, *, may_wait: bool = True) -> Ticket:
        ticket = Ticket(lambda code: refusal(request, version, code))
        self._pass_on(group_id, ticket, lambda shard, now_ms: act(shard, ticket, now_ms), may_wait=may_wait)
        return ticket

    def _of_members(self, call: Call[Any], act: Act, *, may_wait: bool = True) -> Answer:
        """Answer a request of a member. A group with an empty name is refused."""
        request: Any = call.request
        if not request.group_id:
            return refusal(request, call.version, ErrorCode.INVALID_GROUP_ID)
        return self._answer(call, request.group_id, act, may_wait=may_wait)

    def join(self, call: Call[JoinGroupRequest]) -> Answer:
        """The handler of JoinGroup."""
        it, client = call.request, client_of(call)
        return self._of_members(call, lambda shard, ticket, now: shard.on_join(ticket, it, call.version, client, now))

    def sync(self, call: Call[SyncGroupRequest]) -> Answer:
        """The handler of SyncGroup."""
        it = call.request
        return self._of_members(call, lambda shard, ticket, now: shard.on_sync(ticket, it, call.version, now))

    def heartbeat(self, call: Call[HeartbeatRequest]) -> Answer:
        """The handler of Heartbeat."""
        it = call.request
        return self._of_members(call, lambda shard, ticket, now: shard.on_heartbeat(ticket, it, now), may_wait=False)

    def leave(self, call: Call[LeaveGroupRequest]) -> Answer:
        """The handler of LeaveGroup."""
        it = call.request
        return self._of_members(call, lambda shard, ticket, now: shard.on_leave(ticket, it, call.version, now))

    def consumer_heartbeat(self, call: Call[ConsumerGroupHeartbeatRequest]) -> Answer:
        """The handler of ConsumerGroupHeartbeat."""
        it, client = call.request, client_of(call)
        if not it.group_id:
            return refusal(it, call.version, ErrorCode.INVALID_REQUEST)
        return self._answer(
            call,
            it.group_id,
            lambda shard, ticket, now: shard.on_consumer_heartbeat(ticket, it, call.version, client, now),
            # A heartbeat must not wait, because librdkafka waits for the answer only until the next heartbeat is due.
            may_wait=False,
        )

    def commit(self, call: Call[OffsetCommitRequest]) -> Answer:
        """The handler of OffsetCommit. The name of the group may be empty, as in Kafka."""
        it = call.request
        return self._answer(
            call, it.group_id, lambda shard, ticket, now: shard.on_commit(ticket, it, call.version, now)
        )

    def delete_offsets(self, call: Call[OffsetDeleteRequest]) -> Answer:
        """The handler of OffsetDelete."""
        it = call.request
        return self._answer(call, it.group_id, lambda shard, ticket, _now: shard.on_delete_offsets(ticket, it))

    # Many groups ------------------------------------------------------------------------------------------------------

    def fetch(self, call: Call[OffsetFetchRequest]) -> Answer:
        """The handler of OffsetFetch. Up to version 7 a request names one group."""
        it = call.request
        if call.version < MANY_GROUPS_FROM:
            group = OffsetFetchRequestGroup(group_id=it.group_id, topics=it.topics)
            return or_disconnect(answer_of(self._fetch(it, group, call.version)))
        parts = [OffsetFetchRequest(groups=[group], require_stable=it.require_stable) for group in it.groups]
        tickets = [self._fetch(part, part.groups[0], call.version) for part in parts]
        return or_disconnect(merged(tickets, _merge(OffsetFetchResponse, "groups")))

    def _fetch(self, part: OffsetFetchRequest, group: OffsetFetchRequestGroup, version: int) -> Ticket:
        def act(shard: GroupShard, ticket: Ticket, _now_ms: int) -> Step:
            return shard.on_fetch(ticket, group, version, require_stable=part.require_stable)

        return self._ask(part, version, group.group_id, act)

    def _ask_each(
        self,
        group_ids: Iterable[str],
        version: int,
        part_of: Callable[[str], Request],
        act: Callable[[GroupShard, Ticket, str], Step],
    ) -> list[Ticket]:
        """Pass the request's part for each group to its coordinator. `part_of` makes the part."""

        def ask(group_id: str) -> Ticket:
            return self._ask(
                part_of(group_id), version, group_id, lambda shard, ticket, _now: act(shard, ticket, group_id)
            )

        return [ask(group_id) for group_id in group_ids]

    def describe(self, call: Call[DescribeGroupsRequest]) -> Answer:
        """The handler of DescribeGroups."""
        tickets = self._ask_each(
            call.request.groups,
            call.version,
            lambda group_id: DescribeGroupsRequest(groups=[group_id]),
            lambda shard, ticket, group_id: shard.on_describe(ticket, group_id, call.version),
        )
        has_operations = call.request.include_authorized_operations
        return merged(tickets, _merge(DescribeGroupsResponse, "groups", has_operations=has_operations))

    def consumer_describe(self, call: Call[ConsumerGroupDescribeRequest]) -> Answer:
        """The handler of ConsumerGroupDescribe."""
        tickets = self._ask_each(
            call.request.group_ids,
            call.version,
            lambda group_id: ConsumerGroupDescribeRequest(group_ids=[group_id]),
            lambda shard, ticket, group_id: shard.on_consumer_describe(ticket, group_id),
        )
        has_operations = call.request.include_authorized_operations
        return merged(tickets, _merge(ConsumerGroupDescribeResponse, "groups", has_operations=has_operations))

    def delete(self, call: Call[DeleteGroupsRequest]) -> Answer:
        """The handler of DeleteGroups."""
        tickets = self._ask_each(
            dict.fromkeys(call.request.groups_names),
            call.version,
            lambda group_id: DeleteGroupsRequest(groups_names=[group_id]),
            lambda shard, ticket, group_id: shard.on_delete(ticket, group_id),
        )
        return merged(tickets, _merge(DeleteGroupsResponse, "results"))

    def list(self, call: Call[ListGroupsRequest]) -> Answer:
        """The handler of ListGroups: the groups of all coordinators on this node."""
        request, version = call.request, call.version
        passes = filter_of(request.states_filter, request.types_filter)

        def ask(coordinator: Coordinator[GroupShard]) -> Ticket:
            ticket = Ticket(lambda code: refusal(request, version, code))
            coordinator.handle(ticket, lambda shard, _now: shard.on_list(ticket, passes))
            return ticket

        return merged([ask(it) for it in self._coordinators()], _listed)


def client_of(call: Call[Any]) -> Client:
    """The client of a call. Its address has a leading slash, as Java prints it."""
    return Client(call.header.client_id or "", "/" + call.session.peer.rpartition(":")[0])


def or_disconnect(answer: Answer) -> Answer:
    """Close the connection if the answer says that the coordinator is on another node, or that there is none.

    librdkafka repeats an OffsetFetch if its connection is lost. If it gets such an answer, it does not repeat the
    request, and never reads the partitions that it asked for (librdkafka #5586).
    """
    if isinstance(answer, Response):
        return _answered_here(answer)
    assert isinstance(answer, Wait)
    wait = answer

    def attempt() -> Response | None:
        response = wait.attempt()
        return None if response is None else _answered_here(response)

    return Wait(wait.keys, wait.timeout_ms, attempt=attempt, expire=lambda: _answered_here(wait.expire()))


def _answered_here(response: Response) -> Response:
    if not _ELSEWHERE.isdisjoint(codes_in(response)):
        raise Disconnect("this node does not coordinate the group now: the client must look for the coordinator again")
    return response


def _merge(
    response: type[Response], field: str, *, has_operations: bool = False
) -> Callable[[Sequence[Response]], Response]:
    """A function that joins the lists of several answers. `has_operations` adds the authorized operations."""

    def merge(parts: Sequence[Response]) -> Response:
        found = [it for part in parts for it in getattr(part, field)]
        for it in found if has_operations else ():
            if it.error_code == ErrorCode.NONE:
                it.authorized_operations = GROUP_OPERATIONS
        return response(**{field: found})

    return merge


def _listed(responses: Sequence[Any]) -> Response:
    groups = [it for response in responses for it in response.groups]
    # A coordinator that is loading cannot list its groups. A client would not notice that they are missing, so the
    # request is refused.
    codes = [it.error_code for it in responses if it.error_code != ErrorCode.NONE]
    if ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return ListGroupsResponse(groups=groups)
