"""What the leader of a partition knows of its followers during one leader epoch. A pure module.

Each fetch tells the leader how far a follower is: a follower that asks for offset 40 has everything before 40.
Two decisions follow from that:

**The high watermark** is the smallest log end offset of all replicas that count. Every one of them has the records
before it, so any of them can lead next without losing a record that was acknowledged or read.

**The in-sync set (ISR)** says which replicas count. The controller keeps it; the leader proposes changes. A follower
that has not caught up for `replica.lag.time.max.ms` leaves, so that writes can continue; a follower that has caught up
returns. While a proposal is under way, the leader cannot know whether it was accepted, so *both* sets count:

    in-sync set   {1, 2, 3}                    {1, 2, 3}                   {1, 2}
                      │   propose {1, 2}           │    accepted              │
    counted       {1, 2, 3} ──────────────▶ {1, 2, 3} ∪ {1, 2} ─────────▶ {1, 2}

A proposal names the partition epoch that it is based on. The controller raises that number with every change, so it
recognizes an outdated proposal (KIP-497).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.metadata.image import PartitionImage
from minibroker.wire.codes import ErrorCode

NO_BROKER_EPOCH = -1
PROPOSAL_RETRY_MS = 1000
_LONG_AGO = -(2**62)

# These codes mean that the controller has refused the change for good. After any other error the change may still
# happen.
REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class IsrProposal(NamedTuple):
    """A change of the in-sync set that a leader asks for; `isr` has each member and its broker epoch."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The node ids, without their epochs."""
        return tuple(node_id for node_id, _epoch in self.isr)


class Altered(NamedTuple):
    """The controller's answer to a proposal; with `NONE`, the partition's new in-sync set and epoch."""

    code: ErrorCode
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


