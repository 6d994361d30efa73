"""The members of a classic group: their ids, their parked requests, their sessions, their protocols. A pure module.

A time limit is stored as the time at which it ends. A heartbeat only sets a later time, and no timer is scheduled or
cancelled. No session ends before `Members.deadline_ms`. When that time has come, `expired` looks at all members.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.groups.classic_timers import NEVER
from minibroker.groups.errors import GroupRefused
from minibroker.groups.steps import Client, Reply, Ticket
from minibroker.groups.tables.join_group import JoinGroupRequest
from minibroker.groups.tables.leave_group import MemberIdentity, MemberResponse
from minibroker.wire.codes import ErrorCode


class Joining(NamedTuple):
    """A JoinGroup request with its ticket, version, client, and time of arrival."""

    ticket: Ticket
    request: JoinGroupRequest
    version: int
    client: Client
    now_ms: int

    @property
    def protocols(self) -> dict[str, bytes]:
        """The metadata for each protocol that the member supports; the preferred protocol is the first."""
        return {it.name: it.metadata for it in self.request.protocols}


@dataclass(slots=True)
class Member:
    """One member. `protocols` is in the order of its preference."""

    member_id: str
    instance_id: str | None  # None for a dynamic member
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    deadline_ms: int = NEVER
    is_new: bool = False  # its first join is parked, so it cannot send heartbeats yet

    @classmethod
    def of(cls, member_id: str, joining: Joining) -> "Member":
        """The member that a JoinGroup request describes."""
        request = joining.request
        member = cls(member_id, request.group_instance_id, joining.client, 0, 0, {})
        member.update(joining)
        return member

    def update(self, joining: Joining) -> None:
        """Set the timeouts and the protocols to those of a new request."""
        request = joining.request
        self.session_timeout_ms = request.session_timeout_ms
        # JoinGroup version 0 has no rebalance timeout. The session timeout counts instead.
        has_own = request.rebalance_timeout_ms >= 0
        self.rebalance_timeout_ms = request.rebalance_timeout_ms if has_own else request.session_timeout_ms
        self.protocols = joining.protocols

    def is_unchanged(self, joining: Joining) -> bool:
        """Whether a request has the same protocols as the member, with the same metadata and in the same order."""
        return list(self.protocols.items()) == list(joining.protocols.items())

    def vote(self, candidates: Collection[str]) -> str:
        """The protocol that the member prefers of those that all members support."""
        return next(name for name in self.protocols if name in candidates)


class Members:
    """The members of one group by id, in the order in which they joined.

    A JoinGroup or SyncGroup request that waits for the other members is parked here, under the id of its member. A
    *pending* id was given to a client that has not joined with it yet (KIP-394).
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.pending: dict[str, int] = {}  # the time until which each id is kept, in ms
        self.joins: dict[str, Ticket] = {}
        self.syncs: dict[str, Ticket] = {}
        self.unsynced: set[str] = set()  # the members that have not synced in this generation
        self.deadline_ms = NEVER
        self._ids_by_instance: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()  # how many members support each protocol

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    # The members ------------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a member. Its id is no longer pending."""
        self.pending.pop(member.member_id, None)
        self.by_id[member.member_id] = member
        self._supporters.update(member.protocols.keys())
        if member.instance_id is not None:
            self._ids_by_instance[member.instance_id] = member.member_id

    def update(self, member: Member, joining: Joining) -> None:
        """Set a member's timeouts and protocols to those of its new request."""
        self._supporters = self._supporters - Counter(member.protocols.keys())
        member.update(joining)
        self._supporters.update(member.protocols.keys())

    def replace(self, old: Member, new: Member) -> list[Reply]:
        """Replace a restarted static member. The old member is fenced, and its parked requests are answered."""
        new.assignment = old.assignment
        order = [new.member_id if it == old.member_id else it for it in self.by_id]
        replies = self.remove(old.member_id, ErrorCode.FENCED_INSTANCE_ID)
        self.add(new)
        self.by_id = {member_id: self.by_id[member_id] for member_id in order}
        return replies

    def remove(self, member_id: str, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> list[Reply]:
        """Remove a member or a pending id. The member's parked requests are answered with `code`."""
        self.pending.pop(member_id, None)
        member = self.by_id.pop(member_id, None)
        if not self.by_id and not self.pending:
            self.deadline_ms = NEVER
        if member is None:
            return []
        self.unsynced.discard(member_id)
        self._supporters = self._supporters - Counter(member.protocols.keys())
        if member.instance_id is not None:
            del self._ids_by_instance[member.instance_id]
        return [Reply(parked.pop(member_id), code) for parked in (self.joins, self.syncs) if member_id in parked]

    def of_instance(self, instance_id: str | None) -> Member | None:
        """The static member with an instance id."""
        return self.by_id[self._ids_by_instance[instance_id]] if instance_id in self._ids_by_instance else None

    def check(self, member_id: str, instance_id: str | None) -> Member:
        """The member that sent a request, or raise GroupRefused. A replaced static member is fenced (KIP-345)."""
        if instance_id is not None:
            owner = self.of_instance(instance_id)
            if owner is not None and owner.member_id != member_id:
                raise GroupRefused(ErrorCode.FENCED_INSTANCE_ID)
        member = self.by_id.get(member_id)
        if member is None or instance_id not in (None, member.instance_id):
            raise GroupRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_leaving(self, leaving: Iterable[MemberIdentity]) -> tuple[list[str], list[MemberResponse]]:
        """The ids to be removed, and a result for each member of a LeaveGroup request."""
        gone: list[str] = []
        results: list[MemberResponse] = []
        for member_id, instance_id in ((it.member_id, it.group_instance_id) for it in leaving):
            result = MemberResponse(member_id=member_id, group_instance_id=instance_id)
            try:
                gone.append(self._find_leaving(member_id, instance_id))
            except GroupRefused as refused:
                result.error_code = refused.code
            results.append(result)
        return gone, results

    def _find_leaving(self, member_id: str, instance_id: str | None) -> str:
        # An administrator names a static member by its instance id alone.
        if not member_id and (static := self.of_instance(instance_id)) is not None:
            return static.member_id
        return member_id if member_id in self.pending else self.check(member_id, instance_id).member_id

    # Parked requests --------------------------------------------------------------------------------------------------

    @property
    def have_all_joined(self) -> bool:
        """Whether every member has a parked join, and no id is pending."""
        return len(self.joins) == len(self.by_id) and not self.pending

    def dynamic_absentees(self) -> list[Member]:
        """The dynamic members that have not joined."""
        return [it for it in self if it.member_id not in self.joins and it.instance_id is None]

    def park_join(self, member: Member, ticket: Ticket) -> list[Reply]:
        """Keep a join until all members have joined."""
        return _park(self.joins, member.member_id, ticket)

    def park_sync(self, member: Member, ticket: Ticket) -> list[Reply]:
        """Keep a sync until the leader has sent the assignment."""
        return _park(self.syncs, member.member_id, ticket)

    def take_joins(self) -> list[tuple[Member, Ticket]]:
        """Remove and return the parked joins. The caller answers them."""
        taken, self.joins = self.joins, {}
        return [(self.by_id[member_id], ticket) for member_id, ticket in taken.items()]

    def take_syncs(self) -> list[tuple[Member, Ticket]]:
        """Remove and return the parked syncs. The caller answers them."""
        taken, self.syncs = self.syncs, {}
        return [(self.by_id[member_id], ticket) for member_id, ticket in taken.items()]

    def assign(self, assignments: Mapping[str, bytes]) -> dict[str, bytes]:
        """Set the assignment of each member, and return the previous assignments."""
        before = {it.member_id: it.assignment for it in self}
        for member in self:
            member.assignment = assignments.get(member.member_id, b"")
        return before

    # Sessions ---------------------------------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for members: the longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def renew(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        """Renew the member's session, with another timeout if `timeout_ms` is given."""
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.deadline_ms = min(self.deadline_ms, member.deadline_ms)

    def await_join(self, member_id: str, until_ms: int) -> None:
        """Keep a pending id until a client joins with it, or until `until_ms`."""
        self.pending[member_id] = until_ms
        self.deadline_ms = min(self.deadline_ms, until_ms)

    def begin_generation(self, now_ms: int) -> None:
        """All members have joined: from now on each of them must sync, and send heartbeats.

        A member may read its old partitions until it learns its new assignment. Until then its old assignment is kept.
        """
        self.unsynced = set(self.by_id)
        for member in self:
            member.is_new = False
            self.renew(member, now_ms)

    def expired(self, now_ms: int) -> list[str]:
        """The ids of members and pending ids whose time limit has ended. `deadline_ms` moves to the next one."""
        if now_ms < self.deadline_ms:
            return []
        deadlines = self.pending | {it.member_id: it.deadline_ms for it in self if not self._is_waiting(it)}
        self.deadline_ms = min((it for it in deadlines.values() if it > now_ms), default=NEVER)
        return [member_id for member_id, deadline_ms in deadlines.items() if deadline_ms <= now_ms]

    def _is_waiting(self, member: Member) -> bool:
        """Whether the member waits for an answer, and so sends no heartbeats. Its session does not end meanwhile."""
        return not member.is_new and (member.member_id in self.joins or member.member_id in self.syncs)

    # Protocols --------------------------------------------------------------------------------------------------------

    def candidates(self) -> set[str]:
        """The protocols that all members support."""
        return {name for name, count in self._supporters.items() if count == len(self.by_id)}

    def supports_one_of(self, names: Collection[str]) -> bool:
        """Whether at least one of these protocols is supported by all members."""
        return any(self._supporters[name] == len(self.by_id) for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes. Each member votes for the one it prefers among those that all support."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self)
        return max(votes, key=lambda name: votes[name])


def _park(parked: dict[str, Ticket], member_id: str, ticket: Ticket) -> list[Reply]:
    """Park a request. It replaces an older one of the same member, which is answered now."""
    before = [Reply(parked[member_id], ErrorCode.REBALANCE_IN_PROGRESS)] if member_id in parked else []
    parked[member_id] = ticket
    return before
