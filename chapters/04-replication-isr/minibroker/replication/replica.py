"""A replica of a partition: leader or follower. A pure module.

`Replica` is what chapter 03's partition asks through `ReplicaPort`: whether this node leads, how far readers may see,
whether a batch is safe. The handlers of Produce, Fetch and ListOffsets do not know it. A driver tells it what happens:

    on_partition   the authority has decided which node leads, and which replicas are in sync
    on_altered     the authority has answered a proposal
    on_fetched     the leader has answered a fetch; `position` says what to ask for next
    on_start       the leader has said where its log starts
    tick           time has passed

Each of these changes the replica and its log by plain calls, and does no more. What is to be sent to the authority
lies in `outbox`, a list that all replicas of a node share, to be emptied after every event. So the same code runs in a
broker and in the simulator, and what it does depends on nothing but what it was told.

Parts of a node that live on the leader, such as chapter 06's coordinators, are `listeners`: they are told when this
node begins to lead, and when it stops.

The offsets and their order, asserted wherever one of them moves:

    log start ≤ high watermark ≤ log end
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from minibroker.log.batch import HEADER_SIZE, NO_LEADER_EPOCH, NO_OFFSET, read_header
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, EpochEnd, Reader, ReplicaPort
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


class LeadershipListener(Protocol):
    """A part of a node that lives where a partition is led."""

    def on_leader(self, partition: TopicPartition, epoch: int) -> None:
        """This node leads the partition in this epoch. A later epoch may follow without `on_resigned` between."""

    def on_resigned(self, partition: TopicPartition) -> None:
        """This node led the partition, and does not any more."""


class Replica(ReplicaPort):
    """One replica of one partition on node `node_id`. Until it is told who leads, it is neither leader nor follower."""

    high_watermark: int = 0
    """Where a consumer stops: every replica in sync has what is before."""

    def __init__(
        self,
        name: TopicPartition,
        node_id: int,
        log: SegmentedLog,
        epochs: EpochCache,
        *,
        outbox: list[AlterIsr],
        wake: Callable[[Hashable], None],
        high_watermark: int = 0,
        lag_ms_max: int = 30_000,
        listeners: Sequence[LeadershipListener] = (),
    ) -> None:
        self.name = name
        self.node_id = node_id
        self.log = log
        self.epochs = epochs
        self._lag_ms_max = lag_ms_max
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.min_insync_replicas = 1
        self.leading: Leadership | None = None
        self.following: Following | None = None
        self._leading_since = NO_LEADER_EPOCH
        """The epoch in which this node began to lead without a pause: what it has appended since is its own."""
        self._outbox = outbox
        self._wake = wake
        self._listeners = listeners
        # The checkpoint of the watermark may be behind, or ahead of a log that a power cut has shortened.
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's configuration from now on."""
        self.min_insync_replicas = MIN_INSYNC_REPLICAS.of(config)

    # Offsets ----------------------------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica in sync."""
        start = self.log.log_start_offset
        return start if self.leading is None else self.leading.low_watermark(start)

    def _set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert start <= offset <= end, f"{self.name.directory}: not {start} <= {offset} <= {end}"

    def _advance(self) -> bool:
        """Move the high watermark as far as all logs that count go; it never goes back while a leader is in office."""
        assert self.leading is not None
        end = self.log.log_end_offset
        # It is never beyond the end. A partition where nothing happens is asked for again and again.
        if self.high_watermark == end:
            return False
        least = self.leading.watermark(end, min_insync_replicas=self.min_insync_replicas)
        if least is None or least <= self.high_watermark:
            return False
        assert least <= end, f"{self.name.directory}: {least} is beyond the end, {end}"
        self.high_watermark = least
        return True

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
        self.on_log_changed()
        for listener in self._listeners:
            listener.on_leader(self.name, image.leader_epoch)

    def _follow(self, image: PartitionImage) -> None:
        # An epoch in which this node led but wrote nothing is no part of its log.
        self.epochs.truncate_end(self.log.log_end_offset)
        self.leader_epoch, self.following = image.leader_epoch, Following(image.leader, image.leader_epoch)
        self._resign()

    def retire(self) -> None:
        """This node has no replica of the partition any more."""
        self.following = None
        self._resign()

    def _resign(self) -> None:
        was_leading = self.leading is not None
        self.leading, self._leading_since = None, NO_LEADER_EPOCH
        # A client that waits here, for an acknowledgement or for records, waits at the wrong node now.
        self._wake(self.name)
        if was_leading:
            for listener in self._listeners:
                listener.on_resigned(self.name)

    # The leader -------------------------------------------------------------------------------------------------------

    def check_leading(self) -> None:
        """Refuse unless this node leads the partition."""
        if self.leading is None:
            message = f"node {self.node_id} does not lead {self.name.directory} in leader epoch {self.leader_epoch}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    def check_in_sync(self) -> None:
        """Refuse unless enough replicas are in sync for acks=all."""
        assert self.leading is not None
        count, wanted = len(self.leading.isr), self.leading.min_isr(self.min_insync_replicas)
        if count < wanted:
            message = f"{self.name.directory} has {count} replicas in sync, min.insync.replicas is {wanted}"
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def on_log_changed(self) -> None:
        """The leader's log has grown, or starts later. If no other replica counts, all of it is replicated already."""
        self._advance()
        self._wake(self.name)

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
        if self.high_watermark < appended.next_offset:
            return None
        # Too few in sync by then means that it may yet be lost: NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        is_enough = len(self.leading.isr) >= self.leading.min_isr(self.min_insync_replicas)
        return ErrorCode.NONE if is_enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def on_follower_read(self, reader: Reader, offset: int) -> None:
        """A follower has read from `offset` on: that may move the watermark, or bring it back into the in-sync set."""
        leading = self.leading
        assert leading is not None
        # It tells once how far it is. Two fetches that wait, the earlier one on a connection that is long gone, would
        # contradict each other.
        if not reader.is_again:
            self._on_follower(leading, reader, offset)
        if self._advance():
            self._wake(self.name)
        if leading.may_join(reader.replica_id, high_watermark=self.high_watermark):
            self._propose({*leading.isr, reader.replica_id}, reader.now_ms)

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

    def check_follower(self, reader: Reader) -> None:
        """Refuse a node that is no follower, and one that speaks of an earlier life."""
        leading = self.leading
        if leading is None or reader.replica_id not in leading.followers:
            message = f"node {reader.replica_id} is no follower of {self.name.directory}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        if leading.is_stale(reader.replica_id, reader.replica_epoch):
            message = f"node {reader.replica_id} was registered anew since broker epoch {reader.replica_epoch}"
            raise Refused(ErrorCode.STALE_BROKER_EPOCH, message)

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

    def check_watermark_is_known(self) -> None:
        """Refuse while the last leader may have shown more than this one may: offsets must not go back (KIP-207)."""
        assert self.leading is not None
        start = self.leading.epoch_start_offset
        if self.high_watermark < start:
            known = f"epoch {self.leader_epoch} began at {start}, known is {self.high_watermark}"
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.name.directory}: {known}")

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset."""
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
                leader_end_offset=self.log.log_end_offset, now_ms=now_ms, lag_ms_max=self._lag_ms_max
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
            self.on_log_changed()

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
        self._set_high_watermark(max(self.high_watermark, min(fetched.high_watermark, self.log.log_end_offset)))
        self._delete_before(fetched.log_start_offset)
        return True

    def _cut(self, offset: int) -> None:
        if offset < self.log.log_start_offset:
            # Nothing of what we have is in the leader's log.
            self._begin_anew(offset)
            return
        # The watermark first: it is never beyond the end. It goes back only after an unclean election, when what was
        # promised is given up.
        self.high_watermark = min(self.high_watermark, offset)
        self.log.truncate(offset)
        self.epochs.truncate_end(self.log.log_end_offset)
        # A batch goes as a whole, so the log may end before the offset.
        self._set_high_watermark(min(self.high_watermark, self.log.log_end_offset))

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
        start = min(leader_start_offset, self.high_watermark)
        if start > self.log.log_start_offset:
            self.log.delete_before(start)
            self._set_high_watermark(self.high_watermark)
