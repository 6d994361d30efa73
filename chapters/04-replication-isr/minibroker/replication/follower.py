"""How a follower brings its log into line with its leader's. A pure module.

A follower pulls: it names the offset that it wants next, and the epoch of its last record. As long as the two logs are
the same up to there, the leader sends what follows. If they are not, because this node has records of a leader that
was deposed before anybody else had them, the leader answers with where its own log leaves that epoch, and the
follower cuts off what is behind. Then it asks again. Each round goes back by at least one epoch, so it ends.

The high watermark is no guide in this. It comes with the answer to a *later* fetch, so a follower's is always a little
behind: who cuts there after a restart cuts off records that were promised (KIP-101).
"""

from typing import NamedTuple

from minibroker.log.batch import NO_OFFSET
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.epochs import EpochCache
from minibroker.wire.codes import ErrorCode


class Position(NamedTuple):
    """What a follower wants next, and of whom. `is_lost`: ask first where the leader's log starts."""

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    is_lost: bool = False


class Fetched(NamedTuple):
    """What a leader answered to a position."""

    position: Position
    code: ErrorCode = ErrorCode.NONE
    records: memoryview = memoryview(b"")
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: EpochEnd | None = None


class Following:
    """One leader epoch of one partition, in the eyes of a follower."""

    def __init__(self, leader: int, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.is_lost = False
        """Whether the leader's log does not have what this one wants next, so that it must ask where that starts."""

    def position(self, epochs: EpochCache, *, log_start_offset: int, log_end_offset: int) -> Position:
        """What to ask for next."""
        return Position(
            self.leader, self.leader_epoch, log_end_offset, epochs.latest_epoch, log_start_offset, self.is_lost
        )


def common_end(leaders: EpochEnd, epochs: EpochCache, *, log_end_offset: int) -> int:
    """Where a follower cuts its log, told where the leader's leaves an epoch."""
    # Ask our own log about that epoch. It knows every one that a leader may name, unless it has none at all: then it is
    # cut to where the leader's ends, if it goes that far.
    own = epochs.end_of(leaders.epoch, log_end_offset=log_end_offset)
    if own.end_offset == NO_OFFSET:
        return min(leaders.end_offset, log_end_offset)
    # We have that epoch as well: both logs are the same up to where the shorter one leaves it (invariant 23).
    if own.epoch == leaders.epoch:
        return min(own.end_offset, leaders.end_offset)
    # We do not: our log goes back to the end of an epoch before it, and the next answer tells whether that is enough.
    return own.end_offset