@dataclass(slots=True)
class Progress:
    """The progress of a follower, known from its fetches."""

    caught_up_ms: int
    """The last time at which the follower had everything that the leader had."""
    log_end_offset: int = NO_OFFSET
    """The end of the follower's log. Before its first fetch it is unknown, and the high watermark cannot move."""
    log_start_offset: int = NO_OFFSET
    broker_epoch: int = NO_BROKER_EPOCH
    last_fetch_ms: int = _LONG_AGO
    last_fetch_leader_end: int = 0
    given_bytes: int = 0
    """How many bytes the answer to the follower's last fetch had, if the partition is throttled."""

    def on_fetch(self, offset: int, *, leader_end_offset: int, now_ms: int) -> None:
        """The follower asks for `offset`, so it has everything before."""
        # A follower that asks for the end of the leader's log has caught up now. Otherwise compare with where the
        # leader's log ended at the follower's previous fetch: if the follower now asks for that offset or a later one,
        # it had caught up at the time of the previous fetch. Without this second rule no follower would ever catch up
        # under load, because the leader's log keeps growing. `caught_up_ms` never goes back, in either case: the first
        # fetch has no previous one, and a fetch may be handled late, with an earlier time.
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        # Remember how far the follower is and, for its next fetch, when it asked and where the leader's log ended.
        self.log_end_offset = offset
        self.last_fetch_leader_end, self.last_fetch_ms = leader_end_offset, now_ms

    def is_lagging(self, *, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the follower last caught up too long ago."""
        return self.log_end_offset != leader_end_offset and now_ms - self.caught_up_ms > lag_ms_max


@dataclass(slots=True)
class _Pending:
    """A proposal that was sent and not answered yet."""

    proposal: IsrProposal
    sent_ms: int


class Leadership:
    """One leader epoch of one partition, as its leader knows it. `Leadership` decides, and `Replica` acts.

    `isr` and `replicas` are tuples, as in the image. `followers` has the `Progress` of each other replica.
    """

    def __init__(
        self,
        node_id: int,
        image: PartitionImage,
        broker_epochs: Mapping[int, int],
        *,
        epoch_start_offset: int,
        now_ms: int,
    ) -> None:
        self.node_id = node_id
        self.leader_epoch = image.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        """The log end offset when this epoch began. A follower that has less may lack acknowledged records."""
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.isr = image.isr
        self.broker_epochs = broker_epochs
        self._pending: _Pending | None = None
        # A member of the in-sync set counts as caught up now, so it has the whole lag time for its first fetch.
        self.followers = {
            replica: Progress(caught_up_ms=now_ms if replica in image.isr else _LONG_AGO)
            for replica in image.replicas
            if replica != node_id
        }

    def on_replicas(self, replicas: tuple[int, ...]) -> None:
        """The partition has other replicas from now on. Nothing is known of the new replicas yet."""
        self.replicas = replicas
        self.followers = {
            replica: self.followers.get(replica) or Progress(caught_up_ms=_LONG_AGO)
            for replica in replicas
            if replica != self.node_id
        }

    # Which replicas count ---------------------------------------------------------------------------------------------

    @property
    def pending(self) -> IsrProposal | None:
        """The proposal that was not answered yet, if there is one."""
        return self._pending.proposal if self._pending is not None else None

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All replicas that may be in sync in the controller's view."""
        return frozenset(self.isr) if self._pending is None else frozenset(self.isr + self._pending.proposal.members)

    def min_isr(self, min_insync_replicas: int) -> int:
        """How many replicas must be in sync: `min_insync_replicas`, or all of them if the partition has fewer."""
        return min(min_insync_replicas, len(self.replicas))

    def watermark(self, log_end_offset: int, *, min_insync_replicas: int) -> int | None:
        """The high watermark, computed from the log end offsets; None while too few replicas are in sync (KIP-966)."""
        # With too few members in sync, the high watermark stays: new records are on these few members only, and may be
        # lost.
        if len(self.isr) < min_insync_replicas and len(self.isr) < self.min_isr(min_insync_replicas):
            return None
        # The smallest log end offset of all replicas that count, the leader included (invariant 24).
        counted = self.maximal_isr
        ends = [it.log_end_offset for node_id, it in self.followers.items() if node_id in counted]
        return min([log_end_offset, *ends])

    def low_watermark(self, log_start_offset: int) -> int:
        """The smallest log start offset of the members of `isr`. Records below it are deleted on all of them.

        It is -1 while a member has not fetched yet.
        """
        starts = [it.log_start_offset for node_id, it in self.followers.items() if node_id in self.isr]
        return min([log_start_offset, *starts])

    # Fetches ----------------------------------------------------------------------------------------------------------

    def on_fetch(
        self,
        replica_id: int,
        *,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> None:
        """A follower fetches. The caller has checked that it is a follower, and that its log is a prefix of ours.

        The broker epoch of the last fetch counts, even if it is -1.
        """
        progress = self.followers[replica_id]
        progress.broker_epoch = broker_epoch
        progress.log_start_offset = log_start_offset
        progress.on_fetch(offset, leader_end_offset=leader_end_offset, now_ms=now_ms)

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether a fetch is from an earlier incarnation, which may have had records that the node lost (KIP-903)."""
        known = self.broker_epochs.get(replica_id, NO_BROKER_EPOCH)
        return NO_BROKER_EPOCH < broker_epoch < max(known, self.followers[replica_id].broker_epoch)

    def may_join(self, replica_id: int, *, high_watermark: int) -> bool:
        """Whether a follower that is not in sync is to join the in-sync set now."""
        # A follower joins only if no proposal is under way, it is not a member yet, and its fetches are from its
        # registered incarnation.
        if self._pending is not None or replica_id in self.isr or not self._is_eligible(replica_id):
            return False
        # The follower must have every acknowledged record. They are all before the high watermark. A new leader may not
        # know the high watermark yet, so the follower must also have all records that were in the log when the epoch
        # began (invariant 27).
        return self.followers[replica_id].log_end_offset >= max(high_watermark, self.epoch_start_offset)

    def _is_eligible(self, replica_id: int) -> bool:
        # Only fetches of the follower's registered incarnation count: an earlier incarnation may have had records that
        # were lost since.
        known = self.broker_epochs.get(replica_id)
        return known is not None and self.followers[replica_id].broker_epoch in (NO_BROKER_EPOCH, known)

    def lagging(self, *, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> list[int]:
        """The members of the in-sync set that last caught up too long ago."""
        return [
            node_id
            for node_id, it in self.followers.items()
            if node_id in self.isr
            and it.is_lagging(leader_end_offset=leader_end_offset, now_ms=now_ms, lag_ms_max=lag_ms_max)
        ]

    # Proposals --------------------------------------------------------------------------------------------------------

    def propose(self, members: set[int], now_ms: int) -> IsrProposal:
        """Propose another in-sync set. There is never more than one proposal under way."""
        assert self._pending is None, f"{self._pending} is under way already"
        assert self.node_id in members, "a leader is in sync with itself"
        isr = tuple((it, self._epoch_of(it)) for it in self.replicas if it in members)
        proposal = IsrProposal(self.leader_epoch, self.partition_epoch, isr)
        self._pending = _Pending(proposal, now_ms)
        return proposal

    def _epoch_of(self, node_id: int) -> int:
        progress = self.followers.get(node_id)
        known = self.broker_epochs.get(node_id, NO_BROKER_EPOCH)
        return known if progress is None or progress.broker_epoch == NO_BROKER_EPOCH else progress.broker_epoch

    def overdue(self, now_ms: int) -> IsrProposal | None:
        """The proposal, if it is time to send it again, because it or its answer may be lost.

        If the clock was set back, the proposal seems to have been sent in the future. Then it is due now.
        """
        if self._pending is None or 0 <= now_ms - self._pending.sent_ms < PROPOSAL_RETRY_MS:
            return None
        self._pending.sent_ms = now_ms
        return self._pending.proposal

    def on_altered(self, proposal: IsrProposal, altered: Altered) -> bool:
        """The controller has answered a proposal; return whether other replicas count now."""
        # Accepted: only the new set counts, even if this leader no longer waits for the answer.
        if altered.code is ErrorCode.NONE and proposal.leader_epoch == self.leader_epoch:
            return self.adopt(altered.isr, altered.partition_epoch)
        if proposal != self.pending:
            return False
        # Refused for good: only the old set counts. With any other code the proposal may have been accepted, so both
        # sets count until the metadata shows the in-sync set.
        if altered.code in REFUSED_FOR_GOOD:
            self._pending = None
            return True
        return False

    def adopt(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """Adopt the controller's in-sync set if its partition epoch is later than ours; return True if so."""
        if partition_epoch <= self.partition_epoch:
            return False
        # A proposal that is still under way names an older partition epoch. Either this set is its result, or the
        # proposal will be refused. So from now on only this set counts.
        self.isr, self.partition_epoch = isr, partition_epoch
        self._pending = None
        return True
