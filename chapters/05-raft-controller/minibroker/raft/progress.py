"""The followers of a leader: how much of the log each has, and when it fetched last. A pure module.

Only `Raft` changes a `Followers`, and only while it leads: every other role begins without followers. Everything that
needs a majority is computed from this class and from the voter set: the high watermark, whether a majority still
fetches, and which voter has the longest log.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minibroker.log.batch import NO_OFFSET
from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.wire.uuids import NO_UUID

NEVER_MS = -1


@dataclass(slots=True)
class Progress:
    """The progress of a replica, known from its fetches. Before its first fetch nothing is known."""

    end_offset: int = NO_OFFSET
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    """The last time at which the replica is known to have had the leader's whole log."""
    _leader_end: tuple[int, int] = (NO_OFFSET, NEVER_MS)
    """The end of the leader's log at the last fetch, and the time of that fetch."""

    def advance(self, offset: int, *, leader_end_offset: int) -> None:
        """Note that the replica has everything before `offset` on its disk. The end offset never decreases."""
        self.end_offset = max(self.end_offset, offset)
        # A replica at the end of the leader's log has caught up now. While the leader writes, a replica may never get
        # there. So compare with where the leader's log ended at the replica's previous fetch: a replica that now asks
        # for that offset or a later one had caught up at the time of the previous fetch.
        earlier_end_offset, earlier_ms = self._leader_end
        if offset >= leader_end_offset:
            self.last_caught_up_ms = self.last_fetch_ms
        elif offset >= earlier_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, earlier_ms)
        self._leader_end = (leader_end_offset, self.last_fetch_ms)


class Followers:
    """The replicas that fetch from this leader, voters and observers, each by its node and directory."""

    def __init__(self, voters: Iterable[VoterKey] = (), now_ms: int = 0) -> None:
        self._known = {key: Progress() for key in voters}
        self._begin_ms = now_ms
        self.unaware = {key.node_id for key in self._known}
        """The voters that have not fetched in this epoch: they may not know the leader."""

    def of(self, key: VoterKey) -> Progress:
        """The progress of a replica."""
        # The voter set may not have the directory of a voter yet. Then find the voter by its node id.
        found = self._known.get(key)
        if found is None and key.directory_id == NO_UUID:
            found = next((it for known, it in self._known.items() if known.node_id == key.node_id), None)
        return found or Progress()

    def heard_from(self, replica: VoterKey, now_ms: int) -> Progress:
        """Note that a replica has fetched: it is alive and knows the leader. Return its progress for `advance`."""
        progress = self._known.setdefault(replica, Progress())
        # From its first fetch on, a replica is known by its directory, not by its node id alone.
        self._known.pop(VoterKey(replica.node_id), None)
        progress.last_fetch_ms = max(progress.last_fetch_ms, now_ms)
        self.unaware.discard(replica.node_id)
        return progress

    def postpone(self, late_ms: int) -> None:
        """The leader was paused for `late_ms`. A follower without a fetch in that time may still be alive."""
        self._begin_ms += late_ms
        for progress in self._known.values():
            if progress.last_fetch_ms != NEVER_MS:
                progress.last_fetch_ms += late_ms

    # What a majority has ----------------------------------------------------------------------------------------------

    def end_offsets(self, voters: VoterSet, *, leader_id: int) -> list[int]:
        """The log end offsets of the voters besides the leader."""
        return [self.of(voters.key_of(it)).end_offset for it in voters.others(leader_id)]

    def heard_since(self, horizon_ms: int, voters: VoterSet, *, leader_id: int) -> int:
        """How many voters besides the leader have fetched since `horizon_ms`."""
        # A new leader gives every voter time for its first fetch.
        times_ms = [max(self.of(voters.key_of(it)).last_fetch_ms, self._begin_ms) for it in voters.others(leader_id)]
        return sum(it >= horizon_ms for it in times_ms)

    def successors(self, voters: VoterSet, *, leader_id: int) -> tuple[VoterKey, ...]:
        """The voters besides the leader, the one with the longest log first."""
        keys = [voters.key_of(it) for it in voters.others(leader_id)]
        return tuple(sorted(keys, key=lambda key: -self.of(key).end_offset))

    def unbound(self, voters: VoterSet) -> list[VoterKey]:
        """The voters whose directory is not in the voter set yet, each with the directory that its fetches name."""
        return [key for key in self._known if voters.unbound(key)]

    def all(self) -> dict[VoterKey, Progress]:
        """The progress of each replica."""
        return dict(self._known)
