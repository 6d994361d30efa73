"""A leader's time in office: what it knows of its followers, who is in sync, and how far everybody is. A pure module.

The leader learns how far a follower is by what it fetches: who asks for offset 40 has everything before. Out of that
come two decisions:

**The high watermark** is the least end of all logs that count. What is before it is on every one of them, so any of
them may lead next, and nothing that a consumer has seen or a producer was promised will be missing.

**The in-sync set (ISR)** is who counts. The authority keeps it; the leader only proposes. A follower that has not
caught up for `replica.lag.time.max.ms` is to leave, so that writes can go on; one that has caught up is to return.
While a proposal is under way, nobody knows whether it was accepted, so *both* sets count:

    in-sync set   {1, 2, 3}                    {1, 2, 3}                   {1, 2}
                      │   propose {1, 2}           │    accepted              │
    counted       {1, 2, 3} ──────────────▶ {1, 2, 3} ∪ {1, 2} ─────────▶ {1, 2}

A proposal names the partition epoch that it is based on. The authority raises that number with every change, so it can
tell a proposal that is late (KIP-497).
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

# The authority has refused the change itself, so it will never happen.
REFUSED_FOR_GOOD = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class IsrProposal(NamedTuple):
    """A change of the in-sync set that a leader asks for; `isr` has each member with the epoch of its registration."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes alone."""
        return tuple(node_id for node_id, _epoch in self.isr)


class Altered(NamedTuple):
    """What the authority says to a proposal; with `NONE`, what the partition is from now on."""

    code: ErrorCode
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


