"""One group of the new protocol (KIP-848). A pure module.

The coordinator assigns partitions, and each member moves to its new assignment at its own pace: no member stops because
another one joins or leaves. Members send nothing but heartbeats.

There are three epochs. A change of members or topics increases the *group epoch*. The *target epoch* is the group epoch
for which the target assignment was computed. The *member epoch* is the target epoch that a member has reached.

    member epoch ≤ target epoch ≤ group epoch

A handler returns a `Step` with records. The state changes only when the driver applies these records. So if the log
refuses them, there is nothing to undo. Time limits are not part of the state, and change at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from minibroker.groups.consumer_classic import ClassicRequests
from minibroker.groups.consumer_facts import ConsumerFacts, ConsumerGroupState
from minibroker.groups.consumer_members import NOTHING, Member, MemberState, current_record, is_within, owned_in
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.rebalancing import Plan
from minibroker.groups.records import ConsumerGroupMemberMetadataValue, GroupRecord
from minibroker.groups.regexes import InvalidRegex, Matcher
from minibroker.groups.steps import Client, Reply, Step, Ticket
from minibroker.groups.tables.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.leave_group import LeaveGroupRequest
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.metadata.image import Image, TopicImage
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

OWN_MEMBER_ID_VERSION = 1  # from this version of ConsumerGroupHeartbeat the client makes the member id
__all__ = ["ConsumerGroup", "ConsumerGroupState", "InvalidRegex", "Matcher"]


class ConsumerGroup(ConsumerFacts):
    """One group of the new protocol: the handlers of its requests."""

    def __init__(
        self,
        group_id: str,
        settings: Callable[[], GroupSettings],
        matcher: Matcher,
        new_member_id: Callable[[str], str],
    ) -> None:
        """`matcher` compiles a regular expression; `new_member_id` makes a member id from an instance or client id."""
        super().__init__(group_id, settings, matcher, new_member_id)
        self._classic = ClassicRequests(self, settings, new_member_id)
        self._seen_topics: Mapping[str, TopicImage] | None = None
        """The topics for which the metadata hash is up to date. The hash is checked again if the image has others."""

    # Members of the new protocol --------------------------------------------------------------------------------------

    def on_heartbeat(
        self,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client: Client,
        image: Image,
        now_ms: int,
    ) -> Step:
        """Handle ConsumerGroupHeartbeat, with which a member joins, stays in the group, or leaves."""
        self.image = image
        try:
            check_request(request, version, self._settings().consumer_assignors)
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                records, response = self._leave(request, now_ms)
            else:
                records, response = self._beat(request, client, now_ms)
        except GroupRefused as refused:
            response = ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=str(refused))
            return Step(replies=[Reply(ticket, response)])
        return Step(records, [Reply(ticket, response)])

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> tuple[list[GroupRecord], ConsumerGroupHeartbeatResponse]:
        """Remove a member. A static member that leaves only for a while stays a member, and keeps its partitions."""
        member = self.member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
        if request.member_epoch == LEAVE_EPOCH:
            return self.removal([member], now_ms), response
        # A static member that has left consumes nothing, so the partitions that it had to give up are free.
        gone = replace(member, epoch=STATIC_LEAVE_EPOCH, state=MemberState.STABLE, revoking=NOTHING)
        return [current_record(self.group_id, gone)], response

    def _beat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, now_ms: int
    ) -> tuple[list[GroupRecord], ConsumerGroupHeartbeatResponse]:
        """Handle a heartbeat of a member that joins or stays, in the three steps of `rebalancing`."""
        before, base = self._find(request, client)
        after = replace(base, subscription=_updated(base.subscription, request, client))
        plan = Plan(self.facts, self.surroundings(now_ms))
        has_new_topics = self._seen_topics is not self.image.topics
        plan.update_member(before, after, has_new_topics=has_new_topics)
        if plan.epoch == self.facts.epoch:
            self._seen_topics = self.image.topics
        target = plan.update_target(before, after)
        member = after
        if plan.records or has_new_topics or not after.is_reconciled_to(plan.target_epoch):
            member = plan.reconcile(before, after, target, owned_in(request.topic_partitions))
        self.timers.renew_session(member.member_id, now_ms + self._session_ms(member))
        return plan.records, self._response(request, before, member)

    def _response(
        self, request: ConsumerGroupHeartbeatRequest, before: Member | None, member: Member
    ) -> ConsumerGroupHeartbeatResponse:
        """The answer. It has the assignment if that has changed, or if the member joins or sends all fields."""
        has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        is_full = request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None
        is_changed = before is None or not _has_same_partitions(before, member)
        has_assignment = request.member_epoch == JOIN_EPOCH or is_full or is_changed
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings().consumer_heartbeat_interval_ms,
            assignment=_assignment(member) if has_assignment else None,
        )

    # Finding the member -----------------------------------------------------------------------------------------------

    def _find(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> tuple[Member | None, Member]:
        """The member as the group knows it, or None, and the member to which the heartbeat's changes apply.

        The two have different ids if a restarted static member takes its predecessor's place."""
        if request.member_epoch == JOIN_EPOCH:
            return self._find_joining(request, client)
        member = self.member(request.member_id, request.instance_id)
        _check_epoch(member, request)
        return member, member

    def _find_joining(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> tuple[Member | None, Member]:
        # In version 0 the coordinator makes the member id.
        member_id = request.member_id or self._new_member_id(request.instance_id or client.id)
        predecessor_id = self.facts.static_members.get(request.instance_id or "", member_id)
        before = self.facts.members.get(predecessor_id)
        if before is None:
            if len(self.facts.members) >= self._settings().consumer_max_size:
                raise GroupRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
            return None, Member(member_id)
        if before.member_id == member_id:
            return before, replace(before, epoch=0) if before.has_left_for_a_while else before
        # Unlike in the classic protocol, a restarted static member must wait until its predecessor has left.
        if before.classic is None and not before.has_left_for_a_while:
            raise GroupRefused(ErrorCode.UNRELEASED_INSTANCE_ID)
        return before, Member(member_id, before.subscription, assigned=before.assigned)

    # Members of the classic protocol ----------------------------------------------------------------------------------

    def on_classic_join(
        self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, image: Image, now_ms: int
    ) -> Step:
        """Handle JoinGroup of a member of the classic protocol."""
        self.image = image
        return _answered(ticket, lambda: self._classic.on_join(request, version, client, now_ms))

    def on_classic_sync(
        self, ticket: Ticket, request: SyncGroupRequest, _version: int, image: Image, now_ms: int
    ) -> Step:
        """Handle SyncGroup of a member of the classic protocol."""
        self.image = image
        return _answered(ticket, lambda: ([], self._classic.on_sync(request, now_ms)))

    def on_classic_heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Handle Heartbeat of a member of the classic protocol."""
        try:
            return self._classic.on_heartbeat(request, now_ms)
        except GroupRefused as refused:
            return refused.code

    def on_classic_leave(self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int) -> Step:
        """Handle LeaveGroup, which may name members of both protocols."""
        return _answered(ticket, lambda: self._classic.on_leave(request, version, now_ms))


def _answered(ticket: Ticket, event: Callable[[], tuple[list[GroupRecord], Response]]) -> Step:
    try:
        records, response = event()
    except GroupRefused as refused:
        return Step(replies=[Reply(ticket, refused.code)])
    return Step(records, [Reply(ticket, response)])


# Requests -------------------------------------------------------------------------------------------------------------


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Raise GroupRefused if a heartbeat is invalid for any group: a field is missing, or two contradict each other."""
    for name in ("group_id", "instance_id", "rack_id"):
        value = getattr(request, name)
        _demand(value is None or value.strip(), f"{name} is empty")
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    _demand(request.member_epoch >= STATIC_LEAVE_EPOCH, f"member_epoch is {request.member_epoch}, less than -2")
    # Only in version 0 does the coordinator give a new member its id (KIP-1082).
    has_no_id_yet = request.member_epoch == JOIN_EPOCH and version < OWN_MEMBER_ID_VERSION
    _demand(has_no_id_yet or request.member_id.strip(), "member_id is empty")
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        _demand(request.instance_id, "member_epoch is -2, but only a static member can leave for a while")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        message = f"the assignor {request.server_assignor[:64]!a} is not one of {', '.join(assignors)}"
        raise GroupRefused(ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    _demand(request.rebalance_timeout_ms != -1, "a member that joins must send rebalance_timeout_ms")
    _demand(request.topic_partitions == [], "a member that joins must send topic_partitions, and it must be empty")
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    _demand(has_subscription, "a member that joins must send subscribed_topic_names or subscribed_topic_regex")


def _demand(condition: object, message: str) -> None:
    if not condition:
        raise GroupRefused(ErrorCode.INVALID_REQUEST, message)


def _check_epoch(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise GroupRefused unless the request has the member's epoch, or the previous one after a lost answer."""
    owned = owned_in(request.topic_partitions)
    has_missed_it = request.member_epoch == member.previous_epoch < member.epoch
    if request.member_epoch == member.epoch:
        return
    # A member with its previous epoch must not own partitions that are no longer assigned to it.
    if not (has_missed_it and owned is not None and is_within(owned, member.assigned)):
        message = f"member {member.member_id} sent epoch {request.member_epoch}, but its epoch is {member.epoch}"
        raise GroupRefused(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _updated(
    old: ConsumerGroupMemberMetadataValue, request: ConsumerGroupHeartbeatRequest, client: Client
) -> ConsumerGroupMemberMetadataValue:
    """The subscription with the changes of a heartbeat. A null field, or -1, means no change."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return ConsumerGroupMemberMetadataValue(
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.id,
        client_host=client.host,
        # Some clients send their topics in another order each time. Sorting makes these lists equal.
        subscribed_topic_names=old.subscribed_topic_names if names is None else sorted(set(names)),
        subscribed_topic_regex=old.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=(
            old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=old.server_assignor if request.server_assignor is None else request.server_assignor,
        classic_member_metadata=None,
    )


# Answers --------------------------------------------------------------------------------------------------------------


def _has_same_partitions(before: Member, after: Member) -> bool:
    if before.assigned is after.assigned:
        return True
    are_topics_equal = before.assigned.keys() == after.assigned.keys()
    return are_topics_equal and all(before.assigned[it].keys() == after.assigned[it].keys() for it in after.assigned)


def _assignment(member: Member) -> ConsumerGroupAssignment:
    return ConsumerGroupAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=it, partitions=sorted(member.assigned[it]))
            for it in sorted(member.assigned)
        ]
    )
