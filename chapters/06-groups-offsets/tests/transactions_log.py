"""A log with its producers and transactions on a disk in memory, and a model of what it must say about them."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from minibroker.log.batch import BatchBuilder, read_header
from minibroker.log.control import ControlType, build_marker
from minibroker.log.memory import MemoryFiles
from minibroker.partitions.partition import Aborted
from minibroker.partitions.producers import ProducerStates
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory
from minibroker.transactions.aborted import AbortedTransaction
from minibroker.transactions.state import TransactionLog

NAME = TopicPartition("orders", 0)
DIRECTORY = "data/orders-0"
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


class Written(NamedTuple):
    """A batch in the log, as the model sees it."""

    producer_id: int
    producer_epoch: int
    base_offset: int
    next_offset: int
    last_sequence: int = -1
    is_transactional: bool = True
    outcome: ControlType | None = None
    coordinator_epoch: int = -1


class Known(NamedTuple):
    """What is known of a producer."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    coordinator_epoch: int = -1
    first_offset: int = -1


class Ended(NamedTuple):
    """A transaction of the model. Without a marker it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int | None
    is_aborted: bool
    stable_offset: int


class Model:
    """Computes everything from the list of batches, by definition."""

    def __init__(self, written: Sequence[Written]) -> None:
        self.producers: dict[int, Known] = {}
        self.transactions: list[Ended] = []
        first: dict[int, int] = {}
        for it in written:
            known = self.producers.get(it.producer_id, Known())
            if it.producer_epoch != known.epoch:
                known = known._replace(epoch=it.producer_epoch, last_sequence=-1, last_offset=-1)
            if it.outcome is None:
                known = known._replace(last_sequence=it.last_sequence, last_offset=it.next_offset - 1)
                if it.is_transactional:
                    first.setdefault(it.producer_id, it.base_offset)
            else:
                known = known._replace(coordinator_epoch=it.coordinator_epoch)
                began = first.pop(it.producer_id, None)
                if began is not None:
                    is_aborted = it.outcome is ControlType.ABORT
                    stable = min(first.values(), default=it.base_offset + 1)
                    self.transactions.append(Ended(it.producer_id, began, it.base_offset, is_aborted, stable))
            self.producers[it.producer_id] = known._replace(first_offset=first.get(it.producer_id, -1))
        self.transactions += [Ended(producer_id, began, None, False, 0) for producer_id, began in first.items()]

    def last_stable_offset(self, high_watermark: int) -> int:
        undecided = [
            it.first_offset
            for it in self.transactions
            if it.marker_offset is None or it.marker_offset >= high_watermark
        ]
        return min([high_watermark, *undecided])

    def aborted(self, offset: int, upto_offset: int) -> set[Aborted]:
        return {
            Aborted(it.producer_id, it.first_offset)
            for it in self.transactions
            if it.is_aborted and it.marker_offset is not None
            if it.marker_offset >= offset and it.first_offset < upto_offset
        }

    def entries(self) -> list[AbortedTransaction]:
        return [
            AbortedTransaction(it.producer_id, it.first_offset, it.marker_offset, it.stable_offset)
            for it in self.transactions
            if it.is_aborted and it.marker_offset is not None
        ]


class LoggedTransactions:
    """A log with its companions. `high_watermark` is set by hand."""

    def __init__(self, files: MemoryFiles | None = None, config: LogConfig = SMALL) -> None:
        self.files = files or MemoryFiles()
        self.config = config
        self.high_watermark = 0
        self.written: list[Written] = []
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        self.data = DataDirectory(self.files, "data")
        self.producers = ProducerStates(self.files, DIRECTORY)
        self.transactions = TransactionLog(self.files, DIRECTORY, self.producers, lambda: self.high_watermark)
        self.log = self.data.open_log(NAME, self.config, companions=[self.producers, self.transactions])
        self._on_end_moved()

    def _on_end_moved(self) -> None:
        """Forget what is gone after a truncation or a power cut."""
        end = self.log.log_end_offset
        self.written = [it for it in self.written if it.next_offset <= end]
        self.high_watermark = min(self.high_watermark, end)
        model = Model(self.written)
        self._epochs = {it: known.epoch for it, known in model.producers.items()}
        self._sequences = {it: known.last_sequence + 1 for it, known in model.producers.items()}

    # Writing ----------------------------------------------------------------------------------------------------------

    def send(self, producer_id: int, count: int = 1, *, is_transactional: bool = True) -> int:
        """Append a batch of a producer; return its base offset."""
        epoch, sequence = self._epochs.setdefault(producer_id, 0), self._sequences.get(producer_id, 0)
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=is_transactional
        )
        for number in range(count):
            builder.append(timestamp=0, key=b"%d" % producer_id, value=b"value-%d" % number)
        self._sequences[producer_id] = sequence + count
        last_sequence = sequence + count - 1
        return self._append(builder.build(), last_sequence=last_sequence, is_transactional=is_transactional)

    def end(
        self, producer_id: int, outcome: ControlType, *, is_bumping: bool = False, coordinator_epoch: int = 0
    ) -> int:
        """Append a marker; return its offset."""
        epoch = self._epochs.get(producer_id, 0) + is_bumping
        if epoch != self._epochs.get(producer_id):
            self._epochs[producer_id], self._sequences[producer_id] = epoch, 0
        marker = build_marker(
            outcome,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=0,
        )
        return self._append(marker, outcome=outcome, coordinator_epoch=coordinator_epoch)

    def commit(self, producer_id: int, **more: int) -> int:
        return self.end(producer_id, ControlType.COMMIT, **more)  # type: ignore[arg-type]

    def abort(self, producer_id: int, **more: int) -> int:
        return self.end(producer_id, ControlType.ABORT, **more)  # type: ignore[arg-type]

    def _append(self, batch: bytearray, **facts: object) -> int:
        base_offset = self.log.append(batch)
        header = read_header(batch)
        self.written.append(
            Written(header.producer_id, header.producer_epoch, base_offset, header.next_offset, **facts)  # type: ignore[arg-type]
        )
        return base_offset

    def replicate(self, offset: int | None = None) -> None:
        self.high_watermark = self.log.log_end_offset if offset is None else offset

    def truncate(self, offset: int) -> None:
        self.high_watermark = min(self.high_watermark, offset)
        self.log.truncate(offset)
        self._on_end_moved()

    # Stopping ---------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.files.crashes += 1
        self.open()

    def cut_power(self, chance: Random | None = None) -> None:
        self.files.crash(chance)
        self.open()

    def restart(self) -> None:
        self.data.close()
        self.open()

    def forget_files(self, *suffixes: str) -> None:
        """Stop, and remove the files with these suffixes: the log alone must tell."""
        self.files.crashes += 1
        for name in self.files.list(DIRECTORY):
            if name.endswith(suffixes):
                self.files.unlink(f"{DIRECTORY}/{name}")
        self.open()

    # Asking -----------------------------------------------------------------------------------------------------------

    def stable(self, high_watermark: int | None = None) -> int:
        return self.transactions.last_stable_offset(self.high_watermark if high_watermark is None else high_watermark)

    def aborted(self, offset: int, upto_offset: int) -> list[Aborted]:
        return list(self.transactions.aborted(offset, lambda: upto_offset))

    def known(self) -> dict[int, Known]:
        return {
            producer_id: Known(
                it.epoch, it.last_sequence, it.last_offset, it.coordinator_epoch, it.current_txn_first_offset
            )
            for producer_id, it in self.producers.producers.items()
        }

    def index_files(self) -> list[int]:
        return [int(name[:20]) for name in self.files.list(DIRECTORY) if name.endswith(".txnindex")]

    def check(self, *, is_last: bool = True) -> None:
        """Compare everything with the model; if it `is_last`, also for larger high watermarks."""
        model, end = Model(self.written), self.log.log_end_offset
        assert self.known() == model.producers
        assert list(self.transactions.all_aborted()) == [it[:3] for it in model.entries()]
        # A query forgets what is replicated. So the high watermark may only grow from query to query.
        for high_watermark in range(self.high_watermark, end + 1) if is_last else [self.high_watermark]:
            assert self.stable(high_watermark) == model.last_stable_offset(high_watermark), high_watermark
        stable = model.last_stable_offset(self.high_watermark)
        for offset in range(stable) if is_last else ():
            for upto_offset in range(offset + 1, stable + 1):
                found = self.aborted(offset, upto_offset)
                assert len(found) == len(set(found))
                assert set(found) == model.aborted(offset, upto_offset), (offset, upto_offset)
