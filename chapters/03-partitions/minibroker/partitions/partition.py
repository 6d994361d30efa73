"""One partition, as the handlers see it. A pure module.

Produce, Fetch and ListOffsets use the port `Partition`, in all chapters. Its offsets have names and an order:

    log start ≤ last stable ≤ high watermark ≤ log end
        │           │             │              └ the offset of the next record
        │           │             └ every in-sync replica has the records before: consumers read up to here
        │           └ every transaction before is committed or aborted: `read_committed` reads up to here
        └ the records before were deleted

`LocalPartition` implements it, in all chapters as well. The parts that differ between chapters are arguments:

    rules         the checks of a batch (`admission.py`); chapter 06 passes another list
    replica       is it the leader, how far may readers read, is a batch safe: `SoleReplica`, or chapter 04's `Replica`
    transactions  the open and the aborted transactions; None before chapter 06

A batch passes the replica's checks and the rules, and is appended to the log.
"""

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

from minibroker.log.batch import HEADER_SIZE, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, read_header
from minibroker.log.errors import LogError
from minibroker.log.interfaces import FileSlice
from minibroker.log.record import Record
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Claim, Origin, Rules, incoming, rules_of
from minibroker.partitions.errors import Refused, refusal
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.recompression import codec_of, recompressed
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

ACKS_ALL = -1


class Reader(NamedTuple):
    """A consumer, or a replica on another node, which has a `replica_id` of 0 or more."""

    replica_id: int = -1
    replica_epoch: int = -1
    is_committed_only: bool = False
    log_start_offset: int = -1
    """The first offset of the replica's own log."""
    now_ms: int = 0
    """The time of a replica's fetch."""
    is_retry: bool = False
    """Whether this is a retry of a waiting fetch. The replica may have sent a newer fetch, with a later offset."""

    @property
    def is_replica(self) -> bool:
        """Whether the reader is another broker that replicates the log."""
        return self.replica_id >= 0

    # Every fetch of a follower calls the next two, for each of its partitions. `_replace` would be five times slower.

    def of_log(self, log_start_offset: int) -> "Reader":
        """The same replica, and the first offset of its log."""
        return tuple.__new__(Reader, (*self[:3], log_start_offset, *self[4:]))

    def again(self) -> "Reader":
        """The same reader, which tries again."""
        return tuple.__new__(Reader, (*self[:-1], True))


CONSUMER = Reader()
ANY_NODE = range(2**31)


@dataclass(slots=True)
class Appended:
    """The place of a batch in the log, whether it was appended now or is a duplicate."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
    leader_epoch: int
    """The leader epoch of this node when it appended the batch, or found it as a duplicate."""


class Found(NamedTuple):
    """The answer of ListOffsets for one partition."""

    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_LEADER_EPOCH


class EpochEnd(NamedTuple):
    """The end of an epoch in the leader's log, for a follower whose log diverges."""

    epoch: int
    end_offset: int


class Aborted(NamedTuple):
    """An aborted transaction, whose records a read_committed consumer must skip."""

    producer_id: int
    first_offset: int


class LogEnd(NamedTuple):
    """The key under which a follower's fetch waits for records that are not replicated yet.

    All other requests wait under the name of the partition: an append does not concern them before it is replicated.
    """

    name: TopicPartition


def wake_all(wake: Callable[[Hashable], None], name: TopicPartition) -> None:
    """Wake all requests that wait for a partition."""
    wake(name)
    wake(LogEnd(name))


class Partition(Protocol):
    """The operations of a partition that the handlers use. A refusal is raised as `Refused`."""

    name: TopicPartition

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this node leads the partition."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset. A read_committed consumer reads up to it."""

    @property
    def high_watermark(self) -> int:
        """The high watermark. A consumer reads up to it."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the in-sync replicas: none of them has earlier records."""

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse unless this node leads the partition, in the epoch of the request."""

    def append(
        self,
        batch: memoryview | None,
        *,
        acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        claim: Claim | None = None,
    ) -> Appended:
        """Check a batch and append it. A duplicate is not appended: the result is its place in the log.

        `claim` names the transaction of a transactional producer's request.
        """

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """The error code for the answer, or None while the batch still waits for other replicas.

        `ErrorCode.NONE` means that the batch is as safe as `acks` asks. Any other code means that it will never be.
        """

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that contains `offset`, up to the reader's bound. The first may exceed `bytes_max`."""

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """The epoch and the end offset at which a follower's log diverges from this log, or None if it does not."""

    def aborted(self, offset: int, records: FileSlice) -> Sequence[Aborted]:
        """The aborted transactions between `offset` and the end of a slice that was read from `offset` on."""

    def find_earliest(self) -> Found:
        """The log start offset, with its leader epoch."""

    def find_end(self) -> Found:
        """The log end offset of this replica, with the leader epoch of its last record. A follower answers, too."""

    def find_latest(self, *, reader: Reader) -> Found:
        """The offset up to which the reader may read."""

    def find_time(self, timestamp: int, *, reader: Reader) -> Found:
        """The first record that is not older than `timestamp`."""

    def find_max_timestamp(self, *, reader: Reader) -> Found:
        """The record with the largest timestamp."""

    def delete_records(self, offset: int) -> int:
        """Delete the records before `offset` (-1: before the high watermark); return the new log start offset."""


