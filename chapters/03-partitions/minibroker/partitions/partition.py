"""One partition, as the handlers see it. A pure module.

`Partition` is the port that Produce, Fetch and ListOffsets are written against, once and for good. Its offsets have
names and an order:

    log start ≤ last stable ≤ high watermark ≤ log end
        │           │             │              └ the next offset to be given
        │           │             └ every replica that counts has what is before: consumers read up to here
        │           └ no transaction before is undecided: `read_committed` reads up to here
        └ what is before was deleted

`LocalPartition` implements it, once and for good as well. What differs between chapters is given to it:

    rules         what a batch must be (`admission.py`); chapter 06 gives another list
    replica       does it lead, how far may readers see, is a batch safe: `SoleReplica` here, chapter 04's `Replica`
    transactions  what is undecided or aborted; without them, which is before chapter 06, nothing is

A batch goes down once (the replica's checks, the rules, the log) and its offset comes up once.
"""

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minibroker.log.batch import HEADER_SIZE, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, read_header
from minibroker.log.errors import LogError
from minibroker.log.interfaces import FileSlice
from minibroker.log.record import Record
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Origin, Rules, incoming, rules_of
from minibroker.partitions.errors import Refused, refusal
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.recompression import codec_of, recompressed
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

ACKS_ALL = -1


class Reader(NamedTuple):
    """A consumer or another replica, and how far it may read. A replica has a node id of 0 or more."""

    replica_id: int = -1
    replica_epoch: int = -1
    is_committed_only: bool = False
    log_start_offset: int = -1
    """Where a replica's own log starts."""
    now_ms: int = 0
    """When a replica asked."""
    is_again: bool = False
    """Whether it has asked before and waits: what it said of itself may be over by now."""

    @property
    def is_replica(self) -> bool:
        """Whether this is another broker that copies the log."""
        return self.replica_id >= 0


CONSUMER = Reader()
ANY_NODE = range(2**31)


@dataclass(slots=True)
class Appended:
    """Where a batch is now, or was already."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int
    """The epoch in which this node, as the leader, wrote it; or found it here, if it was written before."""


class Found(NamedTuple):
    """What ListOffsets answers for one partition."""

    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_LEADER_EPOCH


class EpochEnd(NamedTuple):
    """The end of an epoch in the leader's log, told to a follower whose log goes another way."""

    epoch: int
    end_offset: int


class Aborted(NamedTuple):
    """An aborted transaction that a committed-only reader must leave out."""

    producer_id: int
    first_offset: int


class Partition(Protocol):
    """Everything that the handlers ask of a partition. What it refuses, it refuses with `Refused`."""

    name: TopicPartition

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this node leads the partition."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def last_stable_offset(self) -> int:
        """Where a committed-only consumer stops."""

    @property
    def high_watermark(self) -> int:
        """Where a consumer stops."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica that counts: what is before is nowhere any more."""

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse unless this node leads the partition, in the epoch that the client believes."""

    def append(self, batch: memoryview | None, *, acks: int, now_ms: int, origin: Origin = Origin.CLIENT) -> Appended:
        """Check a batch and append it; or say where it is, if it is there already."""

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """Whether a batch is as safe as was asked: NONE if it is, another code if it never will be, None to wait."""

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`: at least one whole batch if the reader may see one."""

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log leaves ours, if it does."""

    def aborted(self, offset: int, records: FileSlice) -> Sequence[Aborted]:
        """The aborted transactions between `offset` and the end of a slice that was read from there."""

    def find_earliest(self) -> Found:
        """Where the log starts."""

    def find_latest(self, *, reader: Reader) -> Found:
        """Where the log ends for a reader."""

    def find_time(self, timestamp: int, *, reader: Reader) -> Found:
        """The first record that is not older than `timestamp`."""

    def find_max_timestamp(self, *, reader: Reader) -> Found:
        """The record with the largest timestamp."""

    def delete_records(self, offset: int) -> int:
        """Let the log start with `offset`, or with the high watermark if that is -1; return the new start."""


class ReplicaPort(Protocol):
    """What a partition asks of the replica on this node: does it lead, how far may readers see, is a batch safe.

    A replica inherits from this class. The steps that have a body here are those of a replica without others.
    """

    leader_epoch: int
    """The epoch in which this node leads the partition."""

    @property
    def high_watermark(self) -> int:
        """Every replica that counts has what is before."""
        raise NotImplementedError

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica that counts."""
        raise NotImplementedError

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's configuration from now on."""
        return

    def check_leading(self) -> None:
        """Refuse unless this node leads the partition."""
        return

    def check_in_sync(self) -> None:
        """Refuse unless enough replicas are in sync for acks=all."""
        return

    def on_log_changed(self) -> None:
        """The log has grown, or starts later: the watermark may move, and those who wait are to look again."""
        raise NotImplementedError

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """Whether a batch is as safe as was asked: NONE if it is, another code if it never will be, None to wait."""
        return ErrorCode.NONE

    def check_follower(self, reader: Reader) -> None:
        """Refuse a node that may not copy this log."""
        raise NotImplementedError

    def on_follower_read(self, reader: Reader, offset: int) -> None:
        """A follower has read from `offset` on, so it has everything before."""
        return

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log leaves ours, if it does."""
        return None

    def check_watermark_is_known(self) -> None:
        """Refuse while the last leader may have shown more than this one may."""
        return

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset."""
        return self.leader_epoch


