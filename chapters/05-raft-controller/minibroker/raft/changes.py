"""How the set of voters changes: one voter at a time, by records of the log that it governs. A pure module.

`added`, `removed` and `bound` say what a change would make of a set, or why it is refused; `Raft` writes the result. A
set is in force from the moment it is in the log, committed or not, and a record that is truncated takes its set with
it. So a node keeps the `VoterHistory` of its log, and the last set in it counts.
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
    # With a voter that is far behind, a majority could consist of voters that have nothing yet.
    return voters.with_voter(voter) if has_caught_up else ErrorCode.REQUEST_TIMED_OUT


def removed(voters: VoterSet, key: VoterKey) -> VoterSet | ErrorCode:
    """The set without a voter. The last one stays: a set without voters could never change again."""
    if key not in voters:
        return ErrorCode.VOTER_NOT_FOUND
    return voters.without(key.node_id) if len(voters) > 1 else ErrorCode.INVALID_REQUEST


def bound(voters: VoterSet, keys: Iterable[VoterKey]) -> VoterSet:
    """The set with the directories of voters that were known by their node id alone."""
    for key in keys:
        voters = voters.with_voter(voters.voters[key.node_id]._replace(key=key))
    return voters


class VoterHistory:
    """The sets of voters in a log, each with its offset. The first stands for everything before the log's start."""

    def __init__(self, first: VoterSet) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(NO_OFFSET, first)]

    @property
    def current(self) -> VoterSet:
        """The last set: the one in force."""
        return self._sets[-1][1]

    @property
    def current_offset(self) -> int:
        """The offset of the record with the last set; -1 if it is in no record of this log."""
        return self._sets[-1][0]

    def at(self, offset: int) -> VoterSet:
        """The set of voters as of an offset."""
        return [voters for at, voters in self._sets if at < offset][-1]

    def read(self, log: Log, offset: int) -> None:
        """Take over the sets that the log has from an offset on."""
        self._sets += voter_sets(log, offset)

    def truncate(self, end_offset: int) -> None:
        """The log was cut: the sets after its end are gone."""
        self._sets = [it for it in self._sets if it[0] < end_offset]

    def start_with(self, voters: VoterSet) -> None:
        """The log begins anew after a snapshot, which names its voters."""
        self._sets = [(NO_OFFSET, voters)]

    def forget_before(self, offset: int) -> None:
        """The log starts at an offset now. What was in force there is kept as the first set."""
        self._sets = [(NO_OFFSET, self.at(offset)), *(it for it in self._sets if it[0] >= offset)]
