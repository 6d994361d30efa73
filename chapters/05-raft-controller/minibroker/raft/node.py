"""One node of the quorum: voter or observer. A pure module.

A node is built in four layers, and each knows only those below it:

    state     QuorumState   the epoch, the role, the log and the voters
    leading   Leading       what a leader does: records, fetches, commits, changes of the voters
    voting    Voting        time, candidates and votes
    node      Raft          what a follower does, and the whole node

The contract for its driver:

1. Report every event: the time (`tick`), the requests of other nodes (`on_vote`, `on_begin`, `on_end`, `on_fetch`) and
   their responses (`on_voted`, `on_heard`, `on_fetched`). The return value of a request's method is the response.
2. Send the messages that `tick` and `on_voted` return as `Send`s. A message that got lost is returned again later.
3. Keep one fetch under way: to the node `target()`, with the request `position()`. After a response call `on_fetched`,
   after a timeout `on_unanswered`, and fetch again.
4. Everything before `high_watermark` is committed. Committed records never change on any node.
5. Check `failure` after each call, even after a call that has raised a `StorageError`. A disk that has refused a write
   or a flush is not used again: this node stops leading, gives no vote, and does not count for a majority. The next
   `tick` tells the other voters. Then the process must end, and a new process may read the disk.
6. If `refused` is set, log it and set it to None. It says that a message was refused because its epoch is too large to
   come from elections, or that no further election is possible.

The difference from the Raft paper is that followers pull. A leader does not push entries: followers fetch them, and
each fetch tells the leader how far its follower is. So the code of chapter 04 copies the log and finds where two logs
diverge. A majority, not an in-sync set, elects the leader and commits records.

A node responds only after its disk has what the response promises: a vote, or a record.
"""

from minibroker.raft.election import NO_NODE
from minibroker.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchSnapshot,
    Heard,
    SnapshotFetched,
    SnapshotId,
)
from minibroker.raft.roles import Role
from minibroker.raft.voters import VoterSet
from minibroker.raft.voting import Voting
from minibroker.replication.follower import common_end
from minibroker.wire.codes import ErrorCode


