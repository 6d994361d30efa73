"""One node of the quorum: voter or observer. A pure module.

`Raft` owns what nodes of a quorum say to each other: elections, the leader's answers to fetches, what a follower does
with them, and changes of the voters. What a node is and remembers is `QuorumState`, in `state`.

The contract, for whoever drives it:

1. Tell it everything: the time (`tick`), what others ask (`on_vote`, `on_begin`, `on_end`, `on_fetch`) and what they
   answer (`on_voted`, `on_heard`, `on_fetched`). What others ask is answered by the return value.
2. Send what it orders: `tick` and the answers to votes return `Send`s. They may get lost; it will say them again.
3. Keep one fetch under way, to `target()`, with what `position()` says. After an answer, or after a while without one,
   say so and ask again.
4. What is before `high_watermark` is decided. It never changes, on any node.
5. Look at `failure` after each of these, also after one that has raised a `StorageError`. A disk that has refused a
   write or a flush is not asked again: this node leads no more, gives no vote, and counts for nobody. `tick` says so to
   the others; then the process is to end, and only another one may read what is on the disk.

How it differs from the paper: followers pull. A leader does not push entries but waits to be asked for them, and
learns from each question how far its follower is. So a log is copied by the same code as in chapter 04, and where two
logs part is found the same way; only who may lead, and what is safe, is decided by a majority instead of an in-sync
set.

It answers only after its disk has what the answer promises: a vote, or a record.
"""

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchBuilder
from minibroker.raft.changes import added, bound, removed
from minibroker.raft.control import add_voters, leader_change
from minibroker.raft.election import NOBODY, Election
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
from minibroker.raft.progress import Followers
from minibroker.raft.roles import Cause, Role
from minibroker.raft.snapshots import needs_snapshot
from minibroker.raft.state import QuorumState
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.follower import common_end
from minibroker.wire.codes import ErrorCode

FETCH_BYTES_MAX = 8 * 1024**2


class NotLeader(Exception):
    """Only a leader appends; the message says which node that may be."""


