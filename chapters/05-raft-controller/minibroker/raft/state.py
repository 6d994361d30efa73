"""The state of a node of the quorum: its epoch, its role, its log, its voters. A pure module.

`QuorumState` owns the state, and every change of role goes through `_become`, by the table in `roles`. It does not know
the messages that nodes exchange. Three classes handle them: `Leading` is built on `QuorumState`, `Voting` on `Leading`,
and `Raft` on `Voting`.

`Ballot` keeps the epoch and the vote on the disk, `VoterHistory` has the voter sets of the log. Two parts belong to one
role and end with it: the `Poll` of a candidate and the `Followers` of a leader.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minibroker.log.batch import NO_LEADER_EPOCH
from minibroker.log.errors import StorageError
from minibroker.raft.changes import VoterHistory
from minibroker.raft.election import EPOCH_MAX, NO_NODE, Ballot, Election
from minibroker.raft.log import QuorumLog
from minibroker.raft.messages import SnapshotId
from minibroker.raft.polling import Poll
from minibroker.raft.progress import Followers
from minibroker.raft.roles import NEXT, Cause, Role
from minibroker.raft.snapshots import NoSnapshots, SnapshotFiles, start_at_snapshot
from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.replication.epochs import EpochCache
from minibroker.wire.codes import ErrorCode

EPOCH_STEP_MAX = 10_000
"""By how much one request may raise the epoch. A forged request could otherwise use up all epochs. A node that is
further behind learns the epoch from the response of a node that it has asked."""


@dataclass(frozen=True)
class RaftSettings:
    """Kafka's timeouts, with shorter defaults, so that a cluster recovers within seconds."""

    election_timeout_ms: int = 500  # controller.quorum.election.timeout.ms; randomized up to twice as long
    fetch_timeout_ms: int = 1000  # controller.quorum.fetch.timeout.ms
    election_backoff_ms_max: int = 500  # controller.quorum.election.backoff.max.ms

    @property
    def check_quorum_ms(self) -> int:
        """How long a leader keeps leading without fetches from a majority."""
        return self.fetch_timeout_ms * 3 // 2


