"""A replica of a partition: leader or follower, behind the port that the handlers know. A pure module.

`Replica` is chapter 03's partition with a high watermark of its own. The handlers of Produce, Fetch and ListOffsets use
it as they used that one; whoever drives it tells it what happens:

    on_partition   the authority has decided something: who leads, who is in sync
    on_altered     the authority has answered a proposal
    on_fetched     the leader has answered a fetch; `position` says what to ask for next
    on_start       the leader has said where its log starts
    tick           time has passed

Each of these changes the replica and its log by plain calls, and does no more. What is to be sent to the authority
lies in `outbox`, a list that all replicas of a node share, to be emptied after every event. So the same code runs in a
broker and in the simulator, and what it does depends on nothing but what it was told.

Its offsets and their order, asserted wherever one of them moves:

    log start ≤ high watermark ≤ log end
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minibroker.log.batch import HEADER_SIZE, NO_LEADER_EPOCH, NO_OFFSET, read_header
from minibroker.log.errors import LogError
from minibroker.log.interfaces import FileSlice
from minibroker.log.record import Record
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.admission import Rule
from minibroker.partitions.errors import Refused, refusal
from minibroker.partitions.partition import ACKS_ALL, Appended, EpochEnd, Found, LocalPartition, Reader
from minibroker.partitions.producers import ProducerStates
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import Fetched, Following, Position, common_end
from minibroker.replication.keys import MIN_INSYNC_REPLICAS
from minibroker.replication.leader import Altered, IsrProposal, Leadership
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode


class AlterIsr(NamedTuple):
    """An order: ask the authority for another in-sync set, and bring the answer to `on_altered`."""

    name: TopicPartition
    proposal: IsrProposal


@dataclass(frozen=True)
class ReplicaSettings:
    """What holds for all replicas of a node."""

    lag_ms_max: int = 30_000  # replica.lag.time.max.ms


class Replica(LocalPartition):
    """One replica of one partition on node `node_id`. Until it is told who leads, it is neither leader nor follower."""

    def __init__(
        self,
        name: TopicPartition,
        node_id: int,
        log: SegmentedLog,
        epochs: EpochCache,
        producers: ProducerStates,
        config: TopicConfig,
        *,
        outbox: list[AlterIsr],
        wake: Callable[[Hashable], None],
        high_watermark: int = 0,
        settings: ReplicaSettings | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        super().__init__(name, log, producers, config, leader_epoch=NO_LEADER_EPOCH, wake=wake, rules=rules)
        self.node_id = node_id
        self.epochs = epochs
        self.settings = settings or ReplicaSettings()
        self.partition_epoch = -1
        self.leading: Leadership | None = None
        self.following: Following | None = None
        self._leading_since = NO_LEADER_EPOCH
        """The epoch in which this node began to lead without a pause: what it has appended since is its own."""
        self._outbox = outbox
        # The checkpoint of the watermark may be behind, or ahead of a log that a power cut has shortened.
        self._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    # Offsets ----------------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Where a consumer stops: every replica in sync has what is before."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Without transactions all that is replicated is decided."""
        return self._high_watermark

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica in sync."""
        start = self.log.log_start_offset
        return start if self.leading is None else self.leading.low_watermark(start)

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self._check_order()

    def _check_order(self) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert start <= self._high_watermark <= end, f"{self._title}: not {start} <= {self._high_watermark} <= {end}"

    def _advance(self) -> None:
        """Move the high watermark as far as all logs that count go; it never goes back while a leader is in office."""
        assert self.leading is not None
        # It is never beyond the end. A partition where nothing happens is asked for again and again.
        if self._high_watermark == self.log.log_end_offset:
            return
        least = self.leading.watermark(self.log.log_end_offset, min_insync_replicas=MIN_INSYNC_REPLICAS.of(self.config))
        if least is not None and least > self._high_watermark:
            self._set_high_watermark(least)
            self._wake(self.name)

    # Changes of role --------------------------------------------------------------------------------------------------

    def on_partition(self, image: PartitionImage, broker_epochs: Mapping[int, int], now_ms: int) -> None:
        """The authority has decided who leads, in which epoch, and who is in sync; and with which epochs nodes live."""
        # News may come late or twice: only a newer partition epoch counts. That a node was registered anew is news.
        if self.leading is not None:
            self.leading.broker_epochs = broker_epochs
        if image.partition_epoch < self.partition_epoch:
            return
        # An answer of the authority may have told of the in-sync set before; of other replicas only this tells.
        if self.leading is not None and image.leader_epoch == self.leader_epoch:
            self.leading.on_replicas(image.replicas)
        if image.partition_epoch == self.partition_epoch:
            return
        self.partition_epoch = image.partition_epoch
        # The same leader goes on, with another in-sync set perhaps; or this node is to lead; or to follow.
        if self.leading is not None and image.leader_epoch == self.leader_epoch:
            self._on_isr_changed(self.leading.adopt(image.isr, image.partition_epoch))
        elif image.leader == self.node_id:
            self._lead(image, broker_epochs, now_ms)
        elif self.following is None or image.leader_epoch != self.leader_epoch:
            self._follow(image)

    def _lead(self, image: PartitionImage, broker_epochs: Mapping[int, int], now_ms: int) -> None:
        # Whatever is in the log stays there, and the epoch begins behind it; its first record writes that down.
        epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(image.leader_epoch, epoch_start_offset)
        if self.leading is None:
            self._leading_since = image.leader_epoch
        self.leader_epoch, self.following = image.leader_epoch, None
        self.leading = Leadership(
            self.node_id, image, broker_epochs, epoch_start_offset=epoch_start_offset, now_ms=now_ms
        )
        # Of the followers nothing is known yet; the watermark stays where this node last saw it.
        self._advance()
        self._wake(self.name)

    def _follow(self, image: PartitionImage) -> None:
        # An epoch in which this node led but wrote nothing is no part of its log.
        self.epochs.truncate_end(self.log.log_end_offset)
        self.leader_epoch, self.leading, self._leading_since = image.leader_epoch, None, NO_LEADER_EPOCH
        self.following = Following(image.leader, image.leader_epoch)
        # Whoever waits here, for an acknowledgement or for records, waits at the wrong node now.
        self._wake(self.name)

    def retire(self) -> None:
        """This node has no replica of the partition any more: whoever waits here waits at the wrong node."""
        self.leading, self.following, self._leading_since = None, None, NO_LEADER_EPOCH
        self._wake(self.name)

    # The leader -------------------------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse unless this node leads the partition, in the epoch that the client believes."""
        super().check_leader(current_leader_epoch)
        if self.leading is None:
            message = f"node {self.node_id} does not lead {self._title} in leader epoch {self.leader_epoch}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    def append(self, batch: memoryview | None, *, acks: int, now_ms: int) -> Appended:
        """Append a producer's batch, if this node leads and enough replicas are in sync for what is asked."""
        self.check_leader()
        if acks == ACKS_ALL:
            self._check_enough_in_sync()
        appended = super().append(batch, acks=acks, now_ms=now_ms)
        # If nobody else counts, it is replicated already.
        self._advance()
        return appended

    def _check_enough_in_sync(self) -> None:
        count, wanted = self._in_sync()
        if count < wanted:
            message = f"{self._title} has {count} replicas in sync, min.insync.replicas is {wanted}"
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def _in_sync(self) -> tuple[int, int]:
        """How many replicas are in sync, and how many must be."""
        assert self.leading is not None
        return len(self.leading.isr), self.leading.min_isr(MIN_INSYNC_REPLICAS.of(self.config))

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """Whether a batch is as safe as was asked: NONE if it is, another code if it never will be, None to wait."""
        # Who does not ask for all replicas waits for none.
        if acks != ACKS_ALL:
            return ErrorCode.NONE
        # Who has led without a pause since it was appended still has it. Otherwise another may stand in its place:
        # NOT_LEADER_OR_FOLLOWER.
        if self.leading is None or appended.leader_epoch < self._leading_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        # It is safe when the high watermark has passed it.
        if self._high_watermark < appended.next_offset:
            return None
        # Too few in sync by then means that it may yet be lost: NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        count, wanted = self._in_sync()
        return ErrorCode.NONE if count >= wanted else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`: for a consumer to the high watermark, for a follower to the end."""
        if not reader.is_replica:
            return super().read(offset, bytes_max=bytes_max, reader=reader)
        leading = self._check_follower(reader)
        try:
            found = self.log.read(offset, bytes_max=bytes_max)
        except LogError as error:
            raise refusal(error) from error
        # What it asks for tells how far it is: that may move the watermark, or bring it back into the in-sync set. It
        # tells so once. Two that wait, the earlier one on a connection that is long gone, would contradict each other.
        if not reader.is_again:
            self._on_follower(leading, reader, offset)
        self._advance()
        if leading.may_join(reader.replica_id, high_watermark=self._high_watermark):
            self._propose({*leading.isr, reader.replica_id}, reader.now_ms)
        return found

    def _on_follower(self, leading: Leadership, reader: Reader, offset: int) -> None:
        is_start_news = reader.log_start_offset != leading.followers[reader.replica_id].log_start_offset
        leading.on_fetch(
            reader.replica_id,
            broker_epoch=reader.replica_epoch,
            offset=offset,
            log_start_offset=reader.log_start_offset,
            leader_end_offset=self.log.log_end_offset,
            now_ms=reader.now_ms,
        )
        if is_start_news:
            # Somebody may wait until deleted records are nowhere any more.
            self._wake(self.name)

    def _check_follower(self, reader: Reader) -> Leadership:
        leading = self.leading
        if leading is None or reader.replica_id not in leading.followers:
            message = f"node {reader.replica_id} is no follower of {self._title}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        if leading.is_stale(reader.replica_id, reader.replica_epoch):
            message = f"node {reader.replica_id} was registered anew since broker epoch {reader.replica_epoch}"
            raise Refused(ErrorCode.STALE_BROKER_EPOCH, message)
        return leading

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log leaves ours, if it does (KIP-595)."""
        ours = self.epochs.end_of(last_fetched_epoch, log_end_offset=self.log.log_end_offset)
        if ours.end_offset == NO_OFFSET:
            message = f"epoch {last_fetched_epoch} is not known, the latest is {self.epochs.latest_epoch}"
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        # It leaves if we have nothing of its last epoch, or less of it than it has.
        return ours if ours.epoch < last_fetched_epoch or ours.end_offset < offset else None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """What OffsetForLeaderEpoch answers (KIP-320)."""
        return self.epochs.end_of(epoch, log_end_offset=self.log.log_end_offset)

    def find_latest(self, *, reader: Reader) -> Found:
        """Where the log ends for a reader, if a new leader can tell already."""
        if not reader.is_replica:
            self._check_watermark_is_known()
        return super().find_latest(reader=reader)

    def _found(self, record: Record | None, reader: Reader) -> Found:
        # A record that a reader may not see is not found; but it may be one that others were shown by the last leader.
        if record is not None and record.offset >= self._bound(reader):
            self._check_watermark_is_known()
        return super()._found(record, reader)

    def _check_watermark_is_known(self) -> None:
        """Refuse while the last leader may have shown more than this one may: offsets must not go back (KIP-207)."""
        assert self.leading is not None
        start = self.leading.epoch_start_offset
        if self._high_watermark < start:
            message = f"{self._title}: epoch {self.leader_epoch} began at {start}, known is {self._high_watermark}"
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, message)

    def _epoch_of(self, offset: int) -> int:
        return self.epochs.epoch_of(offset)

    def tick(self, now_ms: int) -> None:
        """Time has passed: a follower may have been behind for too long, a proposal may have got lost."""
        if self.leading is None:
            return
        overdue = self.leading.overdue(now_ms)
        if overdue is not None:
            self._outbox.append(AlterIsr(self.name, overdue))
        elif self.leading.pending is None:
            lagging = self.leading.lagging(
                leader_end_offset=self.log.log_end_offset, now_ms=now_ms, lag_ms_max=self.settings.lag_ms_max
            )
            if lagging:
                self._propose(set(self.leading.isr) - set(lagging), now_ms)

    def _propose(self, members: set[int], now_ms: int) -> None:
        assert self.leading is not None
        self._outbox.append(AlterIsr(self.name, self.leading.propose(members, now_ms)))

    def on_altered(self, proposal: IsrProposal, altered: Altered) -> None:
        """The authority has answered a proposal, perhaps one of an earlier time in office."""
        if self.leading is not None:
            self._on_isr_changed(self.leading.on_altered(proposal, altered))
            self.partition_epoch = max(self.partition_epoch, self.leading.partition_epoch)

    def _on_isr_changed(self, is_changed: bool) -> None:
        if is_changed:
            # Fewer may count now, so that the watermark can move; and who waits may have to hear that too few are left.
            self._advance()
            self._wake(self.name)

    # The follower -----------------------------------------------------------------------------------------------------

    def position(self) -> Position | None:
        """What to fetch next, and from whom; None if there is nobody to fetch from."""
        if self.following is None or self.following.leader < 0 or self.log.failure is not None:
            return None
        return self.following.position(
            self.epochs, log_start_offset=self.log.log_start_offset, log_end_offset=self.log.log_end_offset
        )

    def on_fetched(self, fetched: Fetched) -> bool:
        """Do what the leader's answer says; return whether to ask again at once. An answer that is late is nothing."""
        if self.following is None or fetched.position != self.position():
            return False
        # Our log goes another way: cut it where the leader's leaves it, and ask again.
        if fetched.code is ErrorCode.NONE and fetched.diverging is not None:
            self._cut(common_end(fetched.diverging, self.epochs, log_end_offset=self.log.log_end_offset))
            return True
        # The leader's log does not reach back to our end: ask where it starts. Any other error needs news or patience.
        if fetched.code is not ErrorCode.NONE:
            self.following.is_lost = fetched.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return self.following.is_lost
        # Write first; then believe in the leader's watermark as far as our own log goes, and in where its log starts.
        self._begin_with_first_batch(fetched.records)
        self.log.append_as_follower(fetched.records)
        self._set_high_watermark(max(self._high_watermark, min(fetched.high_watermark, self.log.log_end_offset)))
        self._delete_before(fetched.log_start_offset)
        return True

    def _cut(self, offset: int) -> None:
        if offset < self.log.log_start_offset:
            # Nothing of what we have is in the leader's log.
            self._begin_anew(offset)
            return
        # The watermark first: it is never beyond the end. It goes back only after an unclean election, when what was
        # promised is given up.
        self._high_watermark = min(self._high_watermark, offset)
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        # A batch goes as a whole, so the log may end before the offset.
        self._set_high_watermark(min(self._high_watermark, self.log.log_end_offset))

    def on_start(self, position: Position, log_start_offset: int) -> None:
        """The leader has said where its log starts, after it did not have what we asked for."""
        if self.following is None or not self.following.is_lost or position != self.position():
            return
        self.following.is_lost = False
        # The leader has deleted what we would need next, or we have nothing at all: begin where it begins.
        if self.log.log_end_offset < log_start_offset or self.log.log_end_offset == self.log.log_start_offset:
            self._begin_anew(log_start_offset)

    def _begin_with_first_batch(self, records: memoryview) -> None:
        # A log may start in the middle of a batch, where records were deleted, and a batch is copied as a whole. So who
        # begins at such a start begins with the batch that holds it; what is before the start goes again below.
        is_empty = self.log.log_end_offset == self.log.log_start_offset
        if is_empty and len(records) >= HEADER_SIZE:
            base_offset = read_header(records).base_offset
            if base_offset < self.log.log_end_offset:
                self._begin_anew(base_offset)

    def _begin_anew(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._set_high_watermark(offset)

    def _delete_before(self, leader_start_offset: int) -> None:
        """Records that were deleted at the leader go here as well, as far as they are replicated."""
        start = min(leader_start_offset, self._high_watermark)
        if start > self.log.log_start_offset:
            self.log.delete_before(start)
            self._check_order()