@dataclass(slots=True)
class Progress:
    """How far a follower is, as its fetches tell."""

    caught_up_ms: int
    """The last time at which it had everything that the leader had."""
    log_end_offset: int = NO_OFFSET
    """Unknown before its first fetch: then nothing can be promised in its name."""
    log_start_offset: int = NO_OFFSET
    broker_epoch: int = NO_BROKER_EPOCH
    last_fetch_ms: int = _LONG_AGO
    last_fetch_leader_end: int = 0

    def on_fetch(self, offset: int, *, leader_end_offset: int, now_ms: int) -> None:
        """It asks for `offset`, so it has everything before."""
        # It has caught up now; or at its last fetch, if it has by now what the leader had then. The second matters:
        # under load the leader's log is always a little longer, and nobody would ever be caught up.
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        # Remember how far it is; and, for its next fetch, when it asked and how far we were.
        self.log_end_offset = offset
        self.last_fetch_leader_end, self.last_fetch_ms = leader_end_offset, now_ms

    def is_lagging(self, *, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether it has been behind for too long."""
        return self.log_end_offset != leader_end_offset and now_ms - self.caught_up_ms > lag_ms_max


@dataclass(slots=True)
class _Pending:
    """A proposal that was made and whose fate is not known."""

    proposal: IsrProposal
    sent_ms: int


class Leadership:
    """One leader epoch of one partition, in the eyes of its leader. It decides; `Replica` does."""

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
        """The end of the log when this epoch began: who has less does not have all that was promised before."""
        self.partition_epoch = image.partition_epoch
        self.replicas = image.replicas
        self.isr = image.isr
        self.broker_epochs = broker_epochs
        self._pending: _Pending | None = None
        # Members of the in-sync set have the benefit of the doubt for as long as a lag may last; others have none.
        self.followers = {
            replica: Progress(caught_up_ms=now_ms if replica in image.isr else _LONG_AGO)
            for replica in image.replicas
            if replica != node_id
        }

    def on_replicas(self, replicas: tuple[int, ...]) -> None:
        """The partition has other replicas from now on: new ones begin with nothing, old ones keep what they have."""
        self.replicas = replicas
        self.followers = {
            replica: self.followers.get(replica) or Progress(caught_up_ms=_LONG_AGO)
            for replica in replicas
            if replica != self.node_id
        }

    # Who counts -------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> IsrProposal | None:
        """The proposal whose fate is not known."""
        return self._pending.proposal if self._pending is not None else None

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Everybody who may be in sync as the authority sees it."""
        return frozenset(self.isr) if self._pending is None else frozenset(self.isr + self._pending.proposal.members)

    def min_isr(self, min_insync_replicas: int) -> int:
        """How many must be in sync; a partition with fewer replicas than that makes do with what it has."""
        return min(min_insync_replicas, len(self.replicas))

    def watermark(self, log_end_offset: int, *, min_insync_replicas: int) -> int | None:
        """How far every log that counts goes; None while too few count for a promise (KIP-966)."""
        # With fewer members than must be in sync, nothing new becomes visible: what only they have may yet be lost.
        if len(self.isr) < self.min_isr(min_insync_replicas):
            return None
        # The least end of all logs that count, the leader's own included (invariant 24).
        counted = self.maximal_isr
        ends = [it.log_end_offset for node_id, it in self.followers.items() if node_id in counted]
        return min([log_end_offset, *ends])

    def low_watermark(self, log_start_offset: int) -> int:
        """Where the log starts at the latest on every replica that is in sync: what is before is nowhere any more."""
        starts = [it.log_start_offset for node_id, it in self.followers.items() if node_id in self.isr]
        return min([log_start_offset, *starts])

    # What happens -----------------------------------------------------------------------------------------------------

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
        """A follower fetches; it was checked that it is one, and that its log is a prefix of ours."""
        progress = self.followers[replica_id]
        progress.broker_epoch = broker_epoch
        progress.log_start_offset = log_start_offset
        progress.on_fetch(offset, leader_end_offset=leader_end_offset, now_ms=now_ms)

    def is_stale(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether a fetch is of an earlier life of its node: it may speak of records that are gone since (KIP-903)."""
        known = self.broker_epochs.get(replica_id, NO_BROKER_EPOCH)
        return NO_BROKER_EPOCH < broker_epoch < max(known, self.followers[replica_id].broker_epoch)

    def may_join(self, replica_id: int, *, high_watermark: int) -> bool:
        """Whether a follower that is not in sync is to be, now."""
        # Not while a proposal is under way, not if it is in already, and only in the life in which it is registered.
        if self._pending is not None or replica_id in self.isr or not self._is_eligible(replica_id):
            return False
        # It must have all that is promised. That is what is before the high watermark, which a new leader may not know
        # yet: so also all that was there when the epoch began (invariant 27).
        return self.followers[replica_id].log_end_offset >= max(high_watermark, self.epoch_start_offset)

    def _is_eligible(self, replica_id: int) -> bool:
        # What it fetched counts only for the life in which it is registered: an earlier one may have had more.
        known = self.broker_epochs.get(replica_id)
        return known is not None and self.followers[replica_id].broker_epoch in (NO_BROKER_EPOCH, known)

    def lagging(self, *, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> list[int]:
        """The members of the in-sync set that have been behind for too long."""
        return [
            node_id
            for node_id, it in self.followers.items()
            if node_id in self.isr
            and it.is_lagging(leader_end_offset=leader_end_offset, now_ms=now_ms, lag_ms_max=lag_ms_max)
        ]

    # Proposals --------------------------------------------------------------------------------------------------------

    def propose(self, members: set[int], now_ms: int) -> IsrProposal:
        """Ask for another in-sync set; there is never more than one proposal under way."""
        assert self._pending is None, f"{self._pending} is under way"
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
        """The proposal, if it is time to send it again: it or its answer may be lost."""
        if self._pending is None or now_ms - self._pending.sent_ms < PROPOSAL_RETRY_MS:
            return None
        self._pending.sent_ms = now_ms
        return self._pending.proposal

    def on_altered(self, proposal: IsrProposal, altered: Altered) -> bool:
        """The authority has answered a proposal; return whether something changed."""
        # Accepted: the new set counts, and it alone. That is so whether or not we have given the proposal up.
        if altered.code is ErrorCode.NONE and proposal.leader_epoch == self.leader_epoch:
            return self.adopt(altered.isr, altered.partition_epoch)
        if proposal != self.pending:
            return False
        # Refused for good: the old set counts. With any other code the partition is not what we believe, or nobody
        # knows what became of the proposal: both sets count on, until news of the partition tells.
        if altered.code in REFUSED_FOR_GOOD:
            self._pending = None
            return True
        return False

    def adopt(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """Believe what the authority has decided, if it is news; return whether it is."""
        if partition_epoch <= self.partition_epoch:
            return False
        # A proposal that is still under way names an older partition epoch: it was accepted, and this is it, or it
        # never will be. So from now on only this set counts.
        self.isr, self.partition_epoch = isr, partition_epoch
        self._pending = None
        return True
