"""One partition, as the handlers see it. A pure module.

`Partition` is the port that Produce, Fetch and ListOffsets are written against, once and for good. Its offsets have
names and an order:

    log start ≤ last stable ≤ high watermark ≤ log end
        │           │             │              └ the next offset to be given
        │           │             └ every replica that counts has what is before: consumers read up to here
        │           └ no transaction before is undecided: `read_committed` reads up to here
        └ what is before was deleted

`LocalPartition` is a partition with one replica: what is written is replicated, so its high watermark is the log's end.
Chapter 04 brings a partition with leader and followers, chapter 06 a stable offset that waits for transactions. The
handlers will not notice.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minibroker.log.batch import NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP
from minibroker.log.errors import LogError
from minibroker.log.interfaces import FileSlice
from minibroker.log.record import Record
from minibroker.metadata.configs import TopicConfig
from minibroker.partitions.admission import Rule, admit, incoming, rules_of
from minibroker.partitions.errors import Refused, refusal
from minibroker.partitions.producers import ProducerStates
from minibroker.partitions.recompression import codec_of, recompressed
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.codes import ErrorCode

ACKS_ALL = -1


class Reader(NamedTuple):
    """Who reads: it decides how far. A replica has a node id; a consumer has none."""

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

    def append(self, batch: memoryview | None, *, acks: int, now_ms: int) -> Appended:
        """Check a producer's batch and append it; or say where it is, if it is there already."""

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """Whether a batch is as safe as was asked: NONE if it is, another code if it never will be, None to wait."""

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`: at least one whole batch if the reader may see one."""

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's log leaves ours, if it does."""

    def aborted(self, offset: int, upto_offset: int) -> Sequence[Aborted]:
        """The aborted transactions in a range of offsets."""

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


class LocalPartition:
    """A partition with one replica, which is here. It appends and reads; `wake` tells those who wait for it."""

    def __init__(
        self,
        name: TopicPartition,
        log: SegmentedLog,
        producers: ProducerStates,
        config: TopicConfig,
        *,
        leader_epoch: int,
        wake: Callable[[Hashable], None],
        rules: Sequence[Rule] = (),
    ) -> None:
        self.name = name
        self.log = log
        self.producers = producers
        self.leader_epoch = leader_epoch
        self._wake = wake
        self._rules_before = list(rules)
        self.is_deleted = False
        """Whether its topic is gone; work in the background looks at this."""
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's configuration from now on."""
        self.config = config
        self.log.configure(config.log_config())
        self._is_log_append_time = config.is_log_append_time
        self._codec = codec_of(config.compression_type)
        # The rule must not hold the partition: a deleted one would keep its files open until somebody collects garbage.
        check = self.producers.check
        self._rules = [*self._rules_before, *rules_of(config, lambda it: check(it.header))]

    # Offsets ----------------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.log.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Without transactions everything is decided."""
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """With one replica everything is replicated."""
        return self.log.log_end_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """With one replica it is that one's start."""
        return self.log.log_start_offset

    def _bound(self, reader: Reader) -> int:
        if reader.is_replica:
            return self.log_end_offset
        return self.last_stable_offset if reader.is_committed_only else self.high_watermark

    # What the handlers ask --------------------------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """This node always leads, unless its disk fails; but the client may believe in another epoch (KIP-320)."""
        if self.log.failure is not None:
            # What the disk holds is not known any more, so nobody is to see what may be gone after a restart.
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._title} is offline: {self.log.failure}")
        if current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            message = f"{self._title} is in leader epoch {self.leader_epoch}, the request is of {current_leader_epoch}"
            raise Refused(ErrorCode.FENCED_LEADER_EPOCH, message)
        message = f"the request is of leader epoch {current_leader_epoch}, this broker knows only {self.leader_epoch}"
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, message)

    def append(self, batch: memoryview | None, *, acks: int, now_ms: int) -> Appended:  # noqa: ARG002
        """Check a producer's batch and append it; or say where it is, if it is there already."""
        # Ask the rules. A batch that was here before is answered like the first time, and not written again.
        it = incoming(batch, now_ms)
        duplicate = admit(self._rules, it)
        if duplicate is not None:
            time_ms = duplicate.timestamp if self._is_log_append_time else NO_TIMESTAMP
            next_offset = duplicate.last_offset + 1
            return Appended(duplicate.base_offset, next_offset, time_ms, self.log_start_offset, self.leader_epoch)
        # Stamp it with its offset, and with our clock if the topic wants that; write it; wake those who wait for it.
        stored = it.batch if self._codec is None else recompressed(it, self._codec)
        append_time_ms = now_ms if self._is_log_append_time else None
        try:
            base_offset = self.log.append(
                stored, leader_epoch=self.leader_epoch, log_append_time_ms=append_time_ms, is_checked=True
            )
        except LogError as error:
            raise refusal(error) from error
        self._wake(self.name)
        log_append_time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return Appended(
            base_offset, self.log.log_end_offset, log_append_time_ms, self.log.log_start_offset, self.leader_epoch
        )

    def verdict(self, appended: Appended, *, acks: int) -> ErrorCode | None:
        """What is appended is as safe as one replica can make it; the flush policy was followed already."""
        if acks == ACKS_ALL and self.high_watermark < appended.next_offset:
            return None
        return ErrorCode.NONE

    def read(self, offset: int, *, bytes_max: int, reader: Reader) -> FileSlice:
        """Batches from the one that holds `offset`: at least one whole batch if the reader may see one."""
        if reader.is_replica:
            message = f"node {reader.replica_id} is no replica of {self._title}"
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        try:
            return self.log.read(offset, bytes_max=bytes_max, upto_offset=self._bound(reader))
        except LogError as error:
            raise refusal(error) from error

    def diverging_epoch(self, offset: int, *, last_fetched_epoch: int) -> EpochEnd | None:  # noqa: ARG002
        """One log cannot diverge from itself."""
        return None

    def aborted(self, offset: int, upto_offset: int) -> Sequence[Aborted]:  # noqa: ARG002
        """Without transactions none is aborted."""
        return ()

    def find_earliest(self) -> Found:
        """Where the log starts."""
        return Found(self.log_start_offset, NO_TIMESTAMP, self._epoch_of(self.log_start_offset))

    def find_latest(self, *, reader: Reader) -> Found:
        """Where the log ends for a reader: a committed-only one's end is the last stable offset."""
        return Found(self._bound(reader), NO_TIMESTAMP, self.leader_epoch)

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
        # A record that the reader may not see yet is not found.
        if record is None or record.offset >= self._bound(reader):
            return Found()
        return Found(record.offset, record.timestamp, self._epoch_of(record.offset))

    def _epoch_of(self, offset: int) -> int:  # noqa: ARG002
        """The epoch of a record. With one replica the leader never changes."""
        return self.leader_epoch

    def delete_records(self, offset: int) -> int:
        """Let the log start with `offset`, or with the high watermark if that is -1; return the new start."""
        if not self.log.config.deletes:
            message = f"{self._title} is compacted only: cleanup.policy has no delete, so no record goes by its age"
            raise Refused(ErrorCode.POLICY_VIOLATION, message)
        offset = self.high_watermark if offset == NO_OFFSET else offset
        if not 0 <= offset <= self.high_watermark:
            message = f"records before {offset} cannot be deleted: the high watermark is {self.high_watermark}"
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        try:
            if offset > self.log_start_offset:
                self.log.delete_before(offset)
        except LogError as error:
            raise refusal(error) from error
        self._wake(self.name)
        return self.log_start_offset

    @property
    def _title(self) -> str:
        return self.name.directory