class QuorumState:
    """The state of one node. `me` is this node with its directory; `bootstrap` are the voters before the log names any.

    `clock` is used only for the timestamps of the records that the node writes; `now_ms` is from any steady clock.
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
        self.refused: str | None = None
        """The last refusal because of an epoch that is too large; the driver logs it and sets it to None."""
        # A killed process may have left unflushed records. They count for majorities from now on, so they must be
        # flushed.
        log.flush()
        start_at_snapshot(log, epochs, self.snapshots.latest)
        self._bootstrap = bootstrap
        self.history = VoterHistory(self.snapshots.voters or bootstrap)
        self.history.read(log, log.log_start_offset)
        self.high_watermark = max(log.log_start_offset, 0)
        self.epoch_start_offset = 0
        """The first offset of the epoch that this node leads, or led last."""
        # The log may have a later epoch than the ballot (the file `quorum-state`): a node that ran before there was a
        # quorum has a log, but no such file.
        if ballot.election.epoch < self.last_epoch:
            ballot.write(Election(self.last_epoch))
        # A restarted leader does not lead its epoch again: it may have lost records that it had not flushed.
        election = ballot.election
        self.role = Role.UNATTACHED
        if election.leader_id == me.node_id:
            self.role = Role.RESIGNED
        elif election.leader_id != NO_NODE:
            self.role = Role.FOLLOWER
        self._asked = 0
        """How many nodes were asked for the leader and did not name one."""
        self._announce_ms = 0
        self._enter_role(now_ms + self._first_timeout())

    # Queries ----------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that this node is in."""
        return self._ballot.election.epoch

    @property
    def leader_id(self) -> int:
        """The leader of the epoch, or -1. A leader that has resigned does not name itself, although its ballot does."""
        leader_id = self._ballot.election.leader_id
        return NO_NODE if leader_id == self.me.node_id and not self.is_leader else leader_id

    @property
    def has_led(self) -> bool:
        """Whether this node was elected in this epoch. It stays true after a resignation or a restart."""
        return self._ballot.election.leader_id == self.me.node_id

    @property
    def voted(self) -> VoterKey | None:
        """The candidate for which this node has voted in this epoch."""
        return self._ballot.election.voted

    @property
    def failure(self) -> str | None:
        """Why this node no longer takes part after its disk has failed; None while the disk works."""
        return self._failure or self._ballot.failure or self.log.failure

    @property
    def is_leader(self) -> bool:
        """Whether this node leads. A node whose disk has failed does not."""
        return self.role is Role.LEADER and self.failure is None

    @property
    def voters(self) -> VoterSet:
        """The last voter set in the log."""
        return self.history.current

    @property
    def is_voter(self) -> bool:
        """Whether this node is a voter."""
        return self.me in self.voters

    @property
    def _may_stand(self) -> bool:
        """Whether this node may stand for election: as a voter, or as a removed voter whose removal may not be
        committed yet.

        It may be the only node with the record of its removal. Then it refuses its vote to shorter logs, and the other
        voters may need that vote for a majority. So it must stand itself.
        """
        return self.is_voter or self.me in self.history.at(self.high_watermark)

    @property
    def _may_change_voters(self) -> bool:
        """Whether this leader may change the voters: a record of its epoch and the last voter set are committed."""
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
        """The time by which `tick` must be called next."""
        return self._announce_ms if self.is_leader else self._deadline_ms

    def _others(self) -> list[int]:
        return self.voters.others(self.me.node_id)

    def _election_timeout(self) -> int:
        # The timeout is randomized, so that voters do not stand for election at the same time (section 5.2).
        return self.settings.election_timeout_ms + self._chance(self.settings.election_timeout_ms)

    def _first_timeout(self) -> int:
        # The only voter of a cluster need not wait for another node.
        if self.is_voter and len(self.voters) == 1:
            return 0
        return self.settings.fetch_timeout_ms if self.role is Role.FOLLOWER else self._election_timeout()

    # Changes of role --------------------------------------------------------------------------------------------------

    def _become(self, cause: Cause, deadline_ms: int) -> None:
        following = NEXT.get((self.role, cause))
        assert following is not None, f"no transition from {self.role.value} when {cause.value}"
        self.role = following
        self._enter_role(deadline_ms)

    def _enter_role(self, deadline_ms: int) -> None:
        """Begin a role, and drop the state of the previous role."""
        self._deadline_ms = deadline_ms
        self._poll: Poll | None = None
        self._followers = Followers()
        self._has_fetched = False
        """Whether the leader has answered a fetch since this node began to follow it."""
        self.snapshot_wanted: SnapshotId | None = None
        """The snapshot to fetch before the log can continue. A new leader names it again."""

    def _on_newer_epoch(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Another node is in a newer epoch: enter it without having voted in it."""
        self._ballot.write(Election(epoch))
        self._become(Cause.NEWER_EPOCH, now_ms + self._election_timeout())
        self._on_leader_found(leader_id, now_ms)

    def _on_leader_found(self, leader_id: int, now_ms: int) -> None:
        """This epoch has a leader: follow it."""
        if leader_id in (NO_NODE, self.me.node_id) or self.role in (Role.LEADER, Role.RESIGNED):
            return
        election = self._ballot.election
        self._ballot.write(Election(election.epoch, leader_id, election.voted))
        self._become(Cause.LEADER_FOUND, now_ms + self.settings.fetch_timeout_ms)
        # From now on this node fetches from the leader alone.
        self._asked = 0

    def _refuses(self, epoch: int, *, limit: int = EPOCH_MAX) -> bool:
        """Whether an epoch that another node has named is too large to have come from elections."""
        if epoch <= min(limit, EPOCH_MAX):
            return False
        self.refused = (
            f"a message with epoch {epoch} is refused, because this node is in epoch {self.epoch} and accepts at most"
            f" {min(limit, EPOCH_MAX)} here: the message is forged, or its sender's disk is damaged, or this node was"
            " away for many elections and is going to ask for the epoch"
        )
        return True

    def _objection(self, epoch: int, voter: VoterKey) -> ErrorCode:
        """Why a request is refused: the disk has failed, or the directory or the epoch of the request is wrong."""
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not voter.names(self.me):
            return ErrorCode.INVALID_VOTER_KEY
        if self._refuses(epoch, limit=self.epoch + EPOCH_STEP_MAX):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.NONE

    def _learn_epoch(self, epoch: int, leader_id: int, now_ms: int) -> bool:
        """Learn the epoch and leader that another node has named; return whether both nodes are in one epoch."""
        if self.failure is not None or self._refuses(epoch):
            return False
        if epoch > self.epoch:
            self._on_newer_epoch(epoch, leader_id, now_ms)
            return False
        # If this node knows the leader already, another node's answer must not extend the time that this node waits for
        # the leader.
        if epoch == self.epoch and self._ballot.election.leader_id == NO_NODE:
            self._on_leader_found(leader_id, now_ms)
        return epoch == self.epoch

    # The disk ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _noting_disk_failure(self) -> Iterator[None]:
        """Note a failed write. The log is as it was before, but a node that cannot write must not lead or vote."""
        try:
            yield
        except StorageError as error:
            self._failure = str(error)
            raise

    def _write(self, batch: bytearray) -> int:
        """Append a batch as the leader, durably, and return its base offset."""
        with self._noting_disk_failure():
            base_offset = self.log.append(batch, leader_epoch=self.epoch)
            self.log.flush()
        return base_offset

    def _append_as_follower(self, records: memoryview) -> None:
        """Append the batches that the leader has sent, durably. A voter set is in force as soon as it is written."""
        first = self.log.log_end_offset
        with self._noting_disk_failure():
            self.log.append_as_follower(records)
            self.log.flush()
        self.history.read(self.log, first)

    def _truncate(self, offset: int) -> None:
        """Truncate the log to the part that the leader has."""
        committed = self.high_watermark
        assert offset >= committed, f"a truncation to {offset} would remove committed records before {committed}"
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        self.history.truncate(self.log.log_end_offset)