class Raft(QuorumState):
    """The state machine: each method is one event, and returns what follows from it."""

    # Time -------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Send]:
        """Time has passed."""
        if self.failure is not None:
            # Other voters must not wait until they miss this one.
            return self.resign(now_ms)
        if self.is_leader:
            return self._lead_on(now_ms)
        if now_ms < self._deadline_ms:
            return []
        if not self._may_stand:
            # An observer does not stand for election; it looks for the leader elsewhere. Other nodes may take it for a
            # voter, and a candidate that stands in place of a lost leader must not be told that there is one.
            self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
            self._asked += 1
            self._has_fetched = False
            return []
        return self._canvass(now_ms)

    def on_stuck(self, late_ms: int) -> None:
        """This node itself did nothing for so long: what others have said meanwhile is still to be heard."""
        self._deadline_ms += late_ms
        self._followers.postpone(late_ms)

    def _lead_on(self, now_ms: int) -> list[Send]:
        # It has removed itself from the voters, and that is committed.
        if not self.is_voter and self._is_settled:
            return self.resign(now_ms)
        # A leader that no majority fetches from may have been deposed without knowing: it must not go on as if.
        horizon_ms = now_ms - self.settings.check_quorum_ms
        heard = self._followers.heard_since(horizon_ms, self.voters, leader_id=self.me.node_id)
        if heard + self.is_voter < self.voters.majority:
            self._become(Cause.LEFT_ALONE, now_ms + self._patience())
            return []
        if now_ms < self._announce_ms:
            return []
        self._announce_ms = now_ms + self.settings.election_timeout_ms
        return [
            Send(it, BeginQuorumEpoch(self.epoch, self.me.node_id, self.voters.key_of(it)))
            for it in self._others()
            if it in self._followers.unaware
        ]

    # Elections: to stand ----------------------------------------------------------------------------------------------

    def _canvass(self, now_ms: int) -> list[Send]:
        """Ask whether we would be elected, before an epoch is begun that would only disturb (KIP-996)."""
        self._become(Cause.TIMED_OUT, now_ms + self._patience())
        self._asked += 1
        return self._ask_for_votes(now_ms, is_pre_vote=True)

    def _stand(self, now_ms: int) -> list[Send]:
        """Begin an epoch, and vote for ourselves: on the disk, before any voter is asked."""
        self._become(Cause.WOULD_WIN, now_ms + self._patience())
        self._ballot.write(Election(self.epoch + 1, NOBODY, self.me))
        return self._ask_for_votes(now_ms, is_pre_vote=False)

    def _ask_for_votes(self, now_ms: int, *, is_pre_vote: bool) -> list[Send]:
        """Count our own vote, and ask the other voters for theirs unless that one is enough."""
        last_epoch, last_offset = self.last_epoch, self.log.log_end_offset
        poll = self._poll = Poll(self.voters, votes_needed(self.voters, is_log_empty=last_offset == 0))
        poll.add(self.me.node_id, self.is_voter)
        if poll.is_won:
            return self._stand(now_ms) if is_pre_vote else self._lead(now_ms, poll)
        return [
            Send(it, Vote(self.epoch, self.me, self.voters.key_of(it), last_epoch, last_offset, is_pre_vote))
            for it in self._others()
        ]

    def on_voted(self, node_id: int, request: Vote, voted: Voted, now_ms: int) -> list[Send]:
        """A voter has answered. Of the answer to an older request only its news of the epoch counts."""
        if not self._on_word_of(voted.epoch, voted.leader_id, now_ms):
            return []
        standing = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        poll = self._poll
        if self.role is not standing or request.epoch != self.epoch or poll is None:
            return []
        poll.add(node_id, voted.is_granted)
        if poll.is_won:
            return self._stand(now_ms) if request.is_pre_vote else self._lead(now_ms, poll)
        if poll.is_lost:
            self._give_up(now_ms)
        return []

    def _give_up(self, now_ms: int) -> None:
        """A majority refused. If there is a leader, they hear of it: follow it; otherwise try again in a while."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.CANDIDATE:
            self._become(Cause.LOST, now_ms + self._chance(self.settings.election_backoff_ms_max))
        elif leader_id not in (NOBODY, self.me.node_id):
            self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)

    # Elections: to vote -----------------------------------------------------------------------------------------------

    def on_vote(self, request: Vote, now_ms: int) -> Voted:
        """A candidate asks for our vote, or whether it would get it."""
        code = self._objection(request.epoch, request.voter)
        if code is not ErrorCode.NONE:
            return Voted(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NOBODY, now_ms)
        is_granted = self._would_vote(request) if request.is_pre_vote else self._vote(request, now_ms)
        return Voted(ErrorCode.NONE, self.epoch, self.leader_id, is_granted)

    def _objection(self, epoch: int, voter: VoterKey) -> ErrorCode:
        """Why a message does not count: this disk has failed, it is for another disk, or its epoch is over."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not voter.names(self.me):
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.NONE

    def _is_up_to_date(self, request: Vote) -> bool:
        """Whether a candidate's log has everything that ours has: one with less must not lead (section 5.4.1)."""
        return (request.last_epoch, request.last_offset) >= (self.last_epoch, self.log.log_end_offset)

    def _would_vote(self, request: Vote) -> bool:
        # A leader sees no need for another, and neither does a follower that its leader has answered.
        if self.role is Role.LEADER or (self.role is Role.FOLLOWER and self._has_fetched):
            return False
        # A candidate with less of the log than we have would not get our vote.
        return self._is_up_to_date(request)

    def _vote(self, request: Vote, now_ms: int) -> bool:
        # One vote in each epoch, for the same candidate as often as it asks; and none in an epoch that has, or had, a
        # leader: the ballot knows, also of a leader that has resigned.
        election = self._ballot.election
        is_free = election.leader_id == NOBODY and election.voted in (None, request.candidate)
        # No vote for a candidate with less of the log than we have.
        if not is_free or not self._is_up_to_date(request):
            return False
        # The vote is on the disk before any node hears of it.
        self._ballot.write(Election(election.epoch, NOBODY, request.candidate))
        # Then give the candidate its time: our own patience begins anew.
        self._deadline_ms = now_ms + self._patience()
        return True

    # To lead ----------------------------------------------------------------------------------------------------------

    def _lead(self, now_ms: int, poll: Poll) -> list[Send]:
        self._become(Cause.WON, now_ms)
        self._ballot.write(Election(self.epoch, self.me.node_id, self.me))
        self.epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(self.epoch, self.epoch_start_offset)
        # What earlier leaders have left is committed with the first record of this epoch, and not before (5.4.2). A log
        # that does not name its voters yet names them from here on.
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
            raise NotLeader(f"node {self.me.node_id} does not lead epoch {self.epoch}, node {self.leader_id} may")
        base_offset = self._write(batch)
        self._advance()
        return base_offset

    def _append(self, builder: BatchBuilder) -> None:
        # A set of voters counts as soon as it is written: the new set decides about itself.
        base_offset = self._write(builder.build())
        self.history.read(self.log, base_offset)
        self._advance()

    def _advance(self) -> None:
        """Move the high watermark to where a majority is, if that is of this epoch."""
        # The ends of the other voters' logs, as their fetches tell. Our own counts only if we vote, and only as far as
        # it is flushed.
        ends = self._followers.end_offsets(self.voters, leader_id=self.me.node_id)
        if self.is_voter:
            ends.append(self.log.flushed_offset)
        ends.sort(reverse=True)
        # So many voters have everything before this offset, on their disks.
        agreed = ends[self.voters.majority - 1]
        # A record of an earlier epoch is not safe by being on a majority: a leader without it could still be elected.
        # One of this epoch is, and makes all before it safe.
        if agreed > self.epoch_start_offset and agreed > self.high_watermark:
            self.high_watermark = agreed

    def on_fetch(self, request: Fetch, now_ms: int, *, bytes_max: int = FETCH_BYTES_MAX) -> Fetched:
        """A replica asks for what comes after its log; voter or not."""
        # A replica in another epoch, or one that asks a node that does not lead, is refused, and told which node may.
        code = self._refusal(request.epoch)
        if code is not ErrorCode.NONE:
            return Fetched(code, self.epoch, self.leader_id)
        # It lives, whatever it gets: `heard_from` notes that, and returns what is known of it.
        progress = self._followers.heard_from(request.replica, now_ms)
        # What it needs is only in a snapshot any more: tell it which.
        if needs_snapshot(request, self.log, self.snapshots.latest):
            return self._fetched(snapshot=self.snapshots.latest)
        # Its log goes another way: tell it where ours leaves that epoch (as in chapter 04). An empty log goes no way.
        ours = self.epochs.end_of(request.last_epoch, log_end_offset=self.log.log_end_offset)
        if request.last_epoch != NO_LEADER_EPOCH and (
            ours.epoch < request.last_epoch or ours.end_offset < request.offset
        ):
            return self._fetched(diverging=ours)
        # It asks for what is after our end, and names no epoch that would say why: that is out of range.
        if request.offset > self.log.log_end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, self.epoch, self.leader_id)
        # It has everything before that offset, on its disk. A fetch that has waited may be looked at again after a
        # later one: within an epoch no replica goes back.
        progress.end_offset = max(progress.end_offset, request.offset)
        # What is committed by that, the answer tells already.
        self._advance()
        return self._fetched(records=self.log.read(request.offset, bytes_max=bytes_max).read())

    def _refusal(self, epoch: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
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

    def progress(self) -> tuple[list[tuple[VoterKey, int, int]], list[tuple[VoterKey, int, int]]]:
        """Voters and observers, each with the end of its log and when it fetched last; -1: this node itself."""
        known = self._followers.states() | {self.me: (self.log.log_end_offset, -1)}
        voters = [(key, *it) for key, it in known.items() if key in self.voters]
        return voters, [(key, *it) for key, it in known.items() if key not in self.voters]

    def resign(self, now_ms: int) -> list[Send]:
        """Lead no more, because this node goes: tell the others, those first that have most of the log."""
        if self.role is not Role.LEADER:
            return []
        successors = self._followers.successors(self.voters, leader_id=self.me.node_id)
        self._become(Cause.LEAVING, now_ms + 2 * self._patience())
        return [Send(it.node_id, EndQuorumEpoch(self.epoch, self.me.node_id, successors)) for it in successors]

    # To follow --------------------------------------------------------------------------------------------------------

    def on_begin(self, request: BeginQuorumEpoch, now_ms: int) -> Heard:
        """Another node says that it leads."""
        code = self._objection(request.epoch, request.voter)
        if code is not ErrorCode.NONE:
            return Heard(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, request.leader_id, now_ms)
        elif self.role is not Role.FOLLOWER:
            self._on_leader_found(request.leader_id, now_ms)
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_end(self, request: EndQuorumEpoch, now_ms: int) -> Heard:
        """The leader goes: stand in its place, after the voters that have more of the log."""
        # It tells all voters the same, so it means whichever of them reads it.
        code = self._objection(request.epoch, self.me)
        if code is not ErrorCode.NONE:
            return Heard(code, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NOBODY, now_ms)
        elif self.role is Role.FOLLOWER and self.leader_id == request.leader_id:
            places = [number for number, key in enumerate(request.successors) if key.names(self.me)]
            place = places[0] if places else len(request.successors)
            self._deadline_ms = now_ms + place * self.settings.election_backoff_ms_max
            # There is no leader, so others may be voted for.
            self._has_fetched = False
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_heard(self, heard: Heard, now_ms: int) -> None:
        """The answer to either."""
        self._on_word_of(heard.epoch, heard.leader_id, now_ms)

    def target(self) -> int:
        """The node to fetch from: the leader; or one voter after the other, which may know the leader."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.FOLLOWER and (self.is_voter or self._asked == 0):
            return leader_id
        others = self._others()
        # All voters may have been replaced while this node was away; those that are configured name others by now.
        others += [it for it in self._bootstrap if it not in (self.me.node_id, *others)]
        # The voters that a new disk knows of may all have gone since: then the leader is none of them.
        if leader_id not in (NOBODY, self.me.node_id, *others):
            others.append(leader_id)
        return others[self._asked % len(others)] if others else NOBODY

    def position(self) -> Fetch | None:
        """What to fetch next; nothing while this node leads, or must have a snapshot first, or cannot write."""
        if self.failure is not None or self.is_leader or self.snapshot_wanted is not None or self.target() == NOBODY:
            return None
        return Fetch(self.epoch, self.me, self.log.log_end_offset, self.last_epoch)

    def on_unanswered(self) -> None:
        """A fetch had no answer: if that was not the leader we know, ask another node."""
        if self.role is not Role.FOLLOWER or not self.is_voter:
            self._asked += 1

    def on_fetched(self, request: Fetch, fetched: Fetched, now_ms: int) -> None:
        """The answer to a fetch."""
        if not self._on_word_of(fetched.epoch, fetched.leader_id, now_ms):
            return
        if fetched.code is not ErrorCode.NONE:
            self.on_unanswered()
            return
        # The leader itself has answered, so it is alive.
        if self.role in (Role.LEADER, Role.RESIGNED):
            return
        if self.role is not Role.FOLLOWER:
            self._on_leader_found(fetched.leader_id, now_ms)
        self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
        self._has_fetched, self._asked = True, 0
        if request == self.position():
            self._take(fetched)

    def _take(self, fetched: Fetched) -> None:
        # Fetch a snapshot; or cut off what the leader does not have; or append, flush, and trust its watermark.
        if fetched.snapshot is not None:
            self.snapshot_wanted = fetched.snapshot
        elif fetched.diverging is not None:
            self._cut(common_end(fetched.diverging, self.epochs, log_end_offset=self.log.log_end_offset))
        else:
            if len(fetched.records):
                self._copy(fetched.records)
            self.high_watermark = max(self.high_watermark, min(fetched.high_watermark, self.log.log_end_offset))

    # Snapshots --------------------------------------------------------------------------------------------------------

    def on_fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> ErrorCode:
        """Whether a piece of a snapshot may be given: only by the leader. The replica is heard, as with a fetch."""
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
        """A piece has come, or not; return whether it is one of what we want."""
        if not self._on_word_of(max(found.epoch, 0), found.leader_id, now_ms) or self.snapshot_wanted is None:
            return False
        if found.code is not ErrorCode.NONE:
            # It is not there any more: the next fetch tells which one is.
            self.snapshot_wanted = None
            return False
        self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
        return True

    def on_snapshot(self, snapshot: SnapshotId, voters: VoterSet) -> None:
        """A snapshot has come as a whole, and is on the disk: the log goes on where it ends."""
        if self.snapshot_wanted != snapshot:
            return
        self.snapshot_wanted = None
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        self.history.start_with(voters)
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)

    def forget_before(self, snapshot: SnapshotId) -> None:
        """A snapshot of our own is on the disk: the log need not keep what is in it."""
        assert snapshot.end_offset <= self.high_watermark, "only what is decided goes into a snapshot"
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
        """Remove a voter. A leader that removes itself leads until that is committed."""
        return self._change(removed(self.voters, key), timestamp)

    def bind_voters(self, *, timestamp: int) -> None:
        """Write down the directories of voters that so far were known by their node id alone."""
        seen = self._followers.unbound(self.voters)
        if self.voters.unbound(self.me):
            seen.append(self.me)
        if seen:
            self._change(bound(self.voters, seen), timestamp)

    def _change(self, change: VoterSet | ErrorCode, timestamp: int) -> ErrorCode:
        """Write down a set of voters. Only a leader does, and only when the last change is committed."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self._is_settled:
            return ErrorCode.REQUEST_TIMED_OUT
        if isinstance(change, ErrorCode):
            return change
        self._append(add_voters(BatchBuilder(is_control=True), change, timestamp=timestamp))
        return ErrorCode.NONE
