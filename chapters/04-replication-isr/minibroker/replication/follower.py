"""How a follower truncates its log where it diverges from its leader's. A pure module.

A follower pulls: it names the offset that it wants next, and the epoch of its last record. As long as the two logs are
the same up to there, the leader sends the next records. The logs diverge if this follower has records of a deposed
leader that the new leader never had. Then the leader answers with the offset at which that epoch ends in its own log,
and the follower truncates its log there and asks again. Each round goes back by at least one epoch, so the search ends.

The high watermark does not tell where to truncate. A follower learns it with the answer to a *later* fetch, so its own
value is always a little too small: a follower that truncates there after a restart loses acknowledged records
(KIP-101).
"""

from typing import NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.epochs import EpochCache
from minibroker.wire.codes import ErrorCode


class Position(NamedTuple):
    """What a follower fetches next, and from which leader. If `is_lost`, first ask where the leader's log starts."""

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    is_lost: bool = False


class Fetched(NamedTuple):
    """The leader's answer to a fetch at a position."""

    position: Position
    code: ErrorCode = ErrorCode.NONE
    records: memoryview = memoryview(b"")
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: EpochEnd | None = None


class Following:
    """One leader epoch of one partition, as a follower knows it."""

    def __init__(self, leader: int, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.is_lost = False
        """Whether the leader's log lacks the next offset, so that the follower must ask where that log starts."""
        self.is_caught_up = False
        """Whether, after the last answer, this log had everything before the leader's high watermark."""

    def position(self, epochs: EpochCache, *, log_start_offset: int, log_end_offset: int) -> Position:
        """What to fetch next."""
        return Position(
            self.leader, self.leader_epoch, log_end_offset, epochs.latest_epoch, log_start_offset, self.is_lost
        )


def common_end(leaders: EpochEnd, epochs: EpochCache, *, log_end_offset: int) -> int:
    """Where a follower truncates its log, given where an epoch ends in the leader's log."""
    # Look for that epoch in our own log. The search fails only if our log has no epochs at all. Then truncate our log
    # to the end of that epoch in the leader's log, unless our log is shorter.
    own = epochs.end_of(leaders.epoch, log_end_offset=log_end_offset)
    if own.end_offset == NO_OFFSET:
        return min(leaders.end_offset, log_end_offset)
    # Our log has that epoch as well: both logs are the same up to the earlier of the two ends (invariant 23).
    if own.epoch == leaders.epoch:
        return min(own.end_offset, leaders.end_offset)
    # Our log does not have that epoch: truncate our log to the end of the epoch before. The leader's next answer tells
    # whether that is enough.
    return own.end_offset
