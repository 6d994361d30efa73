"""What a node of the quorum is and remembers: its epoch, its role, its log, its voters. A pure module.

`QuorumState` owns all of that, and every change of role goes through `_become`, by the table in `roles`. It knows no
message that nodes exchange: those are `Raft`'s, in `node`, which is the only class built on it.

Three parts are leaves of their own: `Ballot` (what must never be forgotten), `VoterHistory` (which voters the log
names) and what belongs to one role and is gone with it, `Poll` of a candidate and `Followers` of a leader.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.log.errors import StorageError
from minibroker.raft.changes import VoterHistory
from minibroker.raft.election import NOBODY, Ballot, Election
from minibroker.raft.log import QuorumLog
from minibroker.raft.messages import SnapshotId
from minibroker.raft.polling import Poll
from minibroker.raft.progress import Followers
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.snapshots import NoSnapshots, SnapshotFiles, start_at_snapshot
from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache


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


class QuorumState:
    """The state of one node. `me` is this node with its directory; `bootstrap` are the voters before the log names any.

    `clock` is for the timestamps of what it writes, and for nothing else; `now_ms` is any steady clock.
    """

    def __init__(
        self,
        me: VoterKey,
        log: QuorumLog,
        epochs: EpochCache,
        ballot: Ballot,
        bootstrap: VoterSet,
        *,
        chance: Callable[[int], int],
        now_ms: int,
        settings: RaftSettings | None = None,
        snapshots: SnapshotFiles | NoSnapshots | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.me = me
        self.log = log
        self.epochs = epochs
        self.settings = settings or RaftSettings()
        self.snapshots = snapshots or NoSnapshots()
        self._ballot = ballot
        self._chance = chance
        self._clock = clock
        self._failure: str | None = None
        # What a killed process had written and not flushed counts from now on.
        log.flush()
        start_at_snapshot(log, epochs, self.snapshots.latest)
        self._bootstrap = bootstrap
        self.history = VoterHistory(self.snapshots.voters or bootstrap)
        self.history.read(log, log.log_start_offset)
        self.high_watermark = max(log.log_start_offset, 0)
        self.epoch_start_offset = 0
        """Where the epoch begins that this node leads, or led last."""
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
        self._asked = 0
        """How many nodes were asked in vain who leads."""
        self._announce_ms = 0
        self._enter_role(now_ms + self._first_patience())

    # What can be asked ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that this node is in."""
        return self._ballot.election.epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch, or -1. A node that led it and resigned names no leader, also as a candidate."""
        leader_id = self._ballot.election.leader_id
        return NOBODY if leader_id == self.me.node_id and not self.is_leader else leader_id

    @property
    def voted(self) -> VoterKey | None:
        """The candidate that it has voted for in this epoch."""
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
        """The voters, by the last set in the log."""
        return self.history.current

    @property
    def is_voter(self) -> bool:
        """Whether this node is one of them."""
        return self.me in self.voters

    @property
    def _may_stand(self) -> bool:
        """Whether it stands for election: as a voter, or as one that was removed, if that may not be committed yet.

        It may be the only node that has the record, and then no other node gets the votes of those that need it.
        """
        return self.is_voter or self.me in self.history.at(self.high_watermark)

    @property
    def _is_settled(self) -> bool:
        """Whether the voters may change: this epoch has committed a record, and the last change is committed."""
        return self.is_leader and self.high_watermark > max(self.epoch_start_offset, self.history.current_offset)

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

    def _others(self) -> list[int]:
        return self.voters.others(self.me.node_id)

    def _patience(self) -> int:
        # By chance, so that not all voters stand for election at the same time.
        return self.settings.election_timeout_ms + self._chance(self.settings.election_timeout_ms)

    def _first_patience(self) -> int:
        # The only voter need not wait for a word of any other node.
        if self.is_voter and len(self.voters) == 1:
            return 0
        return self.settings.fetch_timeout_ms if self.role is Role.FOLLOWER else self._patience()

    # Changes of role --------------------------------------------------------------------------------------------------

    def _become(self, cause: Cause, deadline_ms: int) -> None:
        following = NEXT.get((self.role, cause))
        assert following is not None, f"{self.role} does not know what to do when {cause.value}"
        self.role = following
        self._enter_role(deadline_ms)

    def _enter_role(self, deadline_ms: int) -> None:
        """Begin a role with nothing of the one before."""
        self._deadline_ms = deadline_ms
        self._poll: Poll | None = None
        self._followers = Followers()
        self._has_fetched = False
        """Whether the leader that this node follows has answered a fetch: so it lives."""
        self.snapshot_wanted: SnapshotId | None = None
        """What must be fetched before the log can go on. Each leader says it anew."""

    def _on_newer_epoch(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Another node is in a newer epoch: go there, with no vote given yet."""
        self._ballot.write(Election(epoch))
        self._become(Cause.NEWER_EPOCH, now_ms + self._patience())
        self._on_leader_found(leader_id, now_ms)

    def _on_leader_found(self, leader_id: int, now_ms: int) -> None:
        """This epoch has a leader: follow it."""
        if leader_id in (NOBODY, self.me.node_id) or self.role in (Role.LEADER, Role.RESIGNED):
            return
        election = self._ballot.election
        self._ballot.write(Election(election.epoch, leader_id, election.voted))
        self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)
        # From here on it fetches from the leader alone.
        self._asked = 0

    def _on_word_of(self, epoch: int, leader_id: int, now_ms: int) -> bool:
        """Learn from what another node says of the epoch; return whether that is this node's epoch."""
        if self.failure is not None:
            return False
        if epoch > self.epoch:
            self._on_newer_epoch(epoch, leader_id, now_ms)
            return False
        # A node that knows a leader already, and waits for it in vain, does not take another's word that it leads.
        if epoch == self.epoch and self._ballot.election.leader_id == NOBODY:
            self._on_leader_found(leader_id, now_ms)
        return epoch == self.epoch

    # The disk ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _at_the_disk(self) -> Iterator[None]:
        """A log that refused a batch is as it was before. But a node that cannot write must not stay in the way."""
        try:
            yield
        except StorageError as error:
            self._failure = str(error)
            raise

    def _write(self, batch: bytearray) -> int:
        """Append a batch of this leader's, durably, and return its base offset."""
        with self._at_the_disk():
            base_offset = self.log.append(batch, leader_epoch=self.epoch)
            self.log.flush()
        return base_offset

    def _copy(self, records: memoryview) -> None:
        """Append what the leader has sent, durably. A set of voters counts as soon as it is written."""
        first = self.log.log_end_offset
        with self._at_the_disk():
            self.log.append_as_follower(records)
            self.log.flush()
        self.history.read(self.log, first)

    def _cut(self, offset: int) -> None:
        """Drop what the leader does not have."""
        assert offset >= self.high_watermark, f"what is decided up to {self.high_watermark} would be cut at {offset}"
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        self.history.truncate(self.log.log_end_offset)
