"""The leader's part of a node: it writes records, answers fetches, commits, and changes the voters. A pure module.

In the Raft paper, a leader pushes entries to its followers. Here the followers fetch them. Each fetch tells the leader
how far its follower is, and `Followers` keeps that. When a majority has a record of this epoch on its disks, the record
and everything before it are committed.

`Leading` is built on `QuorumState`. `Voting`, in `voting`, calls `begin_leading` when an election is won.
"""

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchBuilder
from minibroker.raft.changes import added, bound, removed
from minibroker.raft.control import add_voters, leader_change
from minibroker.raft.election import Election
from minibroker.raft.messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, Fetched, FetchSnapshot, Send
from minibroker.raft.progress import NEVER_MS, Followers, Progress
from minibroker.raft.roles import Cause, Role
from minibroker.raft.snapshots import needs_snapshot
from minibroker.raft.state import QuorumState
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.wire.codes import ErrorCode

FETCH_BYTES_MAX = 8 * 1024**2


class NotLeader(Exception):
    """An append on a node that does not lead: `node 2 does not lead epoch 7 (leader: 1)`; -1 if there is none."""


class Leading(QuorumState):
    """The events of a leader. Every other role refuses fetches and appends."""

    # Begin and end ----------------------------------------------------------------------------------------------------

    def begin_leading(self, granting: list[int], now_ms: int) -> list[Send]:
        """Become the leader of this epoch, by the votes of the nodes in `granting`. Announce it to the other voters."""
        self._become(Cause.WON, now_ms)
        self._ballot.write(Election(self.epoch, self.me.node_id, self.me))
        self.epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(self.epoch, self.epoch_start_offset)
        # Records of earlier epochs are committed with the first record of this epoch, and not before (section 5.4.2). A
        # log without a voter set gets one now.
        timestamp = self._clock()
        builder = leader_change(self.me.node_id, self.voters, granting, timestamp=timestamp)
        if self.history.current_offset == NO_OFFSET and self.snapshots.voters is None:
            add_voters(builder, self.voters, timestamp=timestamp)
        self._followers = Followers((self.voters.key_of(it) for it in self._others()), now_ms)
        self._announce_ms = now_ms
        self._append(builder)
        return self.tick_as_leader(now_ms)

    def tick_as_leader(self, now_ms: int) -> list[Send]:
        """Check whether a majority still fetches, and announce this leader to voters that have not fetched from it.

        It is announced again after `election_timeout_ms`, which is not drawn at random here.
        """
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

    def resign(self, now_ms: int) -> list[Send]:
        """Stop leading, and tell the other voters; the voters with the longest logs stand for election first."""
        if self.role is not Role.LEADER:
            return []
        successors = self._followers.successors(self.voters, leader_id=self.me.node_id)
        self._become(Cause.STEPPED_DOWN, now_ms + 2 * self._election_timeout())
        return [Send(it.node_id, EndQuorumEpoch(self.epoch, self.me.node_id, successors)) for it in successors]

    # Records ----------------------------------------------------------------------------------------------------------

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
        """Answer a voter or observer that asks for the records after the end of its log.

        An answer without an error has the high watermark, whatever else it has.
        """
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
        """The progress of the voters and of the observers. The leader itself always counts as caught up, now.

        A leader that is no voter any more is among the observers.
        """
        known = self._followers.all() | {self.me: Progress(self.log.log_end_offset, now_ms, now_ms)}
        voters = {key: it for key, it in known.items() if key in self.voters}
        # A voter that was removed before it had ever fetched is not an observer.
        observers = {key: it for key, it in known.items() if key not in self.voters and it.last_fetch_ms != NEVER_MS}
        return voters, observers

    # Snapshots --------------------------------------------------------------------------------------------------------

    def on_fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> ErrorCode:
        """Check whether this node leads and may send a piece of a snapshot. Note that the replica is alive."""
        code = self._refusal(request.epoch)
        if code is ErrorCode.NONE:
            self._followers.heard_from(request.replica, now_ms)
        return code

    # Changes of the voters --------------------------------------------------------------------------------------------

    def add_voter(self, voter: Voter, *, timestamp: int) -> ErrorCode:
        """Add a voter that has fetched the log as an observer.

        As in `remove_voter`, a node that does not lead says so first. Then the last change must be committed. Only then
        the voter itself is looked at.
        """
        has_caught_up = self._followers.of(voter.key).end_offset >= self.high_watermark
        return self._change(added(self.voters, voter, has_caught_up=has_caught_up), timestamp)

    def remove_voter(self, key: VoterKey, *, timestamp: int) -> ErrorCode:
        """Remove a voter. A leader that removes itself leads until the removal is committed."""
        return self._change(removed(self.voters, key), timestamp)

    def bind_voters(self, *, timestamp: int) -> None:
        """Write the directories of voters that were known by node id alone, this node included."""
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
