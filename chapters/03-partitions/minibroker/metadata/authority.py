"""The authority over the metadata, and the log that it writes. A pure module.

Handlers read `image` and propose commands. An authority decides about a command. It writes the records of its decision
as one batch, flushes the batch, and only then folds the records into the image. So everything in an image survives a
power failure.

    propose(command) ── decide ──▶ records ── append, flush ──▶ log ── fold ──▶ image ──▶ listeners
                            └────▶ result  ─────────────────────────────────▶ proposal

`Voter` is the only voter of its cluster, so a record is committed as soon as it is flushed. In chapter 05 a quorum
replicates the same log, and a proposal is done when a majority has its records. The handlers stay the same.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from minibroker.log.batch import Batch, BatchBuilder, batches
from minibroker.log.errors import LogError, StorageError
from minibroker.log.interfaces import Log
from minibroker.metadata.decision import Command, decide
from minibroker.metadata.errors import CorruptMetadata, MetadataError, UnknownRecord
from minibroker.metadata.image import Builder, Image, fold_all
from minibroker.metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_LEVEL,
    FeatureLevelRecord,
    MetadataRecord,
    RemoveTopicRecord,
    decode_record,
    encode_record,
)
from minibroker.segments.config import UNLIMITED, LogConfig
from minibroker.wire.codes import ErrorCode

METADATA_LOG_CONFIG = LogConfig(retention_ms=UNLIMITED, retention_bytes=UNLIMITED)

_READ_BYTES = 1024**2

R = TypeVar("R")
Listener = Callable[[Image, Image], None]


class Proposal(Generic[R]):
    """A proposed command and, later, its result. A request can wait for it, with the proposal as a key of `Waiting`."""

    def __init__(self) -> None:
        self._result: tuple[R] | None = None

    @property
    def is_done(self) -> bool:
        """Whether the proposal has a result: its records are committed, or the command is refused."""
        return self._result is not None

    @property
    def result(self) -> R:
        """The result of the command."""
        assert self._result is not None, "the proposal has no result yet"
        return self._result[0]

    def complete(self, result: R) -> None:
        """Set the result."""
        assert self._result is None, "the proposal has a result already"
        self._result = (result,)


class Authority(Protocol):
    """The interface through which handlers read and change metadata."""

    @property
    def image(self) -> Image:
        """The newest image whose records this node knows to be committed."""

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Propose a change. If its records cannot be written, the result has one of Kafka's error codes."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change, in the order of subscription. A listener must not propose."""


class Listeners:
    """The listeners of an authority. They are called for each change, in the order of subscription."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.is_telling = False
        """True while listeners are called. A listener must not propose: later listeners do not know the change yet."""

    def add(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.append(listener)

    def tell(self, old: Image, new: Image) -> None:
        """Call all listeners."""
        self.is_telling = True
        try:
            for listener in self._listeners:
                listener(old, new)
        finally:
            self.is_telling = False


def batch_of(records: Sequence[MetadataRecord], *, timestamp: int) -> bytearray:
    """A batch with these records."""
    batch = BatchBuilder()
    for record in records:
        batch.append(timestamp=timestamp, key=None, value=encode_record(record))
    return batch.build()


class Voter:
    """The only voter of a cluster, with one log."""

    def __init__(self, log: Log, *, cluster_id: str, clock: Callable[[], int], epoch: int = 1) -> None:
        """Read the whole log. If it is empty, write its first record. `clock` gives the time in ms."""
        self._log = log
        self._clock = clock
        self._epoch = epoch
        self._listeners = Listeners()
        # A killed process may have left unflushed records. Flush them before they become part of the image.
        log.flush()
        self.image = replay(log, Image(cluster_id=cluster_id))
        if log.log_end_offset == 0:
            # As in Kafka, the first record is the metadata.version, which says which records may follow.
            self._write([FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)])

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Decide about the command and write its records. The returned proposal has its result already."""
        assert not self._listeners.is_telling, "a listener must not propose"
        proposal: Proposal[R] = Proposal()
        decision = decide(self.image, command)
        old = self.image
        try:
            if decision.records:
                self._write(decision.records)
        except StorageError as error:
            proposal.complete(command.refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"metadata could not be written: {error}"))
            return proposal
        proposal.complete(decision.result)
        if self.image is not old:
            self._listeners.tell(old, self.image)
        return proposal

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.add(listener)

    def removed_topics(self) -> Collection[bytes]:
        """The ids of the topics that were deleted. This reads the whole log, so it is called once, at the start."""
        return removed_topics(self._log)

    def _write(self, records: Sequence[MetadataRecord]) -> None:
        base_offset = self._log.append(batch_of(records, timestamp=self._clock()), leader_epoch=self._epoch)
        # Only a flushed record is committed. After a failed flush the record may be lost, and the log refuses appends.
        self._log.flush()
        self.image = fold_all(self.image, enumerate(records, start=base_offset))


# Replay ---------------------------------------------------------------------------------------------------------------


def replay(log: Log, image: Image) -> Image:
    """Fold into an image all records of a log that it does not have yet."""
    builder = Builder(image)
    for offset, record in read_records(log, image.offset + 1):
        builder.fold(record, offset)
    return builder.build()


def read_records(log: Log, offset: int) -> Iterator[tuple[int, MetadataRecord]]:
    """The metadata records of a log from `offset` on. Control batches belong to the quorum and are skipped."""
    while offset < log.log_end_offset:
        found = list(batches(log.read(offset, bytes_max=_READ_BYTES).read()))
        if not found:
            raise CorruptMetadata(
                f"metadata log: there is no batch at offset {offset}, but the log ends at {log.log_end_offset}"
            )
        for batch in found:
            if not batch.header.is_control:
                yield from _decoded(batch, offset)
            offset = batch.header.next_offset


def removed_topics(log: Log) -> Collection[bytes]:
    """The ids of the topics whose deletion is in the log."""
    records = read_records(log, log.log_start_offset)
    return frozenset(it.topic_id for _offset, it in records if isinstance(it, RemoveTopicRecord))


def _decoded(batch: Batch, from_offset: int) -> Iterator[tuple[int, MetadataRecord]]:
    offset = batch.header.base_offset
    try:
        batch.check_crc()
        for record in batch.records():
            offset = record.offset
            if offset >= from_offset:
                yield offset, decode_record(record.value or b"")
    except UnknownRecord as error:
        raise UnknownRecord(f"metadata log at offset {offset}: {error}") from error
    except (LogError, MetadataError) as error:
        raise CorruptMetadata(f"metadata log at offset {offset}: {error}; restore the log from a copy") from error
