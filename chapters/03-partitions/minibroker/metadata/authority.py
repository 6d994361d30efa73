"""Who decides about metadata, and where it is written down. A pure module.

Handlers read `image` and propose commands. An authority decides, writes the records of the decision as one batch,
flushes it, and only then folds them into the image: what is in an image survives a power cut.

    propose(command) ── decide ──▶ records ── append, flush ──▶ log ── fold ──▶ image ──▶ listeners
                            └────▶ result  ─────────────────────────────────▶ proposal

`Voter` is the only voter of its cluster, so what it has written is decided. Chapter 05 puts a quorum under the same
log, where a proposal is done when a majority has it; nobody above has to know.
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
    """A command on its way. When it is done it has a result; it can be waited for as a key."""

    def __init__(self) -> None:
        self._result: tuple[R] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it is decided."""
        return self._result is not None

    @property
    def result(self) -> R:
        """What came of it."""
        assert self._result is not None, "the proposal is not done"
        return self._result[0]

    def complete(self, result: R) -> None:
        """It is decided."""
        assert self._result is None, "the proposal was done before"
        self._result = (result,)


class Authority(Protocol):
    """What handlers know of whoever decides."""

    @property
    def image(self) -> Image:
        """The newest image of which this node knows that it is decided."""

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Ask for a change. The result of one that could not be written says so in Kafka's codes."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change, in the order of subscription. It must not propose."""


class Listeners:
    """The listeners of an authority, told of each change in the order of subscription."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.is_telling = False
        """A listener must not propose: the others have not heard yet of what it was told."""

    def add(self, listener: Listener) -> None:
        """Call `listener(old, new)` after every change."""
        self._listeners.append(listener)

    def tell(self, old: Image, new: Image) -> None:
        """Tell all of a change."""
        self.is_telling = True
        try:
            for listener in self._listeners:
                listener(old, new)
        finally:
            self.is_telling = False


def batch_of(records: Sequence[MetadataRecord], *, timestamp: int) -> bytearray:
    """The batch that writes records down."""
    batch = BatchBuilder()
    for record in records:
        batch.append(timestamp=timestamp, key=None, value=encode_record(record))
    return batch.build()


class Voter:
    """One voter who needs nobody else, on one log."""

    def __init__(self, log: Log, *, cluster_id: str, clock: Callable[[], int], epoch: int = 1) -> None:
        """Read the whole log; begin an empty one. `clock` gives the milliseconds that batches are stamped with."""
        self._log = log
        self._clock = clock
        self._epoch = epoch
        self._listeners = Listeners()
        # What a killed process had written and not flushed is believed from now on.
        log.flush()
        self.image = replay(log, Image(cluster_id=cluster_id))
        if log.log_end_offset == 0:
            # As in every log of Kafka's, the first record says which records may follow.
            self._write([FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL)])

    def propose(self, command: Command[R]) -> Proposal[R]:
        """Decide at once."""
        assert not self._listeners.is_telling, "a listener proposes"
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
        """The topics of which the log says that they were deleted. It is read for that, so ask once, at the start."""
        return removed_topics(self._log)

    def _write(self, records: Sequence[MetadataRecord]) -> None:
        base_offset = self._log.append(batch_of(records, timestamp=self._clock()), leader_epoch=self._epoch)
        # Only what is on the disk is decided. If the flush fails, nobody knows, and the log takes nothing more.
        self._log.flush()
        self.image = fold_all(self.image, enumerate(records, start=base_offset))


# Replay ---------------------------------------------------------------------------------------------------------------


def replay(log: Log, image: Image) -> Image:
    """Fold all records of a log that come after an image."""
    builder = Builder(image)
    for offset, record in read_records(log, image.offset + 1):
        builder.fold(record, offset)
    return builder.build()


def read_records(log: Log, offset: int) -> Iterator[tuple[int, MetadataRecord]]:
    """The metadata records of a log from `offset` on. Control batches belong to the quorum and are left out."""
    while offset < log.log_end_offset:
        found = list(batches(log.read(offset, bytes_max=_READ_BYTES).read()))
        if not found:
            raise CorruptMetadata(
                f"metadata log: there is no batch at offset {offset}, it should end at {log.log_end_offset}"
            )
        for batch in found:
            if not batch.header.is_control:
                yield from _decoded(batch, offset)
            offset = batch.header.next_offset


def removed_topics(log: Log) -> Collection[bytes]:
    """The topics of which a log says that they were deleted."""
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
