"""A replica of a partition: leader or follower. A pure module.

Chapter 03's partition asks a `Replica` through `ReplicaPort` whether this node leads, how far readers may read, and
whether a batch is replicated. The handlers of Produce, Fetch and ListOffsets do not know `Replica`. A driver tells
the replica what happens:

    on_partition   the controller has decided which node leads, and which replicas are in sync
    on_altered     the controller has answered a proposal
    tick           time has passed

and, as long as another node leads, `on_fetched` and `on_start`, which are in `follower`.

Each of these changes only the replica and its log, by plain calls. Proposals for the controller go into `outbox`, a
list that all replicas of a node share; the driver empties it after every event. So the same code runs in a broker and
in the simulator, and its behaviour depends only on its inputs.

Parts of a node that work only on the leader of a partition, such as chapter 06's coordinators, are `listeners`: they
are notified when this node begins to lead, and when it stops.

The offsets and their order, asserted wherever one of them moves:

    log start ≤ high watermark ≤ log end
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET
from minibroker.log.interfaces import FileSlice
from minibroker.metadata.configs import TopicConfig
from minibroker.metadata.image import PartitionImage
from minibroker.partitions.errors import Refused
from minibroker.partitions.partition import ACKS_ALL, Appended, EpochEnd, LogEnd, Reader, ReplicaPort, wake_all
from minibroker.replication.epochs import EpochCache
from minibroker.replication.follower import Follower, Following
from minibroker.replication.keys import MIN_INSYNC_REPLICAS
from minibroker.replication.leader import Altered, IsrProposal, Leadership
from minibroker.replication.throttling import ReplicationQuotas, is_throttled_follower, is_throttled_leader
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode


class AlterIsr(NamedTuple):
    """An order: ask the controller for another in-sync set, and pass its answer to `on_altered`."""

    name: TopicPartition
    proposal: IsrProposal


class LeadershipListener(Protocol):
    """A part of a node that works only on the leader of a partition."""

    def on_leader(self, partition: TopicPartition, epoch: int) -> None:
        """This node leads the partition in this epoch. A later epoch may follow without `on_resigned` in between."""

    def on_resigned(self, partition: TopicPartition) -> None:
        """This node has stopped leading the partition."""


class Replica(Follower, ReplicaPort):
    """One replica of one partition on node `node_id`. Before its first `on_partition` it neither leads nor follows."""

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
        quotas: ReplicationQuotas | None = None,
    ) -> None:
        super().__init__(name, log, epochs, high_watermark=high_watermark)
        self._log_end = LogEnd(name)
        self.node_id = node_id
        self._lag_ms_max = lag_ms_max
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.min_insync_replicas = 1
        self.leading: Leadership | None = None
        self._leading_since = NO_LEADER_EPOCH
        """The first epoch of this node's uninterrupted leadership. Batches appended since then are still in the log."""
        self._outbox = outbox
        self._wake = wake
        self._listeners = listeners
        self._quotas = quotas or ReplicationQuotas()
        self._is_throttled_leader = False
        self.is_throttled_follower = False
        """Whether the rate of a throttled follower applies to this replica."""

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's current configuration."""
        self.min_insync_replicas = MIN_INSYNC_REPLICAS.of(config)
        self._is_throttled_leader = is_throttled_leader(config, self.name, self.node_id)
        self.is_throttled_follower = is_throttled_follower(config, self.name, self.node_id)

    # Offsets ----------------------------------------------------------------------------------------------------------

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of all replicas in sync."""
        start = self.log.log_start_offset
        return start if self.leading is None else self.leading.low_watermark(start)

    def _advance(self) -> bool:
        """Move the high watermark to the smallest log end offset of the replicas that count. It never goes back."""
        assert self.leading is not None
        end = self.log.log_end_offset
        # A shortcut for the most frequent case: a fetch of a partition without new records.
        if self.high_watermark == end:
            return False
        # A partition without followers has no other log end offset.
        leading = self.leading
        least = leading.watermark(end, min_insync_replicas=self.min_insync_replicas) if leading.followers else end
        if least is None or least <= self.high_watermark:
            return False
        assert least <= end, f"{self.name.directory}: high watermark {least} is beyond the log end offset {end}"
        self.high_watermark = least
        return True

    # Changes of role --------------------------------------------------------------------------------------------------

    def on_partition(self, image: PartitionImage, broker_epochs: Mapping[int, int], now_ms: int) -> None:
        """The controller has changed the partition; `broker_epochs` has the epoch of each registered broker."""
        # The same change may arrive late or twice: only a later partition epoch counts. The broker epochs always count.
        if self.leading is not None:
            self.leading.broker_epochs = broker_epochs
        if image.partition_epoch < self.partition_epoch:
            return
        # The in-sync set may be known already, from the answer to a proposal. That answer does not have the replicas,
        # so take them from the image.
        if self.leading is not None and image.leader_epoch == self.leader_epoch:
            self.leading.on_replicas(image.replicas)
        if image.partition_epoch == self.partition_epoch:
            return
        self.partition_epoch = image.partition_epoch
        # This node stays the leader, becomes the leader, or becomes a follower.
        if self.leading is not None and image.leader_epoch == self.leader_epoch:
            self._on_isr_changed(self.leading.adopt(image.isr, image.partition_epoch))
        elif image.leader == self.node_id:
            self._lead(image, broker_epochs, now_ms)
        elif self.following is None or image.leader_epoch != self.leader_epoch:
            self._follow(image)

    def _lead(self, image: PartitionImage, broker_epochs: Mapping[int, int], now_ms: int) -> None:
        # The log stays as it is, and the epoch begins at its end. The checkpoint is not written before the epoch's
        # first record.
        epoch_start_offset = self.log.log_end_offset
        self.epochs.assign(image.leader_epoch, epoch_start_offset)
        if self.leading is None:
            self._leading_since = image.leader_epoch
        self.leader_epoch, self.following = image.leader_epoch, None
        self.leading = Leadership(
            self.node_id, image, broker_epochs, epoch_start_offset=epoch_start_offset, now_ms=now_ms
        )
        # Nothing is known of the followers yet, so the high watermark stays where this node last saw it.
        self.on_log_changed()
        for listener in self._listeners:
            listener.on_leader(self.name, image.leader_epoch)

    def _follow(self, image: PartitionImage) -> None:
        # Drop an epoch in which this node led and wrote nothing.
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
        # A client that waits here for an acknowledgement or for records must ask the new leader.
        wake_all(self._wake, self.name)
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
        count = len(self.leading.isr)
        if count >= self.min_insync_replicas:
            return
        wanted = self.leading.min_isr(self.min_insync_replicas)
        if count < wanted:
            message = f"{self.name.directory} has {count} replicas in sync, min.insync.replicas is {wanted}"
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def on_appended(self) -> None:
        """The leader's log has grown. If no other replica counts, the high watermark moves at once."""
        assert self.leading is not None
        self._wake(self._log_end)
        # No other replica in sync can have the new records yet, so there is nothing to compute.
        if len(self.leading.isr) == 1 and self._advance():
            self._wake(self.name)

    def on_log_changed(self) -> None:
        """The leader's log has grown, or starts later."""
        self._advance()
        wake_all(self._wake, self.name)

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """`ErrorCode.NONE` if a batch is replicated as `acks` asks, None if not yet, an error if it never will be."""
        # Without acks=all a producer waits for no other replica.
        if acks != ACKS_ALL:
            return ErrorCode.NONE
        # A leader that has led without a pause since the append still has the batch. Otherwise another batch may be at
        # its offset: NOT_LEADER_OR_FOLLOWER.
        if self.leading is None or appended.leader_epoch < self._leading_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        # The batch is replicated when the high watermark has passed it.
        if self.high_watermark < appended.next_offset:
            return None
        # If too few replicas are in sync by now, the batch may still be lost: NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        count, wanted = len(self.leading.isr), self.min_insync_replicas
        if count >= wanted or count >= self.leading.min_isr(wanted):
            return ErrorCode.NONE
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def on_follower_read(self, reader: Reader, offset: int, records: FileSlice) -> None:
        """A follower has read from `offset` on: the watermark may move, or the follower may join the in-sync set."""
        leading = self.leading
        assert leading is not None
        if self._is_throttled_leader:
            self._throttle(leading, reader, records)
        # A fetch that waits is tried several times. Only its first attempt says how far the follower is: by a later
        # attempt, the follower may have reconnected and sent a newer fetch.
        if not reader.is_retry:
            self._on_follower(leading, reader, offset)
            if self._advance():
                self._wake(self.name)
        if leading.may_join(reader.replica_id, high_watermark=self.high_watermark):
            self._propose({*leading.isr, reader.replica_id}, reader.now_ms)

    def _throttle(self, leading: Leadership, reader: Reader, records: FileSlice) -> None:
        """While the leader's rate is exceeded, send no records to a follower that is not in sync (KIP-73)."""
        quota, progress = self._quotas.as_leader, leading.followers[reader.replica_id]
        # A fetch that waits is tried several times, but its records are sent only once. So they are counted at the
        # follower's next fetch.
        if not reader.is_retry:
            quota.record(progress.given_bytes, reader.now_ms)
        if reader.replica_id not in leading.isr and not quota.bytes_free(reader.now_ms):
            records.count = 0
        progress.given_bytes = records.count

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
            # DeleteRecords waits until every replica in sync has deleted the records.
            self._wake(self.name)

    def check_follower(self, reader: Reader) -> None:
        """Refuse a node that is not a follower, and a fetch of an earlier incarnation."""
        leading = self.leading
        if leading is None or reader.replica_id not in leading.followers:
            message = f"node {reader.replica_id} is not a follower of {self.name.directory}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        if leading.is_stale(reader.replica_id, reader.replica_epoch):
            message = f"node {reader.replica_id} has registered again since broker epoch {reader.replica_epoch}"
            raise Refused(ErrorCode.STALE_BROKER_EPOCH, message)

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log diverges from ours, if it does (KIP-595)."""
        # The most frequent case: the reader has records of the latest epoch, and no more than we have.
        if last_fetched_epoch == self.epochs.latest_epoch and offset <= self.log.log_end_offset:
            return None
        ours = self.epochs.end_of(last_fetched_epoch, log_end_offset=self.log.log_end_offset)
        if ours.end_offset == NO_OFFSET:
            message = f"leader epoch {last_fetched_epoch} is unknown here, the latest is {self.epochs.latest_epoch}"
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        # The reader's log diverges if its last epoch is not in our log, or ends earlier in our log.
        return ours if ours.epoch < last_fetched_epoch or ours.end_offset < offset else None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log, for the answer to OffsetForLeaderEpoch (KIP-320)."""
        return self.epochs.end_of(epoch, log_end_offset=self.log.log_end_offset)

    def check_watermark_is_known(self) -> None:
        """Refuse while the high watermark may be below the last leader's. Clients must not see it go back (KIP-207)."""
        assert self.leading is not None
        start = self.leading.epoch_start_offset
        if self.high_watermark < start:
            known = f"the high watermark {self.high_watermark} has not reached the start of leader epoch"
            message = f"{self.name.directory}: {known} {self.leader_epoch}, which is {start}; ask again"
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, message)

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset."""
        return self.epochs.epoch_of(offset)

    def tick(self, now_ms: int) -> None:
        """Time has passed: a follower may have lagged for too long, or a proposal may be lost."""
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
        """The controller has answered a proposal, perhaps one of an earlier leader epoch."""
        if self.leading is not None:
            self._on_isr_changed(self.leading.on_altered(proposal, altered))
            self.partition_epoch = max(self.partition_epoch, self.leading.partition_epoch)

    def _on_isr_changed(self, is_changed: bool) -> None:
        if is_changed:
            # If fewer replicas count now, the high watermark may move. If too few are left, waiting producers must get
            # an error.
            self.on_log_changed()

    # The follower -----------------------------------------------------------------------------------------------------

    def fetch_bytes_max(self, now_ms: int) -> int | None:
        """How many bytes may be fetched now, 0 if none (KIP-73); None if this replica is not throttled."""
        # A replica that has caught up is not throttled, because it must not fall out of the in-sync set.
        if not self.is_throttled_follower or self.following is None or self.following.is_caught_up:
            return None
        return self._quotas.as_follower.bytes_free(now_ms)

    def on_bytes_fetched(self, count: int, now_ms: int) -> None:
        """Count the bytes that a throttled follower has fetched."""
        if self.is_throttled_follower:
            self._quotas.as_follower.record(count, now_ms)
