"""Members of the classic protocol in a group of the new protocol. A pure module.

Such a member does not notice that its group has been converted. It joins, syncs, and sends heartbeats as before, but
the coordinator computes the assignment instead of a leader.

    in a classic group              in a group of the new protocol
    generation                      the member epoch
    JoinGroup                       handled like a heartbeat with all fields; never parked
    SyncGroup                       answered at once, with the partitions that the member has now
    REBALANCE_IN_PROGRESS           the member is behind the group epoch, must give up partitions, or can get more
    owned partitions                those that the subscription lists; it lists none in the eager protocol
"""

from collections.abc import Callable
from dataclasses import replace

from minibroker.groups.consumer_facts import ConsumerFacts
from minibroker.groups.consumer_members import Member, MemberState
from minibroker.groups.conversion import assignment_bytes, classic_metadata, owned_by
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.rebalancing import Plan
from minibroker.groups.records import ConsumerGroupMemberMetadataValue, GroupRecord
from minibroker.groups.steps import Client
from minibroker.groups.subscription import (
    CONSUMER_PROTOCOL,
    ConsumerProtocolSubscription,
    InvalidSubscription,
    decode_subscription,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupResponse
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker.wire.codes import ErrorCode

MEMBER_ID_VERSION = 4  # from this version of JoinGroup a new member must join with an id (KIP-394)
MANY_LEAVE_VERSION = 3


class ClassicRequests:
    """Handles the requests of members of the classic protocol. The handlers raise GroupRefused."""

    def __init__(
        self, group: ConsumerFacts, settings: Callable[[], GroupSettings], new_member_id: Callable[[str], str]
    ) -> None:
        self._group = group
        self._settings = settings
        self._new_member_id = new_member_id

    # Join -------------------------------------------------------------------------------------------------------------

    def on_join(
        self, request: JoinGroupRequest, version: int, client: Client, now_ms: int
    ) -> tuple[list[GroupRecord], JoinGroupResponse]:
        """A member joins. The answer has its epoch, and does not wait for other members."""
        subscription = self._check_join(request)
        if not request.member_id and request.group_instance_id is None and version >= MEMBER_ID_VERSION:
            code, member_id = ErrorCode.MEMBER_ID_REQUIRED, self._new_member_id(client.id)
            return [], JoinGroupResponse(error_code=code, member_id=member_id)
        before, base = self._find(request, client)
        after = replace(base, subscription=_subscription(request, client, subscription))
        plan = Plan(self._group.facts, self._group.surroundings(now_ms))
        plan.update_member(before, after, has_new_topics=True)
        target = plan.update_target(before, after)
        member = plan.reconcile(before, after, target, owned_by(subscription, self._group.image))
        self._start_timers(member, request.session_timeout_ms, now_ms)
        response = JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=request.protocols[0].name,
        )
        return plan.records, response

    def _check_join(self, request: JoinGroupRequest) -> ConsumerProtocolSubscription:
        settings, members = self._settings(), self._group.members
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            raise GroupRefused(ErrorCode.INVALID_SESSION_TIMEOUT)
        is_known = request.member_id in members or request.group_instance_id in self._group.facts.static_members
        if not is_known and len(members) >= settings.consumer_max_size:
            raise GroupRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if request.protocol_type != CONSUMER_PROTOCOL or not self._supports_one_of(request):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            # A consumer sends the same subscription with each of its protocols.
            return decode_subscription(request.protocols[0].metadata)
        except InvalidSubscription as error:
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error

    def _supports_one_of(self, request: JoinGroupRequest) -> bool:
        """Whether all members of the classic protocol, and the joining one, have a protocol in common."""
        names = {it.name for it in request.protocols}
        for member in self._group.members.values():
            if member.classic is not None and member.member_id != request.member_id:
                names &= {it.name for it in member.classic.supported_protocols}
        return bool(names)

    def _find(self, request: JoinGroupRequest, client: Client) -> tuple[Member | None, Member]:
        """The member as the group knows it, or None, and the member to which the request's changes apply."""
        instance_id = request.group_instance_id
        if instance_id is not None and request.member_id:
            known = self._group.member(request.member_id, instance_id)
            return known, known
        predecessor_id = self._group.facts.static_members.get(instance_id or "")
        member_id = request.member_id or self._new_member_id(instance_id or client.id)
        if predecessor_id is not None:
            predecessor = self._group.members[predecessor_id]
            return predecessor, Member(member_id, predecessor.subscription, assigned=predecessor.assigned)
        found = self._group.members.get(member_id)
        return found, found or Member(member_id)

    def _start_timers(self, member: Member, session_timeout_ms: int, now_ms: int) -> None:
        timers = self._group.timers
        timers.renew_session(member.member_id, now_ms + session_timeout_ms)
        # The member must send SyncGroup within the rebalance timeout.
        timers.wait_for(member.member_id, now_ms + member.subscription.rebalance_timeout_ms)

    # Sync, heartbeat, leave -------------------------------------------------------------------------------------------

    def _member(self, member_id: str, instance_id: str | None, generation_id: int) -> Member:
        member = self._group.member(member_id, instance_id)
        if member.classic is None:
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation_id != member.epoch:
            raise GroupRefused(ErrorCode.ILLEGAL_GENERATION)
        return member

    def on_sync(self, request: SyncGroupRequest, now_ms: int) -> SyncGroupResponse:
        """Answer a member with its partitions."""
        member = self._member(request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0]
        named = (request.protocol_type, CONSUMER_PROTOCOL), (request.protocol_name, protocol.name)
        if any(theirs is not None and theirs != ours for theirs, ours in named):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        # A member that must give up partitions is not refused: it has to learn which ones before it joins again.
        if member.epoch < self._group.epoch and member.state is not MemberState.UNREVOKED:
            self._await_join(member, now_ms)
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        self._group.timers.has_acted(member.member_id)
        self._group.timers.renew_session(member.member_id, now_ms + member.classic.session_timeout_ms)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(member.assigned, protocol.metadata, self._group.image),
        )

    def _await_join(self, member: Member, now_ms: int) -> None:
        if not self._group.timers.is_waiting_for(member.member_id):
            self._group.timers.wait_for(member.member_id, now_ms + member.subscription.rebalance_timeout_ms)

    def on_heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Renew the member's session, and tell it whether it must join again."""
        member = self._member(request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        self._group.timers.renew_session(member.member_id, now_ms + member.classic.session_timeout_ms)
        can_get_more = member.state is MemberState.UNRELEASED and not self._group.facts.has_unreleased(member)
        if member.epoch < self._group.epoch or member.state is MemberState.UNREVOKED or can_get_more:
            self._await_join(member, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def on_leave(
        self, request: LeaveGroupRequest, version: int, now_ms: int
    ) -> tuple[list[GroupRecord], LeaveGroupResponse]:
        """Members leave. From version 3 on, each one has its own error."""
        if version < MANY_LEAVE_VERSION:
            member = self._leaving(MemberIdentity(member_id=request.member_id, group_instance_id=None))
            return self._group.removal([member], now_ms), LeaveGroupResponse()
        gone: dict[str, Member] = {}
        answers = []
        for identity in request.members:
            code = ErrorCode.NONE
            try:
                member = self._leaving(identity)
                gone[member.member_id] = member
            except GroupRefused as refused:
                code = refused.code
            asked = identity.member_id, identity.group_instance_id
            answers.append(MemberResponse(member_id=asked[0], group_instance_id=asked[1], error_code=code))
        records = self._group.removal(list(gone.values()), now_ms) if gone else []
        return records, LeaveGroupResponse(members=answers)

    def _leaving(self, identity: MemberIdentity) -> Member:
        """The member that leaves. It may be of the new protocol, if an administrator removes it."""
        instance_id, member_id = identity.group_instance_id, identity.member_id
        # An administrator removes a static member by its instance id alone.
        if instance_id is not None and not member_id:
            member_id = self._group.facts.static_members.get(instance_id, "")
        return self._group.member(member_id, instance_id)


def _subscription(
    request: JoinGroupRequest, client: Client, found: ConsumerProtocolSubscription
) -> ConsumerGroupMemberMetadataValue:
    has_timeout = request.rebalance_timeout_ms >= 0
    return ConsumerGroupMemberMetadataValue(
        instance_id=request.group_instance_id,
        rack_id=found.rack_id,
        client_id=client.id,
        client_host=client.host,
        subscribed_topic_names=sorted(set(found.topics)),
        rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
        classic_member_metadata=classic_metadata(
            request.session_timeout_ms, {it.name: it.metadata for it in request.protocols}
        ),
    )