class SoleReplica(ReplicaPort):
    """The replica of a partition that has one: it always leads, and what is in its log is replicated.

    What is appended is as safe as one replica can make it; the log has followed its flush policy already.
    """

    def __init__(
        self,
        name: TopicPartition,
        log: SegmentedLog,
        *,
        leader_epoch: int,
        wake: Callable[[Hashable], None],
        copied_by: Container[int] = (),
    ) -> None:
        self.name = name
        self.leader_epoch = leader_epoch
        self._log = log
        self._wake = wake
        self._copied_by = copied_by
        """The nodes that may copy the log all the same, as others copy the metadata log; no copy counts."""

    @property
    def high_watermark(self) -> int:
        """With one replica everything is replicated."""
        return self._log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """With one replica it is that one's start."""
        return self._log.log_start_offset

    def on_log_changed(self) -> None:
        """The watermark is the log's end, so it has moved as well."""
        self._wake(self.name)

    def check_follower(self, reader: Reader) -> None:
        """Refuse every node but those that may copy the log."""
        if reader.replica_id not in self._copied_by:
            message = f"node {reader.replica_id} is no replica of {self.name.directory}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


class Transactions(Protocol):
    """What a partition asks about the transactions in its log."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """No transaction before is undecided. It moves only with the high watermark, which wakes those who wait."""

    def aborted(self, offset: int, upto_offset: int) -> Sequence[Aborted]:
        """The aborted transactions in a range of offsets."""


class LocalPartition:
    """A partition with a replica on this node. It appends and reads; the replica says whether it may, and how far."""

    def __init__(
        self,
        name: TopicPartition,
        log: SegmentedLog,
        producers: ProducerStates,
        config: TopicConfig,
        replica: ReplicaPort,
        *,
        rules: Rules = rules_of,
        transactions: Transactions | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.producers = producers
        # Nothing here refers back to the partition. A cycle would keep the files of a deleted one open until Python
        # collects garbage.
        self.replica = replica
        self._rules_of = rules
        self._transactions = transactions
        self.is_deleted = False
        """Whether its topic is gone; work in the background looks at this."""
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's configuration from now on."""
        self.config = config
        self.log.configure(config.log_config)
        self.replica.configure(config)
        self._is_log_append_time = config.is_log_append_time
        self._codec = codec_of(config.compression_type)
        self._rules = self._rules_of(config, self.producers)

    # Offsets ----------------------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this node leads the partition."""
        return self.replica.leader_epoch

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.log.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Where a committed-only consumer stops. Without transactions all that is replicated is decided."""
        high_watermark = self.replica.high_watermark
        return high_watermark if self._transactions is None else self._transactions.last_stable_offset(high_watermark)

    @property
    def high_watermark(self) -> int:
        """Where a consumer stops."""
        return self.replica.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica that counts: what is before is nowhere any more."""
        return self.replica.low_watermark

    def _bound(self, reader: Reader) -> int:
        if reader.replica_id >= 0:
            return self.log.log_end_offset
        return self.last_stable_offset if reader.is_committed_only else self.replica.high_watermark

    # What the handlers ask --------------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse unless this node leads, its disk works, and the client believes in the same epoch (KIP-320)."""
        if self.log.failure is not None:
            # What the disk holds is not known any more, so no client is to see what may be gone after a restart.
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._title} is offline: {self.log.failure}")
        leader_epoch = self.replica.leader_epoch
        if current_leader_epoch != NO_LEADER_EPOCH and current_leader_epoch != leader_epoch:
            if current_leader_epoch < leader_epoch:
                message = f"{self._title} is in leader epoch {leader_epoch}, the request is of {current_leader_epoch}"
                raise Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
            message = f"the request is of leader epoch {current_leader_epoch}, this broker knows only {leader_epoch}"
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, message)
        self.replica.check_leading()

    def append(self, batch: memoryview | None, *, acks: int, now_ms: int, origin: Origin = Origin.CLIENT) -> Appended:
        """Check a batch and append it; or say where it is, if it is there already."""
        # Only a leader with enough replicas looks at a batch at all.
        replica = self.replica
        self.check_leader()
        if acks == ACKS_ALL:
            replica.check_in_sync()
        # Ask the rules. A batch that was here before is answered like the first time, and not written again.
        it = incoming(batch, now_ms, origin)
        for rule in self._rules:
            duplicate = rule(it)
            if duplicate is not None:
                time_ms = duplicate.timestamp if self._is_log_append_time else NO_TIMESTAMP
                base_offset, next_offset = duplicate.base_offset, duplicate.last_offset + 1
                return Appended(base_offset, next_offset, time_ms, self.log.log_start_offset, replica.leader_epoch)
        # Stamp it with its offset, and with our clock if the topic wants that; write it; the watermark may move.
        stored = it.batch if self._codec is None else recompressed(it, self._codec)
        append_time_ms = now_ms if self._is_log_append_time else None
        try:
            base_offset = self.log.append(
                stored, leader_epoch=replica.leader_epoch, log_append_time_ms=append_time_ms, is_checked=True
            )
        except LogError as error:
            raise refusal(error) from error
        replica.on_log_changed()
        time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        next_offset = base_offset + it.header.last_offset_delta + 1
        return Appended(base_offset, next_offset, time_ms, self.log.log_start_offset, replica.leader_epoch)

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """Whether a batch is as safe as was asked: NONE if it is, another code if it never will be, None to wait."""
        return self.replica.verdict(appended, acks=acks)

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`: at least one whole batch if the reader may see one."""
        is_follower = reader.replica_id >= 0
        if is_follower:
            self.replica.check_follower(reader)
        try:
            found = self.log.read(offset, bytes_max=bytes_max, upto_offset=self._bound(reader))
        except LogError as error:
            raise refusal(error) from error
        if is_follower:
            self.replica.on_follower_read(reader, offset)
        return found

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log leaves ours, if it does."""
        return self.replica.diverging_epoch(offset, last_fetched_epoch=last_fetched_epoch)

    def aborted(self, offset: int, records: FileSlice) -> Sequence[Aborted]:
        """The aborted transactions between `offset` and the end of a slice; without transactions there are none."""
        return () if self._transactions is None else self._transactions.aborted(offset, end_offset_of(records))

    def find_earliest(self) -> Found:
        """Where the log starts."""
        return Found(self.log_start_offset, NO_TIMESTAMP, self.replica.epoch_of(self.log_start_offset))

    def find_latest(self, *, reader: Reader) -> Found:
        """Where the log ends for a reader: a committed-only one's end is the last stable offset."""
        if not reader.is_replica:
            self.replica.check_watermark_is_known()
        return Found(self._bound(reader), NO_TIMESTAMP, self.replica.leader_epoch)

    def find_time(self, timestamp: int, *, reader: Reader) -> Found:
        """The first record that is not older than `timestamp`."""
        return self._found(self._look(lambda: self.log.find_time(timestamp)), reader)

    def find_max_timestamp(self, *, reader: Reader) -> Found:
        """The record with the largest timestamp."""
        return self._found(self._look(self.log.find_max_timestamp), reader)

    def _look(self, find: Callable[[], Record | None]) -> Record | None:
        try:
            return find()
        except LogError as error:
            raise refusal(error) from error

    def _found(self, record: Record | None, reader: Reader) -> Found:
        if record is None:
            return Found()
        # A record that the reader may not see yet is not found; but the last leader may have shown it to others.
        if record.offset >= self._bound(reader):
            self.replica.check_watermark_is_known()
            return Found()
        return Found(record.offset, record.timestamp, self.replica.epoch_of(record.offset))

    def delete_records(self, offset: int) -> int:
        """Let the log start with `offset`, or with the high watermark if that is -1; return the new start."""
        if not self.log.config.deletes:
            message = f"{self._title} is compacted only: cleanup.policy has no delete, so no record goes by its age"
            raise Refused(ErrorCode.POLICY_VIOLATION, message)
        high_watermark = self.replica.high_watermark
        offset = high_watermark if offset == NO_OFFSET else offset
        if not 0 <= offset <= high_watermark:
            message = f"records before {offset} cannot be deleted: the high watermark is {high_watermark}"
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        try:
            if offset > self.log_start_offset:
                self.log.delete_before(offset)
        except LogError as error:
            raise refusal(error) from error
        self.replica.on_log_changed()
        return self.log_start_offset

    @property
    def _title(self) -> str:
        return self.name.directory


def end_offset_of(records: FileSlice) -> int:
    """The offset behind the last batch of a slice, also if that batch is cut off; 0 if the slice is empty."""
    position, stop, next_offset = records.position, records.position + records.count, 0
    while position + HEADER_SIZE <= stop:
        header = read_header(records.file.pread(HEADER_SIZE, position))
        position, next_offset = position + header.size, header.next_offset
    return next_offset
