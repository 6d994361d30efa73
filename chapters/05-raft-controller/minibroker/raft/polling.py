"""The votes of one candidacy, counted. A pure module; `Raft` holds a `Poll` while it asks for votes."""

from minibroker.raft.voters import VoterSet
from minibroker.wire.uuids import NO_UUID


def votes_needed(voters: VoterSet, *, is_log_empty: bool) -> int:
    """How many votes elect a leader: a majority; or all of them, at a node that knows nothing.

    A node with an empty log knows the voters from its configuration, but not their directories. It cannot tell a new
    cluster from one that has lost disks, or has other voters by now. If any voter has something, it refuses its vote:
    so all of them must agree.
    """
    is_unknown = any(voters.key_of(it).directory_id == NO_UUID for it in voters)
    return len(voters) if is_log_empty and is_unknown else voters.majority


class Poll:
    """What the voters have answered so far."""

    def __init__(self, voters: VoterSet, needed: int) -> None:
        self._voters = voters
        self._needed = needed
        self._granted: dict[int, bool] = {}

    def add(self, node_id: int, is_granted: bool) -> None:
        """A voter has answered; a later answer replaces an earlier one."""
        self._granted[node_id] = is_granted

    @property
    def granting(self) -> list[int]:
        """The nodes that have granted their vote."""
        return [it for it, is_granted in self._granted.items() if is_granted]

    @property
    def is_won(self) -> bool:
        """Whether enough voters have granted their vote."""
        return sum(self._granted.get(it, False) for it in self._voters) >= self._needed

    @property
    def is_lost(self) -> bool:
        """Whether so many have refused that the others are not enough."""
        refused = sum(not self._granted.get(it, True) for it in self._voters)
        return len(self._voters) - refused < self._needed
