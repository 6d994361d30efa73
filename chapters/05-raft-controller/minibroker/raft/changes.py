"""Changes of the voter set, one voter at a time, by records of the log itself. A pure module.

`added`, `removed` and `bound` return the changed set or the reason of a refusal; `Raft` writes the result. A set is in
force as soon as it is in the log, committed or not, and ends when its record is truncated. So a node keeps the
`VoterHistory` of its log, and the last set in it counts.
"""

from collections.abc import Iterable

from minibroker.log.batch import NO_OFFSET
from minibroker.log.interfaces import Log
from minibroker.raft.control import voter_sets
from minibroker.raft.voters import Voter, VoterKey, VoterSet
from minibroker.wire.codes import ErrorCode


def added(voters: VoterSet, voter: Voter, *, has_caught_up: bool) -> VoterSet | ErrorCode:
    """The set with a new voter, which has fetched the log as an observer."""
    if voter.key.node_id in voters.voters:
        return ErrorCode.DUPLICATE_VOTER
    # A voter that has not caught up would count in majorities, and delay commits until it has caught up.
    return voters.with_voter(voter) if has_caught_up else ErrorCode.REQUEST_TIMED_OUT


def removed(voters: VoterSet, key: VoterKey) -> VoterSet | ErrorCode:
    """The set without a voter. The last voter stays: an empty set could never change again."""
    if key not in voters:
        return ErrorCode.VOTER_NOT_FOUND
    return voters.without(key.node_id) if len(voters) > 1 else ErrorCode.INVALID_REQUEST


def bound(voters: VoterSet, keys: Iterable[VoterKey]) -> VoterSet:
    """The set, with directories filled in for voters that it knew by node id alone."""
    for key in keys:
        voters = voters.with_voter(voters.voters[key.node_id]._replace(key=key))
    return voters


class VoterHistory:
    """The voter sets in a log, each with its offset. The first one is in force at the log's start."""

    def __init__(self, first: VoterSet) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(NO_OFFSET, first)]

    @property
    def current(self) -> VoterSet:
        """The last set, which is in force."""
        return self._sets[-1][1]

    @property
    def current_offset(self) -> int:
        """The offset of the record with the last set; -1 if no record of this log has it."""
        return self._sets[-1][0]

    def at(self, offset: int) -> VoterSet:
        """The voter set in force at an offset."""
        return [voters for at, voters in self._sets if at < offset][-1]

    def read(self, log: Log, offset: int) -> None:
        """Add the sets in the log from an offset on."""
        self._sets += voter_sets(log, offset)

    def truncate(self, end_offset: int) -> None:
        """Drop the sets after the end of a truncated log."""
        self._sets = [it for it in self._sets if it[0] < end_offset]

    def start_with(self, voters: VoterSet) -> None:
        """Begin with the voters of a snapshot, which replaces the log."""
        self._sets = [(NO_OFFSET, voters)]

    def forget_before(self, offset: int) -> None:
        """Drop the sets before the log's new start, except the set in force there."""
        self._sets = [(NO_OFFSET, self.at(offset)), *(it for it in self._sets if it[0] >= offset)]