class ReplicaPort(Protocol):
    """The replica of a partition on this node: whether it leads, how far readers may read, and whether a batch is safe.

    A replica inherits from this class. The default bodies are right for a partition with one replica.
    """

    leader_epoch: int
    """The epoch in which this node leads the partition."""

    @property
    def high_watermark(self) -> int:
        """Every in-sync replica has the records before this offset."""
        raise NotImplementedError

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the in-sync replicas."""
        raise NotImplementedError

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's configuration."""
        return

    def check_leading(self) -> None:
        """Refuse unless this node leads the partition."""
        return

    def check_in_sync(self) -> None:
        """Refuse unless enough replicas are in sync for acks=all."""
        return

    def on_appended(self) -> None:
        """A batch was appended. Update the high watermark, and wake the requests that wait for it."""
        self.on_log_changed()

    def on_log_changed(self) -> None:
        """The log's end or start has moved. Update the high watermark, and wake the waiting requests."""
        raise NotImplementedError

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """The error code for the answer, or None while the batch still waits for other replicas."""
        return ErrorCode.NONE

    def check_follower(self, reader: Reader) -> None:
        """Refuse a node that may not replicate this log."""
        raise NotImplementedError

    def on_follower_read(self, reader: Reader, offset: int, records: FileSlice) -> None:
        """A follower fetches from `offset`, so it has all earlier records. A throttle may shorten its `records`."""
        return

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """The epoch and the end offset at which a follower's log diverges from this log, or None if it does not."""
        return None

    def check_watermark_is_known(self) -> None:
        """Refuse while the previous leader's high watermark may have been above this leader's high watermark."""
        return

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at an offset."""
        return self.leader_epoch


class SoleReplica(ReplicaPort):
    """The only replica of a partition: it is always the leader, and every record in its log counts as replicated.

    An appended record is as safe as one replica can make it, because the append applies the log's flush policy.
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
        """The nodes that may copy this log, if it is a metadata log. A copy does not count as a replica."""

    @property
    def high_watermark(self) -> int:
        """The end of the log, because there is only one replica."""
        return self._log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """The start of the log, because there is only one replica."""
        return self._log.log_start_offset

    def on_log_changed(self) -> None:
        """Wake the waiting requests, because the high watermark has moved with the end of the log."""
        wake_all(self._wake, self.name)

    def check_follower(self, reader: Reader) -> None:
        """Refuse every node that is not in `copied_by`."""
        if reader.replica_id not in self._copied_by:
            message = f"node {reader.replica_id} is not a replica of {self.name.directory}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)


