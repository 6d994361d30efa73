"""Voters that come and go: the handlers of AddRaftVoter and RemoveRaftVoter, at who leads the quorum (KIP-853).

A node that has lost its disk comes back with another directory, and follows. An operator then lets the old voter go and
takes the new one in: two changes, one after the other, each of which the voters decide.
"""

from collections.abc import Callable

from minibroker.log.clock import wall_clock_ms
from minibroker.log.errors import StorageError
from minibroker.partitions.registry import Answer, Call, Registry
from minibroker.partitions.waiting import Wait
from minibroker.quorum.running import Quorum
from minibroker.raft.tables.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from minibroker.raft.tables.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from minibroker.raft.voters import Voter, VoterKey
from minibroker.replication.answering import DECISION_MS_MAX
from minibroker.wire.apis import ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.schema import Response
from minibroker.wire.uuids import NO_UUID

Changed = type[AddRaftVoterResponse] | type[RemoveRaftVoterResponse]


class VoterChanges:
    """The handlers. A change that cannot be made yet, because another one is under way, waits for its turn."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    def add_handlers(self, registry: Registry) -> None:
        """Answer operators."""
        registry.add(ApiKey.ADD_RAFT_VOTER, self.on_add)
        registry.add(ApiKey.REMOVE_RAFT_VOTER, self.on_remove)

    def on_add(self, call: Call[AddRaftVoterRequest]) -> Answer:
        """The handler of AddRaftVoter."""
        request, raft = call.request, self._quorum.raft
        key = VoterKey(request.voter_id, bytes(request.voter_directory_id))
        if not request.listeners or key.directory_id == NO_UUID:
            message = "a voter has a directory, and listens somewhere"
            return AddRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
        voter = Voter(key, request.listeners[0].host, request.listeners[0].port)
        change = _Change(self._quorum, AddRaftVoterResponse, lambda: raft.add_voter(voter, timestamp=wall_clock_ms()))
        change.is_awaited = request.ack_when_committed
        return self._answer(change, request.cluster_id, request.timeout_ms)

    def on_remove(self, call: Call[RemoveRaftVoterRequest]) -> Answer:
        """The handler of RemoveRaftVoter."""
        request, raft = call.request, self._quorum.raft
        key = VoterKey(request.voter_id, bytes(request.voter_directory_id))
        change = _Change(
            self._quorum, RemoveRaftVoterResponse, lambda: raft.remove_voter(key, timestamp=wall_clock_ms())
        )
        return self._answer(change, request.cluster_id, DECISION_MS_MAX)

    def _answer(self, change: "_Change", cluster_id: str | None, timeout_ms: int) -> Answer:
        if self._quorum.is_foreign(cluster_id):
            return change.respond(ErrorCode.INCONSISTENT_CLUSTER_ID, "this is another cluster")
        response = change.attempt()
        if response is not None:
            return response
        keys = (self._quorum.raft,)
        return Wait(keys=keys, timeout_ms=max(timeout_ms, 0), attempt=change.attempt, expire=change.expire)


class _Change:
    """One change of the set of voters: to be made, then to be decided."""

    def __init__(self, quorum: Quorum, response: Changed, make: Callable[[], ErrorCode]) -> None:
        self._quorum = quorum
        self._response = response
        self._make = make
        self._made: tuple[int, int] | None = None
        self.is_awaited = True

    def respond(self, code: ErrorCode, message: str | None) -> Response:
        """The answer to the operator."""
        return self._response(error_code=code, error_message=message)

    def attempt(self) -> Response | None:
        """Make it, if that is not done; then look whether it is decided."""
        raft = self._quorum.raft
        if self._made is None:
            try:
                code = self._make()
            except StorageError as error:
                return self.respond(ErrorCode.KAFKA_STORAGE_ERROR, f"the change could not be written: {error}")
            if code is ErrorCode.REQUEST_TIMED_OUT:
                # Another change is not decided yet, or the new voter has not caught up.
                return None
            if code is not ErrorCode.NONE:
                return self.respond(code, f"{code.message}: the voters are {self._voters()}")
            self._made = (raft.epoch, raft.log.log_end_offset)
            self._quorum.step_soon()
        epoch, end_offset = self._made
        if raft.epoch != epoch:
            message = "who led does not lead any more: ask who votes, and try again"
            return self.respond(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        is_decided = raft.high_watermark >= end_offset
        return self.respond(ErrorCode.NONE, None) if is_decided or not self.is_awaited else None

    def expire(self) -> Response:
        """It takes too long; whether it will be decided nobody can tell."""
        what = "not decided" if self._made is not None else "not begun: another change is under way, or it is behind"
        return self.respond(ErrorCode.REQUEST_TIMED_OUT, f"{what}; the voters are {self._voters()}")

    def _voters(self) -> str:
        voters = self._quorum.raft.voters
        return ", ".join(str(voters.key_of(it)) for it in voters)
