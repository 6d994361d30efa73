"""One node of the quorum: voter or observer. A pure module.

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, BatchBuilder
from minibroker.log.errors import LogError, StorageError
from minibroker.raft.control import add_voters, leader_change, voter_sets
from minibroker.raft.election import NOBODY, Ballot, Election
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
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.snapshots import WAY_OUT
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import common_end
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode
from minibroker.wire.uuids import NO_UUID

FETCH_BYTES_MAX = 8 * 1024**2


@dataclass(frozen=True)
class RaftSettings:
    """Kafka's names, and shorter times: a cluster is to go on within seconds."""

    election_timeout_ms: int = 500  # controller.quorum.election.timeout.ms; up to twice as long, by chance
    fetch_timeout_ms: int = 1000  # controller.quorum.fetch.timeout.ms
    election_backoff_ms_max: int = 500  # controller.quorum.election.backoff.max.ms

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader leads without hearing from a majority."""
        return self.fetch_timeout_ms * 3 // 2


class Snapshots(Protocol):
    """What a node must know of its snapshots; chapter 05's driver keeps the files."""

    @property
    def latest(self) -> SnapshotId | None:
        """The newest whole snapshot."""

    @property
    def voters(self) -> VoterSet | None:
        """The set of voters in it."""


class NoSnapshots:
    """There are none."""

    latest: SnapshotId | None = None
    voters: VoterSet | None = None


@dataclass(slots=True)
class _Progress:
    """How far a replica is, as its fetches tell."""

    end_offset: int = 0
    last_fetch_ms: int = 0


class NotLeader(Exception):
    """Only a leader appends; the message says who that may be."""