class Transactions(Protocol):
    """The transactions in the log of a partition."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """The first offset of the oldest open transaction, or the high watermark if no transaction is open."""

    def aborted(self, offset: int, upto_offset: Callable[[], int]) -> Sequence[Aborted]:
        """The aborted transactions in a range of offsets. The end of the range is computed only if it is needed."""

    def all_aborted(self) -> Sequence[tuple[int, int, int]]:
        """The aborted transactions whose records are in the log: producer id, first offset, offset of the marker."""


class LocalPartition:
    """A partition with a replica on this node. The replica decides about appends and how far readers may read."""

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
        # No object here refers back to the partition. A reference cycle would keep the files of a deleted partition
        # open until Python's garbage collection.
        self.replica = replica
        self._rules_of = rules
        self._transactions = transactions
        self.is_deleted = False
        """Whether the partition was deleted. Background work checks this."""
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Apply the topic's configuration."""
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
        """A read_committed consumer reads up to this offset. Without transactions it is the high watermark."""
        high_watermark = self.replica.high_watermark
        return high_watermark if self._transactions is None else self._transactions.last_stable_offset(high_watermark)

    @property
    def high_watermark(self) -> int:
        """The high watermark. A consumer reads up to it."""
        return self.replica.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of the in-sync replicas: none of them has earlier records."""
        return self.replica.low_watermark

    def _bound(self, reader: Reader) -> int:
        if reader.replica_id >= 0:
            return self.log.log_end_offset
        return self.last_stable_offset if reader.is_committed_only else self.replica.high_watermark

    # Operations for the handlers --------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Refuse unless this node leads, its disk works, and the request has the same epoch (KIP-320)."""
        if self.log.failure is not None:
            self._refuse_offline(self.log.failure)
        leader_epoch = self.replica.leader_epoch
        if current_leader_epoch != NO_LEADER_EPOCH and current_leader_epoch != leader_epoch:
            if current_leader_epoch < leader_epoch:
                message = f"{self._title} is in leader epoch {leader_epoch}, but the request has {current_leader_epoch}"
                raise Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
            message = f"the request has leader epoch {current_leader_epoch}, but this broker knows only {leader_epoch}"
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, message)
        self.replica.check_leading()

    def _refuse_offline(self, failure: str) -> NoReturn:
        # After a disk error, a client must not see records that may be gone after a restart.
        raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._title} is offline: {failure}")

    def append(
        self,
        batch: memoryview | None,
        *,
        acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        claim: Claim | None = None,
    ) -> Appended:
        """Check a batch and append it. A duplicate is not appended: the result is its place in the log."""
        # Check the replica first: it must be the leader, with enough replicas in sync for acks=all.
        replica, log = self.replica, self.log
        if log.failure is not None:
            self._refuse_offline(log.failure)
        replica.check_leading()
        if acks == ACKS_ALL:
            replica.check_in_sync()
        # Apply the rules. A duplicate gets the same answer as the first time, and is not appended again.
        it = incoming(batch, now_ms, origin, claim)
        for rule in self._rules:
            duplicate = rule(it)
            if duplicate is not None:
                time_ms = duplicate.timestamp if self._is_log_append_time else NO_TIMESTAMP
                base_offset, next_offset = duplicate.base_offset, duplicate.last_offset + 1
                return Appended(base_offset, next_offset, time_ms, log.log_start_offset, replica.leader_epoch)
        # Append the batch, with the broker's time if the topic is configured so. The high watermark may move.
        stored, header = it.batch, it.header
        if self._codec is not None:
            stored = recompressed(it, self._codec)
            header = read_header(stored)
        append_time_ms = now_ms if self._is_log_append_time else None
        leader_epoch = replica.leader_epoch
        try:
            base_offset = log.append(
                stored, leader_epoch=leader_epoch, log_append_time_ms=append_time_ms, header=header
            )
        except LogError as error:
            raise refusal(error) from error
        replica.on_appended()
        time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        next_offset = base_offset + header.last_offset_delta + 1
        return Appended(base_offset, next_offset, time_ms, log.log_start_offset, leader_epoch)

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """The error code for the answer, or None while the batch still waits for other replicas."""
        return self.replica.verdict(appended, acks=acks)

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that contains `offset`, up to the reader's bound. The first may exceed `bytes_max`."""
        is_follower = reader.replica_id >= 0
        if is_follower:
            self.replica.check_follower(reader)
        try:
            found = self.log.read(offset, bytes_max=bytes_max, upto_offset=self._bound(reader))
        except LogError as error:
            raise refusal(error) from error
        if is_follower:
            self.replica.on_follower_read(reader, offset, found)
        return found

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """The epoch and the end offset at which a follower's log diverges from this log, or None if it does not."""
        return self.replica.diverging_epoch(offset, last_fetched_epoch=last_fetched_epoch)

    def aborted(self, offset: int, records: FileSlice) -> Sequence[Aborted]:
        """The aborted transactions between `offset` and the end of a slice."""
        if self._transactions is None:
            return ()
        return self._transactions.aborted(offset, lambda: end_offset_of(records))

    def all_aborted(self) -> Sequence[tuple[int, int, int]]:
        """The aborted transactions for compaction: producer id, first offset, offset of the marker."""
        return () if self._transactions is None else self._transactions.all_aborted()

    def find_earliest(self) -> Found:
        """The log start offset, with its leader epoch."""
        return Found(self.log_start_offset, NO_TIMESTAMP, self.replica.epoch_of(self.log_start_offset))

    def find_latest(self, *, reader: Reader) -> Found:
        """The offset up to which the reader may read. For a read_committed consumer it is the last stable offset."""
        if not reader.is_replica:
            self.replica.check_watermark_is_known()
        return Found(self._bound(reader), NO_TIMESTAMP, self.replica.leader_epoch)

    def find_end(self) -> Found:
        """The log end offset of this replica, with the leader epoch of its last record. A follower answers, too."""
        if self.log.failure is not None:
            self._refuse_offline(self.log.failure)
        return Found(self.log_end_offset, NO_TIMESTAMP, self.replica.epoch_of(self.log_end_offset - 1))

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
        # A record at or above the reader's bound is not found. If the previous leader may have served it, refuse
        # instead.
        if record.offset >= self._bound(reader):
            self.replica.check_watermark_is_known()
            return Found()
        return Found(record.offset, record.timestamp, self.replica.epoch_of(record.offset))

    def delete_records(self, offset: int) -> int:
        """Delete the records before `offset` (-1: before the high watermark); return the new log start offset."""
        if not self.log.config.deletes:
            message = f"records of {self._title} cannot be deleted: its cleanup.policy is compact, without delete"
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
    """The offset after the last batch of a slice, even if that batch is cut off; 0 if the slice is empty."""
    position, stop, next_offset = records.position, records.position + records.count, 0
    while position + HEADER_SIZE <= stop:
        header = read_header(records.file.pread(HEADER_SIZE, position))
        position, next_offset = position + header.size, header.next_offset
    return next_offset
