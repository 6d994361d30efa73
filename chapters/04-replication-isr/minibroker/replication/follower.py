"""A follower of a partition: it copies its leader's log, and truncates its own where the two diverge. A pure module.

A follower pulls: it names the offset that it wants next, and the epoch of its last record. As long as the two logs are
the same up to there, the leader sends the next records. The logs diverge if this follower has records of a deposed
leader that the new leader never had. Then the leader answers with the offset at which that epoch ends in its own log,
and the follower truncates its log there and asks again. Each round goes back by at least one epoch, so the search ends.

The high watermark does not tell where to truncate. A follower learns it with the answer to a *later* fetch, so its own
value is always a little too small: a follower that truncates there after a restart loses acknowledged records
(KIP-101).
"""

from typing import NamedTuple

from minibroker.log.batch import HEADER_SIZE, NO_OFFSET, read_header
from minibroker.partitions.partition import EpochEnd
from minibroker.replication.epochs import EpochCache
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
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


class Follower:
    """A replica's log while another node leads: it copies the leader's log. `Replica` adds what a leader does.

    `following` is None while the replica does not follow.
    """

    high_watermark: int = 0
    """Consumers read the records before this offset. Every replica in sync has them."""

    def __init__(self, name: TopicPartition, log: SegmentedLog, epochs: EpochCache, *, high_watermark: int = 0) -> None:
        self.name = name
        self.log = log
        self.epochs = epochs
        self.following: Following | None = None
        # The checkpoint may be older than the log, or name an offset beyond a log that a power cut has shortened.
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    def position(self) -> Position | None:
        """What to fetch next, and from which leader; None if there is no leader, or the disk has failed."""
        following, log = self.following, self.log
        if following is None or following.leader < 0 or log.failure is not None:
            return None
        return following.position(self.epochs, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset)

    def on_fetched(self, fetched: Fetched) -> bool:
        """Act on the leader's answer; return whether to fetch again at once. A late answer is ignored."""
        if self.following is None or fetched.position != self.position():
            return False
        # Our log diverges: truncate it at that point, and fetch again.
        if fetched.code is ErrorCode.NONE and fetched.diverging is not None:
            self._cut(common_end(fetched.diverging, self.epochs, log_end_offset=self.log.log_end_offset))
            return True
        # The leader's log starts after the end of ours: ask where it starts. After any other error, wait before the
        # next fetch.
        if fetched.code is not ErrorCode.NONE:
            self.following.is_lost = fetched.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return self.following.is_lost
        # Append first. Then adopt the leader's high watermark, as far as our own log goes, and its log start.
        self._begin_with_first_batch(fetched.records)
        self.log.append_as_follower(fetched.records)
        self._set_high_watermark(max(self.high_watermark, min(fetched.high_watermark, self.log.log_end_offset)))
        self.following.is_caught_up = fetched.high_watermark <= self.log.log_end_offset
        self._delete_before(fetched.log_start_offset)
        return True

    def _cut(self, offset: int) -> None:
        if offset < self.log.log_start_offset:
            # No record of our log is in the leader's log.
            self._begin_anew(offset)
            return
        # Move the high watermark first, because it must never be beyond the end of the log. It goes back only after an
        # unclean election, which may lose acknowledged records.
        self.high_watermark = min(self.high_watermark, offset)
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        # A batch is removed as a whole, so the log may end before the offset.
        self._set_high_watermark(min(self.high_watermark, self.log.log_end_offset))

    def on_start(self, position: Position, log_start_offset: int) -> None:
        """The leader, which did not have the offset that we asked for, has said where its log starts.

        Afterwards `is_lost` is false, also if our log stays as it is.
        """
        if self.following is None or not self.following.is_lost or position != self.position():
            return
        self.following.is_lost = False
        # The leader has deleted the records that come next, or our log is empty: begin where the leader's log begins.
        if self.log.log_end_offset < log_start_offset or self.log.log_end_offset == self.log.log_start_offset:
            self._begin_anew(log_start_offset)

    def _begin_with_first_batch(self, records: memoryview) -> None:
        # A log may start in the middle of a batch whose first records were deleted, and a batch is copied as a whole.
        # So an empty log begins with the batch that contains the start; `_delete_before` deletes the records before the
        # start afterwards.
        is_empty = self.log.log_end_offset == self.log.log_start_offset
        if is_empty and len(records) >= HEADER_SIZE:
            base_offset = read_header(records).base_offset
            if base_offset < self.log.log_end_offset:
                self._begin_anew(base_offset)

    def _begin_anew(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._set_high_watermark(offset)

    def _delete_before(self, leader_start_offset: int) -> None:
        """Delete the records that the leader has deleted, up to the high watermark."""
        start = min(leader_start_offset, self.high_watermark)
        if start > self.log.log_start_offset:
            self.log.delete_before(start)
            self._set_high_watermark(self.high_watermark)

    def _set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert start <= offset <= end, f"{self.name.directory}: high watermark {offset} is not in [{start}, {end}]"


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