class Raft:
    """The state machine. `me` is this node with its directory; `bootstrap` are the voters before the log names any.

    `clock` is for the timestamps of what it writes, and for nothing else; `now_ms` is any steady clock.
    """

    def __init__(
        self,
        me: VoterKey,
        log: SegmentedLog,
        epochs: EpochCache,
        ballot: Ballot,
        bootstrap: VoterSet,
        *,
        chance: Callable[[int], int],
        now_ms: int,
        settings: RaftSettings | None = None,
        snapshots: Snapshots | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.me = me
        self.log = log
        self.epochs = epochs
        self.settings = settings or RaftSettings()
        self.snapshots: Snapshots = snapshots or NoSnapshots()
        self._ballot = ballot
        self._chance = chance
        self._clock = clock
        self._failure: str | None = None
        # What a killed process had written and not flushed counts from now on.
        log.flush()
        self._begin_where_the_snapshot_ends()
        self._bootstrap = bootstrap
        self._sets: list[tuple[int, VoterSet]] = [(NO_OFFSET, self.snapshots.voters or bootstrap)]
        self._sets += voter_sets(log, log.log_start_offset)
        self.high_watermark = max(log.log_start_offset, 0)
        self.epoch_start_offset = 0
        self.snapshot_wanted: SnapshotId | None = None
        """What must be fetched before the log can go on."""
        self._votes: dict[int, bool] = {}
        self._followers: dict[VoterKey, _Progress] = {}
        self._unaware: set[int] = set()
        self._announce_ms = 0
        self._has_fetched = False
        """Whether the leader that this node follows has answered a fetch: so it lives."""
        self._asked = 0
        # A log may know of a later epoch than the ballot: one that was written before there was a quorum has none.
        if ballot.election.epoch < self.last_epoch:
            ballot.write(Election(self.last_epoch))
        # A node that led comes back as one that led: it may have forgotten what it said last.
        election = ballot.election
        self.role = Role.UNATTACHED
        if election.leader_id == me.node_id:
            self.role = Role.RESIGNED
        elif election.leader_id != NOBODY:
            self.role = Role.FOLLOWER
        self._deadline_ms = now_ms + self._first_patience()

    def _begin_where_the_snapshot_ends(self) -> None:
        """Do again what a crash may have prevented after a snapshot was on the disk: the log begins where it ends."""
        latest, log = self.snapshots.latest, self.log
        end_offset = 0 if latest is None else latest.end_offset
        if log.log_start_offset > end_offset:
            raise LogError(
                f"the metadata log starts at offset {log.log_start_offset}, and the newest snapshot ends at"
                f" {end_offset}: what was in between is gone. If a snapshot is missing, {WAY_OUT}"
            )
        if latest is None or log.log_start_offset == end_offset:
            return
        # A snapshot stands for what is decided. A log that does not lead up to it goes another way, or ends before.
        is_continued = log.log_end_offset >= latest.end_offset
        if is_continued and self.epochs.epoch_of(latest.end_offset - 1) == latest.epoch:
            log.delete_before(latest.end_offset)
        else:
            log.truncate_fully_and_start_at(latest.end_offset)

    # What can be asked ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that this node is in."""
        return self._ballot.election.epoch

    @property
    def leader_id(self) -> int:
        """Who leads it, or -1: who led it and does not any more says so, also when it asks for votes again."""
        leader_id = self._ballot.election.leader_id
        return NOBODY if leader_id == self.me.node_id and not self.is_leader else leader_id

    @property
    def voted(self) -> VoterKey | None:
        """For whom it has voted in this epoch."""
        return self._ballot.election.voted

    @property
    def failure(self) -> str | None:
        """Why this node takes no part any more, if it does not: its disk has failed."""
        return self._failure or self._ballot.failure or self.log.failure

    @property
    def is_leader(self) -> bool:
        """Whether this node leads. One that cannot write down what it decides does not."""
        return self.role is Role.LEADER and self.failure is None

    @property
    def voters(self) -> VoterSet:
        """Those who vote, by the last set in the log."""
        return self._sets[-1][1]

    @property
    def is_voter(self) -> bool:
        """Whether this node is one of them."""
        return self.me in self.voters

    @property
    def _may_stand(self) -> bool:
        """Whether it stands for election: as a voter, or as one that was let go, if that may not be decided yet.

        It may be the only one that has the record, and then nobody else gets the votes of those who need it.
        """
        return self.is_voter or self.me in self.voters_at(self.high_watermark)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        if self.log.log_end_offset > self.log.log_start_offset:
            return self.epochs.latest_epoch
        latest = self.snapshots.latest
        return latest.epoch if latest is not None else NO_LEADER_EPOCH

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has something to do at the latest."""
        return self._announce_ms if self.is_leader else self._deadline_ms

    def _patience(self) -> int:
        # By chance, so that not all stand up at the same time.
        return self.settings.election_timeout_ms + self._chance(self.settings.election_timeout_ms)

    def _first_patience(self) -> int:
        # Who votes alone need not wait to hear of anybody else.
        if self.is_voter and len(self.voters) == 1:
            return 0
        return self.settings.fetch_timeout_ms if self.role is Role.FOLLOWER else self._patience()

    # Changes of role --------------------------------------------------------------------------------------------------

    def _become(self, cause: Cause, deadline_ms: int) -> None:
        following = NEXT.get((self.role, cause))
        assert following is not None, f"{self.role} does not know what to do when {cause.value}"
        self.role, self._deadline_ms = following, deadline_ms
        self._votes, self._followers, self._unaware = {}, {}, set()
        self._has_fetched = False
        # Whoever leads next says anew what must be fetched; until then this node looks for it.
        self.snapshot_wanted = None

    def _on_newer_epoch(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Somebody is in a newer epoch: go there, with no vote given yet."""
        self._ballot.write(Election(epoch))
        self._become(Cause.NEWER_EPOCH, now_ms + self._patience())
        self._on_leader_found(leader_id, now_ms)

    def _on_leader_found(self, leader_id: int, now_ms: int) -> None:
        """Somebody leads this epoch: follow."""
        if leader_id in (NOBODY, self.me.node_id) or self.role in (Role.LEADER, Role.RESIGNED):
            return
        election = self._ballot.election
        self._ballot.write(Election(election.epoch, leader_id, election.voted))
        self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)
        # Ask it, and nobody else.
        self._asked = 0

    def _on_word_of(self, epoch: int, leader_id: int, now_ms: int) -> bool:
        """Learn from what another node says of the epoch; return whether it is of ours."""
        if self.failure is not None:
            return False
        if epoch > self.epoch:
            self._on_newer_epoch(epoch, leader_id, now_ms)
            return False
        # Who knows a leader already, and waits for it in vain, does not take another's word that it leads.
        if epoch == self.epoch and self._ballot.election.leader_id == NOBODY:
            self._on_leader_found(leader_id, now_ms)
        return epoch == self.epoch

    # Time -------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Send]:
        """Time has passed."""
        if self.failure is not None:
            # Others must not wait until they miss it.
            return self.resign(now_ms)
        if self.is_leader:
            return self._lead_on(now_ms)
        if now_ms < self._deadline_ms:
            return []
        if not self._may_stand:
            # An observer stands for nothing; it looks for the leader elsewhere. Others may take it for a voter, and
            # whoever stands there instead of a leader that is gone must not be told that there is one.
            self._deadline_ms = now_ms + self.settings.fetch_timeout_ms
            self._asked += 1
            self._has_fetched = False
            return []
        return self._canvass(now_ms)

    def on_stuck(self, late_ms: int) -> None:
        """This node itself did nothing for so long: what others have said meanwhile is still to be heard."""
        self._deadline_ms += late_ms
        for progress in self._followers.values():
            progress.last_fetch_ms += late_ms

    def _lead_on(self, now_ms: int) -> list[Send]:
        # It has let itself go, and that is decided.
        if not self.is_voter and self._is_settled:
            return self.resign(now_ms)
        # A leader that hears of no majority may have been deposed without knowing: it must not go on as if.
        horizon_ms = now_ms - self.settings.check_quorum_ms
        heard = sum(self._progress(self.voters.key_of(it)).last_fetch_ms >= horizon_ms for it in self._others())
        if heard + self.is_voter < self.voters.majority:
            self._become(Cause.LEFT_ALONE, now_ms + self._patience())
            return []
        if now_ms < self._announce_ms:
            return []
        self._announce_ms = now_ms + self.settings.election_timeout_ms
        return [
            Send(it, BeginQuorumEpoch(self.epoch, self.me.node_id, self.voters.key_of(it)))
            for it in self._others()
            if it in self._unaware
        ]

    def _others(self) -> list[int]:
        return [it for it in self.voters if it != self.me.node_id]

    # Elections: to stand ----------------------------------------------------------------------------------------------

    def _canvass(self, now_ms: int) -> list[Send]:
        """Ask whether we would be elected, before an epoch is begun that would only disturb (KIP-996)."""
        self._become(Cause.TIMED_OUT, now_ms + self._patience())
        self._asked += 1
        self._votes = {self.me.node_id: self.is_voter}
        return self._stand(now_ms) if self._has_majority() else self._ask_for_votes(is_pre_vote=True)

    def _stand(self, now_ms: int) -> list[Send]:
        """Begin an epoch, and vote for ourselves: on the disk, before anybody is asked."""
        self._become(Cause.WOULD_WIN, now_ms + self._patience())
        self._ballot.write(Election(self.epoch + 1, NOBODY, self.me))
        self._votes = {self.me.node_id: self.is_voter}
        return self._lead(now_ms) if self._has_majority() else self._ask_for_votes(is_pre_vote=False)

    def _ask_for_votes(self, *, is_pre_vote: bool) -> list[Send]:
        last_epoch, last_offset = self.last_epoch, self.log.log_end_offset
        return [
            Send(it, Vote(self.epoch, self.me, self.voters.key_of(it), last_epoch, last_offset, is_pre_vote))
            for it in self._others()
        ]

    def _votes_needed(self) -> int:
        # Who has nothing knows the voters from its configuration, but not with which disks. It cannot tell a cluster
        # that begins from one that has lost disks, or has other voters by now. If any of those who are named has
        # something, it says no: so all of them are asked.
        keys = [self.voters.key_of(it) for it in self.voters]
        has_nothing = self.log.log_end_offset == 0 and any(key.directory_id == NO_UUID for key in keys)
        return len(keys) if has_nothing else self.voters.majority

    def _has_majority(self) -> bool:
        return sum(self._votes.get(it, False) for it in self.voters) >= self._votes_needed()

    def _has_lost(self) -> bool:
        refused = sum(not self._votes.get(it, True) for it in self.voters)
        return len(self.voters) - refused < self._votes_needed()

    def on_voted(self, node_id: int, request: Vote, voted: Voted, now_ms: int) -> list[Send]:
        """A voter has answered. What it says of an older question is worth only the news in it."""
        if not self._on_word_of(voted.epoch, voted.leader_id, now_ms):
            return []
        standing = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        if self.role is not standing or request.epoch != self.epoch or not self._votes:
            return []
        self._votes[node_id] = voted.is_granted
        if self._has_majority():
            return self._stand(now_ms) if request.is_pre_vote else self._lead(now_ms)
        if self._has_lost():
            self._give_up(now_ms)
        return []

    def _give_up(self, now_ms: int) -> None:
        """A majority is against it. Those who hear of the leader know better; otherwise try again in a while."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.CANDIDATE:
            self._become(Cause.LOST, now_ms + self._chance(self.settings.election_backoff_ms_max))
        elif leader_id not in (NOBODY, self.me.node_id):
            self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)

    # Elections: to vote -----------------------------------------------------------------------------------------------

    def on_vote(self, request: Vote, now_ms: int) -> Voted:
        """Somebody asks for our vote, or whether it would get it."""
        if self.failure is not None:
            return Voted(ErrorCode.KAFKA_STORAGE_ERROR, self.epoch, self.leader_id)
        if not self._is_meant(request.voter):
            return Voted(ErrorCode.INVALID_VOTER_KEY, self.epoch, self.leader_id)
        if request.epoch < self.epoch:
            return Voted(ErrorCode.FENCED_LEADER_EPOCH, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NOBODY, now_ms)
        is_granted = self._would_vote(request) if request.is_pre_vote else self._vote(request, now_ms)
        return Voted(ErrorCode.NONE, self.epoch, self.leader_id, is_granted)

    def _is_meant(self, voter: VoterKey) -> bool:
        return voter.node_id == self.me.node_id and voter.directory_id in (NO_UUID, self.me.directory_id)

    def _is_up_to_date(self, request: Vote) -> bool:
        """Whether a candidate's log has everything that ours has: who has less must not lead (section 5.4.1)."""
        return (request.last_epoch, request.last_offset) >= (self.last_epoch, self.log.log_end_offset)

    def _would_vote(self, request: Vote) -> bool:
        # Who leads sees no need for another, and neither does a follower that its leader has answered.
        if self.role is Role.LEADER or (self.role is Role.FOLLOWER and self._has_fetched):
            return False
        # Who has less of the log than we do would not get our vote.
        return self._is_up_to_date(request)

    def _vote(self, request: Vote, now_ms: int) -> bool:
        # One vote in each epoch, for the same candidate as often as it asks; and none in an epoch that has, or had, a
        # leader: the ballot knows, also of a leader that has resigned.
        election = self._ballot.election
        is_free = election.leader_id == NOBODY and election.voted in (None, request.candidate)
        # None for who has less of the log than we do.
        if not is_free or not self._is_up_to_date(request):
            return False
        # On the disk before anybody hears of it.
        self._ballot.write(Election(election.epoch, NOBODY, request.candidate))
        # Then give the candidate its time: our own patience begins anew.
        self._deadline_ms = now_ms + self._patience()
        return True

    # To lead ----------------------------------------------------------------------------------------------------------

    def _lead(self, now_ms: int) -> list[Send]:
        granting = [it for it, is_granted in self._votes.items() if is_granted]
        self._become(Cause.WON, now_ms)
        self._ballot.write(Election(self.epoch, self.me.node_id, self.me))
        self.epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(self.epoch, self.epoch_start_offset)
        # What earlier leaders have left is committed with the first record of this epoch, and not before (5.4.2). A log
        # that does not say yet who votes says so from here on.
        timestamp = self._clock()
        builder = leader_change(self.me.node_id, self.voters, granting, timestamp=timestamp)
        if self._sets[-1][0] == NO_OFFSET and self.snapshots.voters is None:
            add_voters(builder, self.voters, timestamp=timestamp)
        self._followers = {self.voters.key_of(it): _Progress(0, now_ms) for it in self._others()}
        self._unaware = set(self._others())
        self._announce_ms = now_ms
        self._append(builder)
        return self.tick(now_ms)

    def append(self, batch: bytearray) -> int:
        """Append a batch, durably, and return its base offset. It is decided when the high watermark has passed it."""
        if not self.is_leader:
            raise NotLeader(f"node {self.me.node_id} does not lead epoch {self.epoch}, node {self.leader_id} may")
        base_offset = self._write(batch)
        self._advance()
        return base_offset

    def _write(self, batch: bytearray) -> int:
        with self._at_the_disk():
            base_offset = self.log.append(batch, leader_epoch=self.epoch)
            self.log.flush()
        return base_offset

    @contextmanager
    def _at_the_disk(self) -> Iterator[None]:
        """A log that refused a batch is as it was before. But a node that cannot write must not stay in the way."""
        try:
            yield
        except StorageError as error:
            self._failure = str(error)
            raise

    def _append(self, builder: BatchBuilder) -> None:
        # A set of voters counts as soon as it is written: it is the new one that decides about itself.
        base_offset = self._write(builder.build())
        self._sets += voter_sets(self.log, base_offset)
        self._advance()

    def _progress(self, key: VoterKey) -> _Progress:
        # A voter that the set names without a directory is known by the one that it fetches with.
        found = self._followers.get(key)
        if found is None and key.directory_id == NO_UUID:
            found = next((it for known, it in self._followers.items() if known.node_id == key.node_id), None)
        return found or _Progress()

    def _heard_from(self, replica: VoterKey, now_ms: int) -> _Progress:
        """A replica has asked us: it lives, and knows who leads. What is known of it is returned, to be added to."""
        progress = self._followers.setdefault(replica, _Progress())
        # From its first question on it is known by its directory, and no longer by its number alone.
        self._followers.pop(VoterKey(replica.node_id), None)
        progress.last_fetch_ms = max(progress.last_fetch_ms, now_ms)
        self._unaware.discard(replica.node_id)
        return progress

    def _advance(self) -> None:
        """Move the high watermark to where a majority is, if that is of this epoch."""
        # The ends of the other voters' logs, as `_progress` knows them. Our own counts only if we vote, and only as far
        # as it is flushed.
        ends = [self._progress(self.voters.key_of(it)).end_offset for it in self._others()]
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
        # Who is in another epoch, or asks somebody who does not lead, is refused, and told who may lead.
        code = self._refusal(request.epoch)
        if code is not ErrorCode.NONE:
            return Fetched(code, self.epoch, self.leader_id)
        # It lives, whatever it gets: `_heard_from` notes that, and returns what is known of it.
        progress = self._heard_from(request.replica, now_ms)
        # What it needs is only in a snapshot any more: tell it which.
        if self._needs_snapshot(request):
            return self._fetched(snapshot=self.snapshots.latest)
        # Its log goes another way: tell it where ours leaves that epoch (as in chapter 04). An empty log goes no way.
        ours = self.epochs.end_of(request.last_epoch, log_end_offset=self.log.log_end_offset)
        if request.last_epoch != NO_LEADER_EPOCH and (
            ours.epoch < request.last_epoch or ours.end_offset < request.offset
        ):
            return self._fetched(diverging=ours)
        # It asks for what is behind our end, and names no epoch that would say why: that is out of range.
        if request.offset > self.log.log_end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, self.epoch, self.leader_id)
        # It has everything before that offset, on its disk. A question that has waited may be looked at again after a
        # later one: within an epoch nobody goes back.
        progress.end_offset = max(progress.end_offset, request.offset)
        # What is decided by that, the answer tells already.
        self._advance()
        return self._fetched(records=self.log.read(request.offset, bytes_max=bytes_max).read())

    def _needs_snapshot(self, request: Fetch) -> bool:
        latest = self.snapshots.latest
        if latest is None or request.offset < self.log.log_start_offset:
            return request.offset < self.log.log_start_offset
        # The log does not say any more of which epoch the record before its start was, the snapshot does. One that
        # ends there with another has something else there; and so has one whose last epoch is before that.
        at_start = request.offset == self.log.log_start_offset
        return request.last_epoch < latest.epoch or (at_start and request.last_epoch != latest.epoch)

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
        """Voters and observers, each with the end of its log and when it fetched last."""
        known = {key: (key, it.end_offset, it.last_fetch_ms) for key, it in self._followers.items()}
        known[self.me] = (self.me, self.log.log_end_offset, -1)
        voters = [it for key, it in known.items() if key in self.voters]
        return voters, [it for key, it in known.items() if key not in self.voters]

    def resign(self, now_ms: int) -> list[Send]:
        """Lead no more, because this node goes: tell the others, those first that have most of the log."""
        if self.role is not Role.LEADER:
            return []
        known = sorted(self._others(), key=lambda it: -self._progress(self.voters.key_of(it)).end_offset)
        successors = tuple(self.voters.key_of(it) for it in known)
        self._become(Cause.LEAVING, now_ms + 2 * self._patience())
        return [Send(it, EndQuorumEpoch(self.epoch, self.me.node_id, successors)) for it in known]

    # To follow --------------------------------------------------------------------------------------------------------

    def on_begin(self, request: BeginQuorumEpoch, now_ms: int) -> Heard:
        """Somebody says that it leads."""
        if self.failure is not None:
            return Heard(ErrorCode.KAFKA_STORAGE_ERROR, self.epoch, self.leader_id)
        if not self._is_meant(request.voter):
            return Heard(ErrorCode.INVALID_VOTER_KEY, self.epoch, self.leader_id)
        if request.epoch < self.epoch:
            return Heard(ErrorCode.FENCED_LEADER_EPOCH, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, request.leader_id, now_ms)
        elif self.role is not Role.FOLLOWER:
            self._on_leader_found(request.leader_id, now_ms)
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_end(self, request: EndQuorumEpoch, now_ms: int) -> Heard:
        """The leader goes: stand in its place, after those who have more of the log."""
        if self.failure is not None:
            return Heard(ErrorCode.KAFKA_STORAGE_ERROR, self.epoch, self.leader_id)
        if request.epoch < self.epoch:
            return Heard(ErrorCode.FENCED_LEADER_EPOCH, self.epoch, self.leader_id)
        if request.epoch > self.epoch:
            self._on_newer_epoch(request.epoch, NOBODY, now_ms)
        elif self.role is Role.FOLLOWER and self.leader_id == request.leader_id:
            place = next(
                (n for n, key in enumerate(request.successors) if self._is_meant(key)), len(request.successors)
            )
            self._deadline_ms = now_ms + place * self.settings.election_backoff_ms_max
            # Nobody leads, so others may be voted for.
            self._has_fetched = False
        return Heard(ErrorCode.NONE, self.epoch, self.leader_id)

    def on_heard(self, heard: Heard, now_ms: int) -> None:
        """The answer to either."""
        self._on_word_of(heard.epoch, heard.leader_id, now_ms)

    def target(self) -> int:
        """Whom to fetch from: the leader; or one voter after the other, who may know who that is."""
        leader_id = self._ballot.election.leader_id
        if self.role is Role.FOLLOWER and (self.is_voter or self._asked == 0):
            return leader_id
        others = self._others()
        # All voters may have been replaced while this node was away; whoever knows it names others by now.
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
        """A fetch had no answer: if that was not the leader we know, ask another one."""
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
        # Fetch a snapshot; or cut off what the leader does not have; or append, flush, and believe in its watermark.
        if fetched.snapshot is not None:
            self.snapshot_wanted = fetched.snapshot
        elif fetched.diverging is not None:
            self._cut(common_end(fetched.diverging, self.epochs, log_end_offset=self.log.log_end_offset))
        else:
            first = self.log.log_end_offset
            if len(fetched.records):
                with self._at_the_disk():
                    self.log.append_as_follower(fetched.records)
                    self.log.flush()
                self._sets += voter_sets(self.log, first)
            self.high_watermark = max(self.high_watermark, min(fetched.high_watermark, self.log.log_end_offset))

    def _cut(self, offset: int) -> None:
        assert offset >= self.high_watermark, f"what is decided up to {self.high_watermark} would be cut at {offset}"
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        self._sets = [it for it in self._sets if it[0] < self.log.log_end_offset]

    def on_fetch_snapshot(self, request: FetchSnapshot, now_ms: int) -> ErrorCode:
        """Whether a piece of a snapshot may be given: only by who leads. Who asks for one is heard, as with a fetch."""
        code = self._refusal(request.epoch)
        if code is ErrorCode.NONE:
            self._heard_from(request.replica, now_ms)
        return code

    def snapshot_position(self, received: int) -> FetchSnapshot | None:
        """The piece of a snapshot to fetch next, of whom we follow."""
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
        self._sets = [(NO_OFFSET, voters)]
        self.high_watermark = max(self.high_watermark, snapshot.end_offset)

    def forget_before(self, snapshot: SnapshotId) -> None:
        """A snapshot of our own is on the disk: the log need not keep what is in it."""
        assert snapshot.end_offset <= self.high_watermark, "only what is decided goes into a snapshot"
        if snapshot.end_offset > self.log.log_start_offset:
            self.log.roll()
            self.log.delete_before(snapshot.end_offset)
            kept = [it for it in self._sets if it[0] >= snapshot.end_offset]
            before = [it for it in self._sets if it[0] < snapshot.end_offset]
            self._sets = [(NO_OFFSET, before[-1][1]), *kept]

    def voters_at(self, offset: int) -> VoterSet:
        """The set of voters as of an offset."""
        return [voters for at, voters in self._sets if at < offset][-1]

    # Voters come and go -----------------------------------------------------------------------------------------------

    @property
    def _is_settled(self) -> bool:
        """Whether the set of voters may change: this epoch has decided something, and the last change is decided."""
        return self.is_leader and self.high_watermark > max(self.epoch_start_offset, self._sets[-1][0])

    def add_voter(self, voter: Voter, *, timestamp: int) -> ErrorCode:
        """Take a voter in that has fetched the log as an observer."""
        code = self._changeable()
        if code is not ErrorCode.NONE:
            return code
        if voter.key.node_id in self.voters.voters:
            return ErrorCode.DUPLICATE_VOTER
        # One that is far behind would make a majority of those who have nothing yet.
        if self._progress(voter.key).end_offset < self.high_watermark:
            return ErrorCode.REQUEST_TIMED_OUT
        self._append(add_voters(BatchBuilder(is_control=True), self.voters.with_voter(voter), timestamp=timestamp))
        return ErrorCode.NONE

    def remove_voter(self, key: VoterKey, *, timestamp: int) -> ErrorCode:
        """Let a voter go. A leader that lets itself go leads until that is decided."""
        code = self._changeable()
        if code is not ErrorCode.NONE:
            return code
        if key not in self.voters or len(self.voters) == 1:
            return ErrorCode.VOTER_NOT_FOUND if key not in self.voters else ErrorCode.INVALID_REQUEST
        self._append(add_voters(BatchBuilder(is_control=True), self.voters.without(key.node_id), timestamp=timestamp))
        return ErrorCode.NONE

    def bind_voters(self, *, timestamp: int) -> None:
        """Write down the directories of voters that so far were known by their number alone."""
        seen = [key for key in self._followers if self.voters.unbound(key)]
        if self.is_leader and self.voters.unbound(self.me):
            seen.append(self.me)
        if not seen or not self._is_settled:
            return
        voters = self.voters
        for key in seen:
            voters = voters.with_voter(voters.voters[key.node_id]._replace(key=key))
        self._append(add_voters(BatchBuilder(is_control=True), voters, timestamp=timestamp))

    def _changeable(self) -> ErrorCode:
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if self._is_settled else ErrorCode.REQUEST_TIMED_OUT
