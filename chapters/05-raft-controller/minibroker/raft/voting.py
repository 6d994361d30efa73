"""Elections: when a node stands, how it counts votes, and whom it votes for. A pure module.

    its timeout passes ─▶ asks for pre-votes ── a majority would vote for it ─▶ begins an epoch, and asks for votes
                                                                                       │
                              `begin_leading`, in `leading` ◀── a majority has voted for it

A node asks before it begins an epoch, so that a candidate that would lose disturbs no leader (KIP-996). A vote, also
the vote of a candidate for itself, is on the disk before another node hears of it.
"""

from minibroker.raft.election import EPOCH_MAX, NO_NODE, Election
from minibroker.raft.leading import Leading
from minibroker.raft.messages import Send, Vote, Voted
from minibroker.raft.polling import Poll, votes_needed
from minibroker.raft.roles import Cause, Role
from minibroker.wire.codes import ErrorCode


class Voting(Leading):
    """The passing of time, and the events of an election."""

    # Time -------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Send]:
        """Handle the passing of time: elections, the check of the quorum, announcements of the leader."""
        if self.failure is not None:
            # Tell the other voters, so that they need not wait for a timeout.
            return self.resign(now_ms)
        if self.is_leader:
            return self.tick_as_leader(now_ms)
        if now_ms < self._deadline_ms:
            return []
        if not self._may_stand:
            # An observer does not stand for election; it asks another node for the leader. Other nodes may consider it
            # a voter, and ask for its pre-vote. A node that fetches from a leader refuses pre-votes. But this leader
            # no longer answers, so clear `_has_fetched`, which lets this node grant pre-votes.
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
            return self._start_election(now_ms) if is_pre_vote else self.begin_leading(poll.granting, now_ms)
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
            return self._start_election(now_ms) if request.is_pre_vote else self.begin_leading(poll.granting, now_ms)
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
