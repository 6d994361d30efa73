"""Drives one classic group in tests: requests with few words, a clock, and the log that its records go to.

A ticket is a text that the test chooses. `answers` has the answer to each ticket; a ticket without one is parked.
"""

from dataclasses import replace
from typing import TypeVar

from minibroker.groups.classic import ClassicGroup
from minibroker.groups.classic_transitions import GroupState
from minibroker.groups.errors import GroupRefused
from minibroker.groups.keys import GroupSettings
from minibroker.groups.records import GroupMetadataValue, decode, encode_key, encode_value
from minibroker.groups.steps import Client, Step
from minibroker.groups.tables.heartbeat import HeartbeatRequest
from minibroker.groups.tables.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from minibroker.groups.tables.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from minibroker.groups.tables.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from minibroker.metadata.configs import NodeConfig
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response

R = TypeVar("R", bound=Response)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
RANGE = {"range": b"topics"}


class Driver:
    """One group, its members' requests, and its log."""

    def __init__(self, **changes: int) -> None:
        self.settings = replace(GroupSettings.of(NodeConfig()), **changes)  # type: ignore[arg-type]
        self.now_ms = 1_000_000
        self.answers: dict[str, Response | ErrorCode] = {}
        self.log: list[GroupMetadataValue] = []
        self.refuses_with: ErrorCode | None = None
        self._made = 0
        self.group = self.new_group()

    def new_group(self) -> ClassicGroup:
        """The group as a coordinator without any records has it."""
        return ClassicGroup("g", lambda: self.settings, self._new_member_id)

    def _new_member_id(self, name: str) -> str:
        self._made += 1
        return f"{name}-{self._made}"

    def take(self, step: Step) -> None:
        """Append the records and note the replies, as the driver of a coordinator does."""
        if step.records and self.refuses_with is not None:
            step = step.refused(self.refuses_with)
            assert not step.records
        for key, value in step.records:
            assert value is not None
            record = decode(encode_key(key), encode_value(value))
            assert record is not None
            assert isinstance(record.value, GroupMetadataValue)
            self.log.append(record.value)
        for ticket, response in step.replies:
            assert isinstance(ticket, str)
            assert ticket not in self.answers, f"{ticket} is answered twice"
            self.answers[ticket] = response

    # Requests ---------------------------------------------------------------------------------------------------------

    def join(
        self,
        ticket: str,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        """Send a JoinGroup."""
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data)
                for name, data in (RANGE if protocols is None else protocols).items()
            ],
        )
        client = Client(ticket.partition("-")[0].rstrip("0123456789"), "/127.0.0.1")
        self.take(self.group.on_join(ticket, request, version, client, self.now_ms))

    def sync(
        self,
        ticket: str,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation_id: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None:
        """Send a SyncGroup, for the current generation unless it is given."""
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation_id if generation_id is None else generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=it, assignment=data) for it, data in (assignments or {}).items()
            ],
        )
        self.take(self.group.on_sync(ticket, request, 5, self.now_ms))

    def heartbeat(
        self, member_id: str, generation_id: int | None = None, *, instance_id: str | None = None
    ) -> ErrorCode:
        """Send a Heartbeat."""
        generation_id = self.group.generation_id if generation_id is None else generation_id
        request = HeartbeatRequest(
            group_id="g", generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
        )
        return self.group.on_heartbeat(request, self.now_ms)

    def leave(self, ticket: str, *members: str | tuple[str, str], version: int = 5) -> None:
        """Send a LeaveGroup. A pair is a member id and an instance id."""
        pairs = [(it, None) if isinstance(it, str) else it for it in members]
        if version < 3:
            request = LeaveGroupRequest(group_id="g", member_id=pairs[0][0])
        else:
            request = LeaveGroupRequest(
                group_id="g",
                members=[MemberIdentity(member_id=one, group_instance_id=other) for one, other in pairs],
            )
        self.take(self.group.on_leave(ticket, request, version, self.now_ms))

    def commit(
        self, member_id: str, generation_id: int, instance_id: str | None = None, *, is_transactional: bool = False
    ) -> ErrorCode:
        """Check an OffsetCommit."""
        try:
            self.group.check_commit(
                member_id, generation_id, instance_id, self.now_ms, is_transactional=is_transactional
            )
        except GroupRefused as refused:
            return refused.code
        return ErrorCode.NONE

    # Time -------------------------------------------------------------------------------------------------------------

    def run(self, ms: int) -> None:
        """Let time pass, and call the group at each of its deadlines."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.group.on_time(self.now_ms))
            later_ms = self.group.deadline_ms()
            assert later_ms is None or later_ms > self.now_ms, "a time limit that has ended is still there"
        self.now_ms = end_ms

    def run_with_heartbeats(self, ms: int, *member_ids: str, every_ms: int = 3_000) -> None:
        """Let time pass while these members are alive."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.run(min(every_ms, end_ms - self.now_ms))
            for member_id in member_ids:
                self.heartbeat(member_id)

    # Answers ----------------------------------------------------------------------------------------------------------

    def is_parked(self, ticket: str) -> bool:
        """Whether a request has no answer yet."""
        return ticket not in self.answers

    def code(self, ticket: str) -> ErrorCode:
        """The code of an answer."""
        answer = self.answers[ticket]
        return answer if isinstance(answer, ErrorCode) else ErrorCode(getattr(answer, "error_code", 0))

    def _answer(self, ticket: str, kind: type[R]) -> R:
        answer = self.answers[ticket]
        assert isinstance(answer, kind), answer
        return answer

    def joined(self, ticket: str) -> JoinGroupResponse:
        """The answer to a JoinGroup."""
        return self._answer(ticket, JoinGroupResponse)

    def synced(self, ticket: str) -> SyncGroupResponse:
        """The answer to a SyncGroup."""
        return self._answer(ticket, SyncGroupResponse)

    def left(self, ticket: str) -> LeaveGroupResponse:
        """The answer to a LeaveGroup."""
        return self._answer(ticket, LeaveGroupResponse)

    # Groups -----------------------------------------------------------------------------------------------------------

    def enter(self, ticket: str, **options: object) -> str:
        """Join as a new dynamic member, with both requests, and return the member id."""
        self.join(f"{ticket}-id", **options)  # type: ignore[arg-type]
        member_id = self.joined(f"{ticket}-id").member_id
        self.join(ticket, member_id, **options)  # type: ignore[arg-type]
        return member_id

    def assign(self, prefix: str = "sync") -> None:
        """Every member syncs, the leader last; each gets its own id as its assignment."""
        ids = [it.member_id for it in self.group.members()]
        leader_id = self.group.leader_id
        assert leader_id is not None
        for member_id in [*(it for it in ids if it != leader_id), leader_id]:
            given = {it: it.encode() for it in ids} if member_id == leader_id else None
            self.sync(f"{prefix}-{member_id}-{self.group.generation_id}", member_id, given)

    def stable(self, *names: str, instances: tuple[str, ...] = (), **options: object) -> list[str]:
        """A stable group: dynamic members of these names, then static ones of these instance ids."""
        ids = [self.enter(name, **options) for name in names]
        for instance_id in instances:
            self.join(f"{instance_id}", instance_id=instance_id, **options)  # type: ignore[arg-type]
            ids.append(self.group.members()[-1].member_id)
        self.run(2 * DELAY_MS if len(ids) > 1 else DELAY_MS)
        self.assign("first")
        assert self.group.state is GroupState.STABLE
        return ids

    def take_over(self) -> None:
        """Another node becomes the coordinator: it has the last record, and nothing else."""
        self.group = self.new_group()
        self.group.load(self.log[-1], self.now_ms)
