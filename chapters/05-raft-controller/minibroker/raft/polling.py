"""Counts the votes of one candidacy. A pure module; `Raft` has a `Poll` while it asks for votes."""

from minibroker.raft.voters import VoterSet
from minibroker.wire.uuids import NO_UUID


def votes_needed(voters: VoterSet, *, is_log_empty: bool) -> int:
    """How many votes elect a leader: a majority, or all votes for a candidate with an empty log.

    A node with an empty log knows the voters from its configuration, but not their directories. It cannot tell a new
    cluster from a cluster that has lost disks or has other voters by now. A voter with any record refuses its vote, so
    a unanimous vote shows that the cluster is new.
    """
    is_unknown = any(voters.key_of(it).directory_id == NO_UUID for it in voters)
    return len(voters) if is_log_empty and is_unknown else voters.majority


class Poll:
    """The answers of the voters so far."""

    def __init__(self, voters: VoterSet, needed: int) -> None:
        self._voters = voters
        self._needed = needed
        self._granted: dict[int, bool] = {}

    def add(self, node_id: int, is_granted: bool) -> None:
        """Count the answer of a voter; a later answer replaces an earlier one."""
        self._granted[node_id] = is_granted

    @property
    def granting(self) -> list[int]:
        """The nodes that have granted their votes."""
        return [it for it, is_granted in self._granted.items() if is_granted]

    @property
    def is_won(self) -> bool:
        """Whether enough voters have granted their votes."""
        return sum(self._granted.get(it, False) for it in self._voters) >= self._needed

    @property
    def is_lost(self) -> bool:
        """Whether the election is lost: the voters that have not refused are too few."""
        refused = sum(not self._granted.get(it, True) for it in self._voters)
        return len(self._voters) - refused < self._needed