class Raft(Voting):
    """The state machine: each method handles one event, and returns the response or the messages to send."""

    # Follower ---------------------------------------------------------------------------------------------------------

    def on_begin(self, request: BeginQuorumEpoch, now_ms: int) -> Heard:
        """Follow a node that announces itself as the leader."""
        code = self._objection(request.epoch, request.voter)
        if code is not ErrorCode.NONE:
            return Heard(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, request.leader_id, now_ms)
        elif self.role is not Role.FOLLOWER:
            self._on_leader_found(request.leader_id, now_ms)
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_end(self, request: EndQuorumEpoch, now_ms: int) -> Heard:
        """The leader has resigned: stand for election, after the voters with longer logs."""
        # The request names no voter, because every voter gets the same one. So check it as if it named this node.
        code = self._objection(request.epoch, self.me)
        if code is not ErrorCode.NONE:
            return Heard(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NO_NODE, now_ms)
        elif self.role is Role.FOLLOWER and self.leader_id == request.leader_id:
            places = [number for number, key in enumerate(request.successors) if key.names(self.me)]
            place = places[0] if places else len(request.successors)
            self._deadline_ms = now_ms + place * self.settings.election_backoff_ms_max
            # There is no leader, so a candidate may get this node's pre-vote.
            self._has_fetched = False
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_heard(self, heard: Heard, now_ms: int) -> None:
        """Learn from the response to `BeginQuorumEpoch` or `EndQuorumEpoch`."""
        self._learn_epoch(heard.epoch, heard.leader_id, now_ms)

    def target(self) -> int:
        """The node to fetch from: the leader, or one voter after the other until one names the leader."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.FOLLOWER and (self.is_voter or self._asked == 0):
            return leader_id
        others = self._others()
        # All voters may have been replaced while this node was down. So also ask the configured nodes, which may name
        # the new voters.
        others += [it for it in self._bootstrap if it not in (self.me.node_id, *others)]
        # For the same reason the leader may not be among the voters that this node knows. So also ask the leader.
        if leader_id not in (NO_NODE, self.me.node_id, *others):
            others.append(leader_id)
        return others[self._asked % len(others)] if others else NO_NODE

    def position(self) -> Fetch | None:
        """The next fetch; None while this node leads, needs a snapshot first, or cannot write."""
        if self.failure is not None or self.is_leader or self.snapshot_wanted is not None or self.target() == NO_NODE:
            return None
        return Fetch(self.epoch, self.me, self.log.log_end_offset, self.last_epoch)

    def on_unanswered(self) -> None:
        """A fetch had no response. A voter that knows the leader asks it again; any other node asks the next node."""
        if self.role is not Role.FOLLOWER or not self.is_voter:
            self._asked += 1

    def on_fetched(self, request: Fetch, fetched: Fetched, now_ms: int) -> None:
        """Handle the response to a fetch."""
        if not self._learn_epoch(fetched.epoch, fetched.leader_id, now_ms):
            return
        if fetched.code is not ErrorCode.NONE:
            self.on_unanswered()
            return
        # The leader itself has responded, so it is alive.
        if self.role in (Role.LEADER, Role.RESIGNED):
            return
        if self.role is not Role.FOLLOWER:
            self._on_leader_found(fetched.leader_id, now_ms)
        self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
        self._has_fetched, self._asked = True, 0
        if request == self.position():
            self._apply_fetched(fetched)

    def _apply_fetched(self, fetched: Fetched) -> None:
        # If the leader names a snapshot, fetch it first. If the logs diverge, truncate ours. Otherwise append and flush
        # the records, and adopt the leader's high watermark as far as our log goes.
        if fetched.snapshot is not None:
            self.snapshot_wanted = None if self._refuses(fetched.snapshot.epoch) else fetched.snapshot
        elif fetched.diverging is not None:
            self._truncate(common_end(fetched.diverging, self.epochs, log_end_offset=self.log.log_end_offset))
        else:
            if len(fetched.records):
                self._append_as_follower(fetched.records)
            self.high_watermark = max(self.high_watermark, min(fetched.high_watermark, self.log.log_end_offset))

    # Snapshots --------------------------------------------------------------------------------------------------------

    def snapshot_position(self, received: int) -> FetchSnapshot | None:
        """The piece of a snapshot to fetch next from the leader."""
        if self.snapshot_wanted is None or self.role is not Role.FOLLOWER or self.failure is not None:
            return None
        return FetchSnapshot(self.epoch, self.me, self.snapshot_wanted, received)

    def on_snapshot_fetched(self, found: SnapshotFetched, now_ms: int) -> bool:
        """Handle the response to a `FetchSnapshot`; return whether it has a piece of the wanted snapshot."""
        if not self._learn_epoch(max(found.epoch, 0), found.leader_id, now_ms) or self.snapshot_wanted is None:
            return False
        if found.code is not ErrorCode.NONE:
            # The snapshot is gone: the response to the next fetch names the newest one.
            self.snapshot_wanted = None
            return False
        self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
        return True

    def on_snapshot(self, snapshot: SnapshotId, voters: VoterSet) -> None:
        """A fetched snapshot is complete and on the disk: the log continues where the snapshot ends."""
        if self.snapshot_wanted != snapshot:
            return
        self.snapshot_wanted = None
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        self.history.start_with(voters)
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)

    def forget_before(self, snapshot: SnapshotId) -> None:
        """This node has written a snapshot: delete the records before its end from the log."""
        assert snapshot.end_offset <= self.high_watermark, "only committed records go into a snapshot"
        if snapshot.end_offset > self.log.log_start_offset:
            self.log.roll()
            self.log.delete_before(snapshot.end_offset)
            self.history.forget_before(snapshot.end_offset)
