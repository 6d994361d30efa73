"""A group of the classic protocol: join, sync, heartbeat, leave. A pure module.

In each *generation*, the members of a group agree on which member reads which partitions:

    JoinGroup    every member joins; the answers wait for the last join, and name the generation and its leader
    SyncGroup    the leader sends all assignments; the answers wait for them, and give each member its own
    Heartbeat    a member shows that it is alive; the answer says whether it must join again

The coordinator does not decode subscriptions and assignments: it only passes these bytes from member to member. So
groups of other kinds, such as Connect's workers, can use the same protocol.

A handler changes the group at once. It returns replies, and records from which another coordinator can restore the
group. The replies are sent when the records are replicated. The driver calls `on_time` at `deadline_ms`, and drops a
group that is `DEAD`.
"""

from collections.abc import Iterable, Sequence

from minibroker.groups.classic_facts import ClassicFacts
from minibroker.groups.classic_members import Joining, Member
from minibroker.groups.classic_timers import NEVER
from minibroker.groups.classic_transitions import NEXT, Cause, GroupState
from minibroker.groups.errors import GroupRefused
from minibroker.groups.records import GroupMetadataValue
from minibroker.groups.steps import Client, Reply, Step, Ticket
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupResponse
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from minibroker.groups.tables.sync_group import SyncGroupRequest
from minibroker.wire.codes import ErrorCode

MEMBER_ID_VERSION = 4  # from this version of JoinGroup a new member joins a second time, with its id (KIP-394)
MEMBER_LIST_VERSION = 3  # from this version LeaveGroup has a list of members (KIP-345)


