"""What a leader knows of its followers: how much of the log each has, and when it fetched last. A pure module.

Only `Raft` changes it, and only while it leads: another role begins without followers. Everything that a leader decides
by a majority is computed from here and from the set of voters: the high watermark, whether a majority still fetches,
and which voter has most of the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minibroker.raft.voters import VoterKey, VoterSet
from minibroker.wire.uuids import NO_UUID


@dataclass(slots=True)
class Progress:
    """How far a replica is, as its fetches tell."""

    end_offset: int = 0
    last_fetch_ms: int = 0


class Followers:
    """The replicas that fetch from this leader, voters and observers, each by its node and directory."""

    def __init__(self, voters: Iterable[VoterKey] = (), now_ms: int = 0) -> None:
        # A new leader gives every voter time for its first fetch.
        self._known = {key: Progress(0, now_ms) for key in voters}
        self.unaware = {key.node_id for key in self._known}
        """The voters that have not fetched in this epoch: they may not know who leads."""

    def of(self, key: VoterKey) -> Progress:
        """What is known of a replica; nothing yet is an empty log that never fetched."""
        # A voter that the set names without a directory is known by the one that it fetches with.
        found = self._known.get(key)
        if found is None and key.directory_id == NO_UUID:
            found = next((it for known, it in self._known.items() if known.node_id == key.node_id), None)
        return found or Progress()

    def heard_from(self, replica: VoterKey, now_ms: int) -> Progress:
        """A replica has fetched: it lives, and knows who leads. What is known of it is returned, to be added to."""
        progress = self._known.setdefault(replica, Progress())
        # From its first fetch on it is known by its directory, and no longer by its node id alone.
        self._known.pop(VoterKey(replica.node_id), None)
        progress.last_fetch_ms = max(progress.last_fetch_ms, now_ms)
        self.unaware.discard(replica.node_id)
        return progress

    def postpone(self, late_ms: int) -> None:
        """The leader itself did nothing for so long: silence in that time says nothing of the followers."""
        for progress in self._known.values():
            progress.last_fetch_ms += late_ms

    # What follows from it ---------------------------------------------------------------------------------------------

    def end_offsets(self, voters: VoterSet, *, leader_id: int) -> list[int]:
        """Where the logs of the voters end, the leader's own left out."""
        return [self.of(voters.key_of(it)).end_offset for it in voters.others(leader_id)]

    def heard_since(self, horizon_ms: int, voters: VoterSet, *, leader_id: int) -> int:
        """How many voters besides the leader have fetched since a moment."""
        return sum(self.of(voters.key_of(it)).last_fetch_ms >= horizon_ms for it in voters.others(leader_id))

    def successors(self, voters: VoterSet, *, leader_id: int) -> tuple[VoterKey, ...]:
        """The voters besides the leader, the one with most of the log first."""
        keys = [voters.key_of(it) for it in voters.others(leader_id)]
        return tuple(sorted(keys, key=lambda key: -self.of(key).end_offset))

    def unbound(self, voters: VoterSet) -> list[VoterKey]:
        """Replicas that the set names without a directory, with the directory that each fetches with."""
        return [key for key in self._known if voters.unbound(key)]

    def states(self) -> dict[VoterKey, tuple[int, int]]:
        """For each replica, where its log ends and when it fetched last."""
        return {key: (it.end_offset, it.last_fetch_ms) for key, it in self._known.items()}
