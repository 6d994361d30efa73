"""One node of the quorum: voter or observer. A pure module.

`Raft` handles the messages of the quorum: elections, fetches of the log, and changes of the voters. The state of a node
is `QuorumState`, in `state`.

The contract for its driver:

1. Report every event: the time (`tick`), the requests of other nodes (`on_vote`, `on_begin`, `on_end`, `on_fetch`) and
   their responses (`on_voted`, `on_heard`, `on_fetched`). The return value of a request's method is the response.
2. Send the messages that `tick` and `on_voted` return as `Send`s. A message that got lost is returned again later.
3. Keep one fetch under way: to the node `target()`, with the request `position()`. After a response call `on_fetched`,
   after a timeout `on_unanswered`, and fetch again.
4. Everything before `high_watermark` is committed. It never changes on any node.
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

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchBuilder
from minibroker.raft.changes import added, bound, removed
from minibroker.raft.control import add_voters, leader_change
from minibroker.raft.election import EPOCH_MAX, NO_NODE, Election
from minibroker.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    Fetched,
    FetchSnapshot,
    Heard,
    Send,
    SnapshotFetched,
    SnapshotId,
    Vote,
    Voted,
)
from minibroker.raft.polling import Poll, votes_needed
from minibroker.raft.progress import NEVER_MS, Followers, Progress
from minibroker.raft.roles import Cause, Role
from minibroker.raft.snapshots import needs_snapshot
from minibroker.raft.state import EPOCH_STEP_MAX, QuorumState
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.follower import common_end
from minibroker.wire.codes import ErrorCode

FETCH_BYTES_MAX = 8 * 1024**2


class NotLeader(Exception):
    """An append on a node that does not lead. The message names the leader, if it is known."""


class Raft(QuorumState):
    """The state machine: each method handles one event, and returns the response or the messages to send."""

    # Time -------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Send]:
        """Handle the passing of time: elections, the check of the quorum, announcements of the leader."""
        if self.failure is not None:
            # Tell the other voters, so that they need not wait for a timeout.
            return self.resign(now_ms)
        if self.is_leader:
            return self._tick_as_leader(now_ms)
        if now_ms < self._deadline_ms:
            return []
        if not self._may_stand:
            # An observer does not stand for election; it asks another node for the leader. Other nodes may consider it
            # a voter, and ask for its pre-vote. A node that fetches from a leader refuses pre-votes. This leader no
            # longer answers, so `_has_fetched` is cleared.
            self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
            self._asked += 1
            self._has_fetched = False
            return []
        if self.epoch >= EPOCH_MAX:
            self.refused = f"no election can be held, because epoch {self.epoch} is the last one"
            self._deadline_ms = now_ms + self._election_timeout()
            return []
        return self._start_pre_vote(now_ms)

    def on_late_tick(self, late_ms: int) -> None:
        """This process was paused for `late_ms`. Extend all deadlines: messages of that time may still be unread."""
        self._deadline_ms += late_ms
        self._followers.postpone(late_ms)

    def _tick_as_leader(self, now_ms: int) -> list[Send]:
        # A leader whose own removal from the voters is committed resigns.
        if not self.is_voter and self._may_change_voters:
            return self.resign(now_ms)
        # A leader without the fetches of a majority may have been deposed without knowing it, so it resigns.
        horizon_ms = now_ms - self.settings.check_quorum_ms
        heard = self._followers.heard_since(horizon_ms, self.voters, leader_id=self.me.node_id)
        if heard + self.is_voter < self.voters.majority:
            self._become(Cause.LOST_QUORUM, now_ms + self._election_timeout())
            return []
        if now_ms < self._announce_ms:
            return []
        self._announce_ms = now_ms + self.settings.election_timeout_ms
        return [
            Send(it, BeginQuorumEpoch(self.epoch, self.me.node_id, self.voters.key_of(it)))
            for it in self._others()
            if it in self._followers.unaware
        ]

    # Candidates -------------------------------------------------------------------------------------------------------

    def _start_pre_vote(self, now_ms: int) -> list[Send]:
        """Ask for pre-votes, so that a candidate that would lose does not begin an epoch (KIP-996)."""
        self._become(Cause.TIMED_OUT, now_ms + self._election_timeout())
        self._asked += 1
        return self._ask_for_votes(now_ms, is_pre_vote=True)

    def _start_election(self, now_ms: int) -> list[Send]:
        """Begin an epoch with a vote for this node, which is on the disk before any voter is asked."""
        self._ballot.write(Election(self.epoch + 1, NO_NODE, self.me))
        self._become(Cause.WOULD_WIN, now_ms + self._election_timeout())
        return self._ask_for_votes(now_ms, is_pre_vote=False)

    def _ask_for_votes(self, now_ms: int, *, is_pre_vote: bool) -> list[Send]:
        """Count this node's own vote, and ask the other voters for theirs unless one vote is enough."""
        last_epoch, last_offset = self.last_epoch, self.log.log_end_offset
        poll = self._poll = Poll(self.voters, votes_needed(self.voters, is_log_empty=last_offset == 0))
        poll.add(self.me.node_id, self.is_voter)
        if poll.is_won:
            return self._start_election(now_ms) if is_pre_vote else self._become_leader(now_ms, poll)
        return [
            Send(it, Vote(self.epoch, self.me, self.voters.key_of(it), last_epoch, last_offset, is_pre_vote))
            for it in self._others()
        ]

    def on_voted(self, node_id: int, request: Vote, voted: Voted, now_ms: int) -> list[Send]:
        """Count the vote of a voter. A response to an older request is used only for its epoch and leader."""
        if not self._learn_epoch(voted.epoch, voted.leader_id, now_ms):
            return []
        standing = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        poll = self._poll
        if self.role is not standing or request.epoch != self.epoch or poll is None:
            return []
        poll.add(node_id, voted.is_granted)
        if poll.is_won:
            return self._start_election(now_ms) if request.is_pre_vote else self._become_leader(now_ms, poll)
        if poll.is_lost:
            self._give_up(now_ms)
        return []

    def _give_up(self, now_ms: int) -> None:
        """The election is lost. A candidate tries again after a backoff; a prospective node follows a known leader."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.CANDIDATE:
            self._become(Cause.LOST, now_ms + self._chance(self.settings.election_backoff_ms_max))
        elif leader_id not in (NO_NODE, self.me.node_id):
            self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)

    # Votes ------------------------------------------------------------------------------------------------------------

    def on_vote(self, request: Vote, now_ms: int) -> Voted:
        """Answer a candidate that asks for this node's vote or pre-vote."""
        code = self._objection(request.epoch, request.voter)
        if code is not ErrorCode.NONE:
            return Voted(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NO_NODE, now_ms)
        is_granted = self._would_vote(request) if request.is_pre_vote else self._vote(request, now_ms)
        return Voted(ErrorCode.NONE, self.epoch, self.leader_id, is_granted)

    def _objection(self, epoch: int, voter: VoterKey) -> ErrorCode:
        """Why a request is refused: the disk has failed, or the directory or the epoch of the request is wrong."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not voter.names(self.me):
            return ErrorCode.INVALID_VOTER_KEY
        if self._refuses(epoch, limit=self.epoch + EPOCH_STEP_MAX):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.NONE

    def _is_up_to_date(self, request: Vote) -> bool:
        """Whether a candidate's log is at least as up-to-date as ours (section 5.4.1)."""
        return (request.last_epoch, request.last_offset) >= (self.last_epoch, self.log.log_end_offset)

    def _would_vote(self, request: Vote) -> bool:
        # A leader refuses a pre-vote, and so does a follower whose leader has answered: the epoch has a working leader.
        if self.role is Role.LEADER or (self.role is Role.FOLLOWER and self._has_fetched):
            return False
        # A candidate whose log is less up-to-date than ours would not get our vote.
        return self._is_up_to_date(request)

    def _vote(self, request: Vote, now_ms: int) -> bool:
        # A voter has one vote in each epoch, and grants it again if the same candidate asks again. It does not vote in
        # an epoch that has or had a leader. The ballot still names a leader that has resigned.
        election = self._ballot.election
        is_free = election.leader_id == NO_NODE and election.voted in (None, request.candidate)
        # A candidate whose log is less up-to-date than ours does not get our vote.
        if not is_free or not self._is_up_to_date(request):
            return False
        # The vote is on the disk before the candidate gets it.
        self._ballot.write(Election(election.epoch, NO_NODE, request.candidate))
        # Then give the candidate time: our own election timeout begins again.
        self._deadline_ms = now_ms + self._election_timeout()
        return True

    # Leader -----------------------------------------------------------------------------------------------------------

    def _become_leader(self, now_ms: int, poll: Poll) -> list[Send]:
        self._become(Cause.WON, now_ms)
        self._ballot.write(Election(self.epoch, self.me.node_id, self.me))
        self.epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(self.epoch, self.epoch_start_offset)
        # Records of earlier epochs are committed with the first record of this epoch, and not before (section 5.4.2). A
        # log without a voter set gets one now.
        timestamp = self._clock()
        builder = leader_change(self.me.node_id, self.voters, poll.granting, timestamp=timestamp)
        if self.history.current_offset == NO_OFFSET and self.snapshots.voters is None:
            add_voters(builder, self.voters, timestamp=timestamp)
        self._followers = Followers((self.voters.key_of(it) for it in self._others()), now_ms)
        self._announce_ms = now_ms
        self._append(builder)
        return self.tick(now_ms)

    def append(self, batch: bytearray) -> int:
        """Append a batch, durably, and return its base offset. The high watermark passes it when it is committed."""
        if not self.is_leader:
            raise NotLeader(f"node {self.me.node_id} does not lead epoch {self.epoch} (leader: {self.leader_id})")
        base_offset = self._write(batch)
        self._advance()
        return base_offset

    def _append(self, builder: BatchBuilder) -> None:
        # A voter set is in force as soon as it is written: a majority of the new set commits it.
        base_offset = self._write(builder.build())
        self.history.read(self.log, base_offset)
        self._advance()

    def _advance(self) -> None:
        """Advance the high watermark to the offset that a majority has reached, if it is in this epoch."""
        # The log end offsets of the other voters, from their fetches. Our own log counts only if we are a voter, and
        # only as far as it is flushed.
        ends = self._followers.end_offsets(self.voters, leader_id=self.me.node_id)
        if self.is_voter:
            ends.append(self.log.flushed_offset)
        ends.sort(reverse=True)
        # A majority has everything before this offset on its disks.
        agreed = ends[self.voters.majority - 1]
        # A record of an earlier epoch is not committed by being on a majority: a leader without it could still be
        # elected (section 5.4.2). A record of this epoch on a majority is committed, and commits all records before it.
        if agreed > self.epoch_start_offset and agreed > self.high_watermark:
            self.high_watermark = agreed

    def on_fetch(self, request: Fetch, now_ms: int, *, bytes_max: int = FETCH_BYTES_MAX) -> Fetched:
        """Answer a voter or observer that asks for the records after the end of its log."""
        # Refuse if the replica is in another epoch or this node does not lead. The response names epoch and leader.
        code = self._refusal(request.epoch)
        if code is not ErrorCode.NONE:
            return Fetched(code, self.epoch, self.leader_id)
        # The replica is alive, whatever the response will be: `heard_from` notes that, and returns its progress.
        progress = self._followers.heard_from(request.replica, now_ms)
        # The replica's next records may be only in a snapshot: name the snapshot.
        if needs_snapshot(request, self.log, self.snapshots.latest):
            return self._fetched(snapshot=self.snapshots.latest)
        # The replica's log may diverge: answer where its last epoch ends in our log, as in chapter 04. An empty log
        # does not diverge.
        ours = self.epochs.end_of(request.last_epoch, log_end_offset=self.log.log_end_offset)
        if request.last_epoch != NO_LEADER_EPOCH and (
            ours.epoch < request.last_epoch or ours.end_offset < request.offset
        ):
            return self._fetched(diverging=ours)
        # If the logs do not diverge, an offset after the end of our log is out of range.
        if request.offset > self.log.log_end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, self.epoch, self.leader_id)
        # The replica has everything before that offset on its disk. A fetch that has waited may be answered after a
        # later one, so `advance` never lowers the end offset of a replica.
        progress.advance(request.offset, leader_end_offset=self.log.log_end_offset)
        # The replica's progress may commit records. Advance first, so that the response has the new high watermark.
        self._advance()
        return self._fetched(records=self.log.read(request.offset, bytes_max=bytes_max).read())

    def _refusal(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._refuses(epoch):
            return ErrorCode.INVALID_REQUEST
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _fetched(self, *, records: bytes = b"", **parts: object) -> Fetched:
        return Fetched(
            ErrorCode.NONE,
            self.epoch,
            self.me.node_id,
            memoryview(bytearray(records)),
            self.high_watermark,
            **parts,  # type: ignore[arg-type]
        )

    def progress(self, now_ms: int) -> tuple[dict[VoterKey, Progress], dict[VoterKey, Progress]]:
        """The progress of the voters and of the observers. The leader itself always counts as caught up."""
        known = self._followers.all() | {self.me: Progress(self.log.log_end_offset, now_ms, now_ms)}
        voters = {key: it for key, it in known.items() if key in self.voters}
        # A voter that was removed before it had ever fetched is not an observer.
        observers = {key: it for key, it in known.items() if key not in self.voters and it.last_fetch_ms != NEVER_MS}
        return voters, observers

    def resign(self, now_ms: int) -> list[Send]:
        """Stop leading, and tell the other voters; the voters with the longest logs stand for election first."""
        if self.role is not Role.LEADER:
            return []
        successors = self._followers.successors(self.voters, leader_id=self.me.node_id)
        self._become(Cause.STEPPED_DOWN, now_ms + 2 * self._election_timeout())
        return [Send(it.node_id, EndQuorumEpoch(self.epoch, self.me.node_id, successors)) for it in successors]

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

    def on_fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> ErrorCode:
        """Check whether this node leads and may send a piece of a snapshot. Note that the replica is alive."""
        code = self._refusal(request.epoch)
        if code is ErrorCode.NONE:
            self._followers.heard_from(request.replica, now_ms)
        return code

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

    # Changes of the voters --------------------------------------------------------------------------------------------

    def add_voter(self, voter: Voter, *, timestamp: int) -> ErrorCode:
        """Add a voter that has fetched the log as an observer."""
        has_caught_up = self._followers.of(voter.key).end_offset >= self.high_watermark
        return self._change(added(self.voters, voter, has_caught_up=has_caught_up), timestamp)

    def remove_voter(self, key: VoterKey, *, timestamp: int) -> ErrorCode:
        """Remove a voter. A leader that removes itself leads until the removal is committed."""
        return self._change(removed(self.voters, key), timestamp)

    def bind_voters(self, *, timestamp: int) -> None:
        """Write the directories of voters that were known by node id alone."""
        seen = self._followers.unbound(self.voters)
        if self.voters.unbound(self.me):
            seen.append(self.me)
        if seen:
            self._change(bound(self.voters, seen), timestamp)

    def _change(self, change: VoterSet | ErrorCode, timestamp: int) -> ErrorCode:
        """Write a voter set. Only the leader does, and only when the last change is committed."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self._may_change_voters:
            return ErrorCode.REQUEST_TIMED_OUT
        if isinstance(change, ErrorCode):
            return change
        self._append(add_voters(BatchBuilder(is_control=True), change, timestamp=timestamp))
        return ErrorCode.NONE