class ClassicGroup(ClassicFacts):
    """One classic group. `now_ms` is the time of day, because the group's record has a timestamp."""

    # Join -------------------------------------------------------------------------------------------------------------

    def on_join(self, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client, now_ms: int) -> Step:
        """A member joins, or joins again. The answer waits until all members have joined.

        The first member of a group leads it. If the leader has not come when the time for joining is over, the first
        member that has come leads. If only static members are left and none has come, the group waits once more.

        A refusal is a `Reply` with the code. Only MEMBER_ID_REQUIRED is a JoinGroupResponse, because it has the new id.
        A member that finds the group full is dropped, so that the others do not wait for it. If the group is unused
        after a refused first join, it ends (`Cause.ENDED`). Otherwise the first record of a new group is added.
        """
        step = Step()
        try:
            self._join(step, Joining(ticket, request, version, client, now_ms))
        except GroupRefused as refused:
            step.replies.append(Reply(ticket, refused.code))
        if self.is_unused:
            self._become(Cause.ENDED, now_ms)
        elif not self.is_stored:
            self._add_first_record(step, now_ms)
        return step

    def _join(self, step: Step, joining: Joining) -> None:
        self._check_join(joining)
        member_id, instance_id = joining.request.member_id, joining.request.group_instance_id
        predecessor = self._members.of_instance(instance_id)
        if not self._has_room(member_id or (predecessor.member_id if predecessor else "")):
            self._remove(step, [member_id], joining.now_ms)
            raise GroupRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if member_id in self._members.pending and instance_id is None:
            self._add(step, member_id, joining)
        elif member_id:
            self._rejoin(step, self._members.check(member_id, instance_id), joining)
        elif predecessor is not None:
            self._replace(step, predecessor, joining)
        elif instance_id is None and joining.version >= MEMBER_ID_VERSION:
            self._require_member_id(step, joining)
        else:
            self._add(step, self._new_member_id(instance_id or joining.client.id), joining)

    def _require_member_id(self, step: Step, joining: Joining) -> None:
        """Give a client an id, with which it must join again. Only that second join makes it a member.

        So a client that never gets its id leaves no member behind in the group.
        """
        member_id = self._new_member_id(joining.client.id)
        self._members.await_join(member_id, until_ms=joining.now_ms + joining.request.session_timeout_ms)
        response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        step.replies.append(Reply(joining.ticket, response))

    def _add(self, step: Step, member_id: str, joining: Joining) -> None:
        member = Member.of(member_id, joining)
        member.is_new = True
        self._join_timer.on_newcomer()
        self.protocol_type = joining.request.protocol_type
        self.leader_id = self.leader_id or member_id
        self._members.add(member)
        # A new member sends no heartbeats until its first join is answered, so that join has its own time limit.
        self._members.renew(member, joining.now_ms, self._settings().new_member_join_timeout_ms)
        self._park_join(step, member, joining)

    def _rejoin(self, step: Step, member: Member, joining: Joining) -> None:
        # A leader that joins a stable group again wants a new assignment, for example because a topic has grown.
        is_follower = member.member_id != self.leader_id
        is_settled = self.state is GroupState.COMPLETING_REBALANCE or (self.state is GroupState.STABLE and is_follower)
        if is_settled and member.is_unchanged(joining):
            self._members.renew(member, joining.now_ms)
            step.replies.append(Reply(joining.ticket, self._joined(member)))
        else:
            self._members.update(member, joining)
            self._park_join(step, member, joining)

    def _park_join(self, step: Step, member: Member, joining: Joining) -> None:
        step.replies += self._members.park_join(member, joining.ticket)
        self._members_changed(step, joining.now_ms)

    def _replace(self, step: Step, old: Member, joining: Joining) -> None:
        """A static member has restarted: give it its predecessor's place, under a new member id (KIP-345)."""
        new = Member.of(self._new_member_id(old.instance_id or ""), joining)
        step.replies += self._swap(old, new, joining.now_ms)
        # The assignment can be kept only if the restarted member's protocols do not change the group's protocol.
        if self.state is GroupState.STABLE and self._members.select_protocol() == self.protocol_name:
            self._keep_assignment(step, old, new, joining)
        else:
            self._park_join(step, new, joining)

    # Rebalance --------------------------------------------------------------------------------------------------------

    def _members_changed(self, step: Step, now_ms: int) -> None:
        """Begin a rebalance, or continue the one that has begun."""
        if (self.state, Cause.MEMBERS_CHANGE) in NEXT:
            self._rebalance(step, now_ms)
        self._finish_join(step, now_ms)

    def _rebalance(self, step: Step, now_ms: int) -> None:
        """Make all members join again: from now on, heartbeats are answered with REBALANCE_IN_PROGRESS."""
        step.replies += self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._sync_deadline_ms = NEVER
        delay_ms = self._settings().initial_rebalance_delay_ms if self.state is GroupState.EMPTY else None
        self._join_timer.start(now_ms, self._members.rebalance_timeout_ms, delay_ms)
        self._become(Cause.MEMBERS_CHANGE, now_ms)

    def _finish_join(self, step: Step, now_ms: int) -> None:
        """Begin the next generation if all members have joined, or if the time limit for joining has ended."""
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        are_complete = self._members.have_all_joined and not self._join_timer.is_initial
        if is_preparing and (are_complete or self._join_timer.is_over(now_ms)):
            self._begin_generation(step, now_ms)

    def _begin_generation(self, step: Step, now_ms: int) -> None:
        # A static member that has not joined may be restarting: it stays in the group until its session ends.
        for member in self._members.dynamic_absentees():
            self._drop(step, member.member_id)
        if self._members and not self._members.joins:
            self._join_timer.start(now_ms, self._members.rebalance_timeout_ms)
            return
        self._join_timer.stop()
        self.generation_id += 1
        if self._members:
            self._answer_joins(step, now_ms)
        else:
            self.protocol_name = None
            self._become(Cause.NONE_LEFT, now_ms)
            step.records.append(self.record())

    def _answer_joins(self, step: Step, now_ms: int) -> None:
        """Answer all joins with the new generation. Each member must then send a SyncGroup request."""
        if self.leader_id not in self._members.joins:
            self.leader_id = next(iter(self._members.joins))
        self.protocol_name = self._members.select_protocol()
        step.replies += [Reply(ticket, self._joined(member)) for member, ticket in self._members.take_joins()]
        self._members.begin_generation(now_ms)
        self._sync_deadline_ms = now_ms + self._members.rebalance_timeout_ms
        self._become(Cause.JOINED, now_ms)

    def _remove(self, step: Step, member_ids: Iterable[str], now_ms: int) -> None:
        """Remove members and pending ids. The other members join again, unless only pending ids were removed."""
        size = len(self._members)
        for member_id in member_ids:
            self._drop(step, member_id)
        if len(self._members) < size:
            self._members_changed(step, now_ms)
        self._finish_join(step, now_ms)

    def rebalance(self, now_ms: int) -> Step:
        """Make all members join again: the group was converted to a classic one, or its assignment was not stored."""
        step = Step()
        self._members_changed(step, now_ms)
        return step

    # Sync -------------------------------------------------------------------------------------------------------------

    def on_sync(self, ticket: Ticket, request: SyncGroupRequest, _version: int, now_ms: int) -> Step:
        """A member asks for its assignment. The answer waits for the leader's request, which has all assignments.

        In a stable group it is answered at once. If the log refuses the assignments, the previous ones come back, the
        syncs are answered with the error, and all members join again.
        """
        try:
            member = self._check_sync(request)
        except GroupRefused as refused:
            return Step(replies=[Reply(ticket, refused.code)])
        self._members.unsynced.discard(member.member_id)
        if not self._members.unsynced:
            self._sync_deadline_ms = NEVER
        if self.state is GroupState.STABLE:
            self._members.renew(member, now_ms)
            return Step(replies=[Reply(ticket, self._synced(member))])
        step = Step(replies=self._members.park_sync(member, ticket))
        if member.member_id == self.leader_id:
            self._assign(step, {it.member_id: it.assignment for it in request.assignments}, now_ms)
        return step

    def _assign(self, step: Step, assignments: dict[str, bytes], now_ms: int) -> None:
        """Give each member its assignment. A member that the leader left out gets an empty one."""
        before = self._members.assign(assignments)
        step.replies += self._answer_syncs(ErrorCode.NONE, now_ms)
        self._become(Cause.ASSIGNED, now_ms)
        step.records.append(self.record())
        step.on_refused = lambda code: self._unassign(before, step.replies, code, now_ms)

    def _unassign(self, before: dict[str, bytes], replies: Sequence[Reply], code: ErrorCode, now_ms: int) -> Step:
        """Withdraw an assignment that the log has refused: a new coordinator would not know it."""
        self._members.assign(before)
        step = self.rebalance(now_ms)
        step.replies += [Reply(it.ticket, code) for it in replies]
        return step

    # Heartbeat, leave, time -------------------------------------------------------------------------------------------

    def on_heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Renew the member's session, and tell it whether it must join again."""
        try:
            member = self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        except GroupRefused as refused:
            return refused.code
        self._members.renew(member, now_ms)
        is_preparing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def on_leave(self, ticket: Ticket, request: LeaveGroupRequest, version: int, now_ms: int) -> Step:
        """Members leave, or an administrator removes them. An administrator names static members by instance id.

        If only pending ids leave, no member joins again. But a generation that has waited for them may begin.
        """
        step, is_one = Step(), version < MEMBER_LIST_VERSION
        leaving = [MemberIdentity(member_id=request.member_id)] if is_one else request.members
        gone, results = self._members.check_leaving(leaving)
        self._remove(step, gone, now_ms)
        left = LeaveGroupResponse(error_code=results[0].error_code) if is_one else LeaveGroupResponse(members=results)
        step.replies.append(Reply(ticket, left))
        return step

    def on_time(self, now_ms: int) -> Step:
        """Act on every time limit that has ended. Sessions, pending ids, joins and syncs have one.

        A rebalance also ends the time limit of the syncs before it.
        """
        step, gone = Step(), self._members.expired(now_ms)
        if now_ms >= self._sync_deadline_ms:
            self._sync_deadline_ms = NEVER
            gone += self._members.unsynced
        self._remove(step, gone, now_ms)
        return step

    def load(self, value: GroupMetadataValue, now_ms: int) -> None:
        """Restore the group from its last record: `Stable`, with new sessions, or `Empty` if it has no members.

        If it has more members than `group.max.size` allows, because that was lowered, a rebalance begins at once.
        """
        self._take_over(value, now_ms)
        # All members must join again, and those beyond the limit are refused.
        if len(self._members) > self._settings().max_size:
            self._rebalance(Step(), now_ms)
