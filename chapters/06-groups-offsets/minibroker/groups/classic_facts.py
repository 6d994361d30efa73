"""The facts about a classic group: its generation, its leader, its protocol, its members. A pure module.

`ClassicFacts` has the facts, checks requests against them, and turns them into answers and records. Only
`_become` changes the state, by the table in `classic_transitions`. `ClassicGroup`, in `classic`, is the only subclass:
it handles the events, such as joins and leaves.
"""

from collections.abc import Callable, Sequence

from minibroker.groups.classic_members import Joining, Member, Members
from minibroker.groups.classic_timers import NEVER, JoinTimer
from minibroker.groups.classic_transitions import NEXT, Cause, GroupState
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.records import GroupMetadataKey, GroupMetadataValue, GroupRecord, MemberMetadata
from minibroker.groups.steps import Client, Reply, Step
from minibroker.groups.subscription import CONSUMER_PROTOCOL, subscribed_topics
from minibroker.groups.tables.join_group import JoinGroupResponse, JoinGroupResponseMember
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker.wire.codes import ErrorCode

SKIP_ASSIGNMENT_VERSION = 9
"""From this version of JoinGroup, the response can tell a leader to keep the assignment (KIP-814)."""


class ClassicFacts:
    """The state of one classic group, with checks, answers and records that are derived from it."""

    def __init__(
        self, group_id: str, settings: Callable[[], GroupSettings], new_member_id: Callable[[str], str]
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = -1
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.is_stored = False
        """Whether the log has a record of the group."""
        self._settings = settings
        self._new_member_id = new_member_id
        self._members = Members()
        self._join_timer = JoinTimer()
        self._sync_deadline_ms = NEVER

    def _become(self, cause: Cause, now_ms: int) -> None:
        following = NEXT.get((self.state, cause))
        assert following is not None, f"group {self.group_id}: no transition from {self.state.value} when {cause.value}"
        self.state = following
        self.state_since_ms = now_ms

    def _drop(self, step: Step, member_id: str) -> None:
        """Remove a member or a pending id. If it was the leader, the longest-standing member becomes the leader."""
        step.replies += self._members.remove(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._members.by_id), None)

    def end(self, code: ErrorCode) -> Step:
        """End a group that is deleted or converted. Its parked requests are answered with `code`."""
        self._become(Cause.ENDED, self.state_since_ms)
        parked = [*self._members.joins.values(), *self._members.syncs.values()]
        self._members = Members()
        self._join_timer.stop()
        self._sync_deadline_ms = NEVER
        return Step(replies=[Reply(ticket, code) for ticket in parked])

    # Queries ----------------------------------------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """Whether the group can be dropped: it has no members, no pending ids, and no record in the log."""
        return not (self.is_stored or self._members or self._members.pending)

    def members(self) -> Sequence[Member]:
        """The members, in the order in which they joined."""
        return tuple(self._members)

    def deadline_ms(self) -> int | None:
        """When to call `on_time` next, or None. No time limit ends before that time."""
        earliest_ms = min(self._members.deadline_ms, self._join_timer.deadline_ms, self._sync_deadline_ms)
        return None if earliest_ms == NEVER else earliest_ms

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members read; None if they are unknown, as in a group of Connect's workers."""
        if self.protocol_type != CONSUMER_PROTOCOL or self.protocol_name is None:
            return None
        # A member that is joining might not support the protocol of the last generation.
        metadata = [it.protocols.get(self.protocol_name) for it in self._members]
        return subscribed_topics(it for it in metadata if it is not None)

    # Checks -----------------------------------------------------------------------------------------------------------

    def _check_join(self, joining: Joining) -> None:
        request, settings = joining.request, self._settings()
        if self.state is GroupState.DEAD:
            raise GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            raise GroupRefused(ErrorCode.INVALID_SESSION_TIMEOUT)
        is_same_type = request.protocol_type == self.protocol_type or not self._members
        if not (request.protocol_type and is_same_type and self._members.supports_one_of(joining.protocols)):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _has_room(self, member_id: str) -> bool:
        # During a rebalance only members that have joined again count. If `group.max.size` was lowered, the members
        # that join last are refused.
        inside = self._members.joins if self.state is GroupState.PREPARING_REBALANCE else self._members.by_id
        return member_id in inside or len(inside) < self._settings().max_size

    def _check_member(self, member_id: str, instance_id: str | None, generation_id: int) -> Member:
        """The member that sent a request; raises GroupRefused unless the request is of the current generation."""
        if self.state is GroupState.DEAD:
            raise GroupRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = self._members.check(member_id, instance_id)
        if generation_id != self.generation_id:
            raise GroupRefused(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _check_sync(self, request: SyncGroupRequest) -> Member:
        member = self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        named = (request.protocol_type, self.protocol_type), (request.protocol_name, self.protocol_name)
        if any(theirs is not None and theirs != ours for theirs, ours in named):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        return member

    def check_commit(
        self,
        member_id: str,
        generation_id: int,
        instance_id: str | None,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Raise GroupRefused if the member or the generation of a commit is wrong. Otherwise renew its session."""
        names_a_member = generation_id >= 0 or member_id != "" or instance_id is not None
        if self.state is GroupState.EMPTY and generation_id < 0:
            return  # The commit comes from a tool, or from a consumer that assigns partitions to itself.
        if not names_a_member:
            # In old versions of TxnOffsetCommit, a producer does not name the member whose offsets it commits.
            if is_transactional:
                return
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._check_member(member_id, instance_id, generation_id)
        if self.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
            raise GroupRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is not GroupState.COMPLETING_REBALANCE:
            self._members.renew(member, now_ms)

    # Answers ----------------------------------------------------------------------------------------------------------

    def _joined(self, member: Member) -> JoinGroupResponse:
        """The current generation, for one of its members. Only the leader gets the metadata of all members."""
        assert self.protocol_name is not None
        name = self.protocol_name
        listed = self._members if member.member_id == self.leader_id else ()
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=it.member_id, group_instance_id=it.instance_id, metadata=it.protocols[name]
                )
                for it in listed
            ],
        )

    def _answer_syncs(self, code: ErrorCode, now_ms: int) -> list[Reply]:
        """Answer all parked syncs, and renew the sessions of their members, which sent no heartbeats while waiting."""
        replies: list[Reply] = []
        for member, ticket in self._members.take_syncs():
            self._members.renew(member, now_ms)
            replies.append(Reply(ticket, code or self._synced(member)))
        return replies

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    # Static members ---------------------------------------------------------------------------------------------------

    def _swap(self, old: Member, new: Member, now_ms: int) -> list[Reply]:
        """Replace a static member. If it was the leader, the new member becomes the leader."""
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        replies = self._members.replace(old, new)
        self._members.renew(new, now_ms)
        return replies

    def _keep_assignment(self, step: Step, old: Member, new: Member, joining: Joining) -> None:
        """Let a restarted static member keep its assignment. Its join is answered when its new id is stored."""

        def undo(code: ErrorCode) -> Step:
            self._swap(new, old, joining.now_ms)
            return Step(replies=[Reply(it.ticket, code) for it in step.replies])

        step.replies.append(Reply(joining.ticket, self._restarted(old, new, joining.version)))
        step.records.append(self.record())
        step.on_refused = undo

    def _restarted(self, old: Member, new: Member, version: int) -> JoinGroupResponse:
        """The current generation, for a restarted static member. Even as the leader, it must not assign anew."""
        response = self._joined(new)
        is_leader = new.member_id == self.leader_id
        if version >= SKIP_ASSIGNMENT_VERSION:
            response.skip_assignment = is_leader
        elif is_leader:
            # A client computes an assignment if the response names the client itself as the leader. So the response
            # names the client's old id as the leader.
            response.leader, response.members = old.member_id, []
        return response

    # Records ----------------------------------------------------------------------------------------------------------

    def record(self) -> GroupRecord:
        """The record of the group. It must not be written during a rebalance: it would be loaded as `Stable`."""
        assert self.state in (GroupState.EMPTY, GroupState.STABLE), self.state
        return GroupRecord(GroupMetadataKey(group_id=self.group_id), self._as_value(self.protocol_name))

    def snapshot(self) -> GroupMetadataValue:
        """The group as it is now, in any state. A group that was rebalancing must rebalance after it is restored."""
        # A member that has just joined might not support the protocol of the last generation.
        return self._as_value(self._members.select_protocol() if self._members else self.protocol_name)

    def _as_value(self, protocol_name: str | None) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation_id,
            protocol=protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=[_stored(member, protocol_name or "") for member in self._members],
        )

    def _add_first_record(self, step: Step, now_ms: int) -> None:
        """Add the record of a group without a generation. If the log refuses it, the group is unused again."""
        first = GroupMetadataValue(
            protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=now_ms, members=[]
        )
        self.is_stored = True
        if self.state is GroupState.EMPTY:
            # The group may have only a pending id, and stay empty. Then the retention time of its offsets begins now.
            self.state_since_ms = now_ms

        def undo(code: ErrorCode) -> Step:
            tickets = [it.ticket for it in step.replies] + list(self._members.joins.values())
            self._take_over(first, now_ms)
            self.is_stored = False
            return Step(replies=[Reply(ticket, code) for ticket in tickets])

        step.records.append(GroupRecord(GroupMetadataKey(group_id=self.group_id), first))
        step.on_refused = undo

    def _take_over(self, value: GroupMetadataValue, now_ms: int) -> None:
        """Restore the group from a record. The sessions of its members begin now."""
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_since_ms = value.current_state_timestamp
        self.generation_id = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        self.is_stored = True
        self._members = Members()
        self._join_timer.stop()
        self._sync_deadline_ms = NEVER
        for stored in value.members:
            member = _loaded(stored, value.protocol or "")
            self._members.add(member)
            self._members.renew(member, now_ms)


def _stored(member: Member, protocol_name: str) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client.id,
        client_host=member.client.host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.protocols[protocol_name],
        assignment=member.assignment,
    )


def _loaded(stored: MemberMetadata, protocol_name: str) -> Member:
    """The member in a record, which has the member's metadata for the group's protocol only."""
    has_own = stored.rebalance_timeout >= 0
    return Member(
        stored.member_id,
        stored.group_instance_id,
        Client(stored.client_id, stored.client_host),
        stored.session_timeout,
        stored.rebalance_timeout if has_own else stored.session_timeout,
        {protocol_name: stored.subscription},
        stored.assignment,
    )
