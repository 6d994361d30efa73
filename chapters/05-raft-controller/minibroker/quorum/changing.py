"""Changes of the voters: the leader's handlers of AddRaftVoter and RemoveRaftVoter (KIP-853).

A node that has lost its disk comes back with another directory id, as an observer. An operator then removes the old
voter and adds the new one. These are two changes, and the second waits until the first is committed.
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
    """The handlers of AddRaftVoter and RemoveRaftVoter. A change waits until the change before it is committed."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    def add_handlers(self, registry: Registry) -> None:
        """Register the handlers."""
        registry.add(ApiKey.ADD_RAFT_VOTER, self.on_add)
        registry.add(ApiKey.REMOVE_RAFT_VOTER, self.on_remove)

    def on_add(self, call: Call[AddRaftVoterRequest]) -> Answer:
        """The handler of AddRaftVoter."""
        request, raft = call.request, self._quorum.raft
        key = VoterKey(request.voter_id, bytes(request.voter_directory_id))
        if not request.listeners or key.directory_id == NO_UUID:
            message = "a voter needs a directory id and at least one listener"
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
            message = f"the request is for cluster {cluster_id}, but this node is of another cluster"
            return change.respond(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
        response = change.attempt()
        if response is not None:
            return response
        keys = (self._quorum.raft,)
        return Wait(keys=keys, timeout_ms=max(timeout_ms, 0), attempt=change.attempt, expire=change.expire)


class _Change:
    """One change of the voter set, which is first written and then committed."""

    def __init__(self, quorum: Quorum, response: Changed, make: Callable[[], ErrorCode]) -> None:
        self._quorum = quorum
        self._response = response
        self._make = make
        self._written: tuple[int, int] | None = None
        """The epoch and the log end offset after the change was written."""
        self.is_awaited = True

    def respond(self, code: ErrorCode, message: str | None) -> Response:
        """The response to the operator, with an error or without."""
        return self._response(error_code=code, error_message=message)

    def attempt(self) -> Response | None:
        """Write the change, unless it is written already. Return the response if it is committed, otherwise None."""
        raft = self._quorum.raft
        if self._written is None:
            try:
                code = self._make()
            except StorageError as error:
                return self.respond(ErrorCode.KAFKA_STORAGE_ERROR, f"the change could not be written: {error}")
            if code is ErrorCode.REQUEST_TIMED_OUT:
                # Wait: another change is not committed yet, or the new voter has not caught up.
                return None
            if code is not ErrorCode.NONE:
                return self.respond(code, f"{code.message}: the voters are {self._voters()}")
            self._written = (raft.epoch, raft.log.log_end_offset)
            self._quorum.step_soon()
        epoch, end_offset = self._written
        if raft.epoch != epoch:
            message = "this node has lost its leadership: check the voters, and try again"
            return self.respond(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        is_committed = raft.high_watermark >= end_offset
        return self.respond(ErrorCode.NONE, None) if is_committed or not self.is_awaited else None

    def expire(self) -> Response:
        """The response after the timeout. A change that is written may still be committed."""
        what = "the change is not committed yet"
        if self._written is None:
            what = "the change has not begun: another change is not committed yet, or the new voter has not caught up"
        return self.respond(ErrorCode.REQUEST_TIMED_OUT, f"{what}; the voters are {self._voters()}")

    def _voters(self) -> str:
        voters = self._quorum.raft.voters
        return ", ".join(str(voters.key_of(it)) for it in voters)
