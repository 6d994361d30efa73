"""The transactions in the log of one partition: which are open, which are decided, which were aborted. A pure module.

A producer's first transactional batch opens a transaction in the partition, and its next marker ends the transaction.
A consumer that reads only committed records must stop before the first record whose outcome it cannot know:

    offsets        0     1     2     3     4     5     6
                  a1    b1    a2    A✓    c1    b2              a, b, c: producers; A✓: the commit marker of a
                   └ with its marker at 3: decided as soon as the high watermark is above 3
                        └ open: the last stable offset is 1

So the last stable offset is the smallest of

- the high watermark,
- the first offset of each open transaction,
- the first offset of each transaction whose marker is not replicated, because a new leader might lack that marker.

`TransactionLog` is a companion of the log: it sees every batch, on a leader and on a follower. After a restart it gets
the open transactions from the producers' snapshot, and reads the log from there. The snapshot must not be later than
the high watermark, because a later one would hide a marker that is not replicated.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from minibroker.log.batch import CONTROL_BIT, NO_OFFSET, TRANSACTIONAL_BIT, Batch, BatchHeader
from minibroker.log.compression import Bytes
from minibroker.log.control import ControlType, control_type, coordinator_epoch
from minibroker.log.interfaces import Files, FileSlice
from minibroker.partitions.partition import Aborted
from minibroker.partitions.producers import ProducerStates
from minibroker.segments.companions import Companion
from minibroker.segments.loading import base_offsets
from minibroker.transactions.aborted import AbortedIndex, AbortedTransaction
from minibroker.transactions.guards import Guards

_DECIDED_MAX = 100  # how many decided transactions a follower keeps before it looks at its high watermark


class Decided(NamedTuple):
    """A transaction that has a marker in the log."""

    first_offset: int
    marker_offset: int


class TransactionLog(Companion):
    """The transactions of one partition."""

    def __init__(
        self,
        files: Files,
        directory: str,
        producers: ProducerStates,
        high_watermark: Callable[[], int],
        *,
        wake: Callable[[Hashable], None] = lambda _key: None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._producers = producers
        self._high_watermark = high_watermark
        self.guards = Guards(wake)
        self._index = AbortedIndex(files, directory)
        self._indexed_upto = 0  # the index has the markers before this offset
        self._log_start_offset = 0
        self._segments: list[int] = []  # the base offsets of the log's segments
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer, in the order of these offsets."""
        self._decided: deque[Decided] = deque()
        """Transactions that may have an unreplicated marker, in the order of their markers.

        The first offsets ascend, too, because `_add_decided` removes the transactions that do not matter any more.
        """
        self._owners: dict[int, str] = {}
        """The transactional id of each producer that has opened its transaction since this node started."""
        producers.snapshot_max = self._restorable_upto

    # The partition's port ---------------------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """The first offset whose outcome is not known, or the high watermark if all outcomes before it are known."""
        if not self._open and not self._decided:
            return high_watermark
        self._forget_replicated(high_watermark)
        first = high_watermark
        if self._decided:
            first = min(first, self._decided[0].first_offset)
        if self._open:
            first = min(first, next(iter(self._open.values())))
        # The first records of a transaction may have been deleted.
        return max(first, self._log_start_offset)

    def aborted(self, offset: int, upto_offset: Callable[[], int]) -> Sequence[Aborted]:
        """The aborted transactions that have records in a range of offsets."""
        found: list[Aborted] = []
        upto = NO_OFFSET
        for it in self._index.from_offset(offset) if self._index else ():
            upto = upto_offset() if upto == NO_OFFSET else upto
            if it.first_offset < upto:
                found.append(Aborted(it.producer_id, it.first_offset))
            if it.last_stable_offset >= upto:
                break
        return found

    def all_aborted(self) -> Sequence[tuple[int, int, int]]:
        """All aborted transactions in the index: producer id, first offset, offset of the marker."""
        return [it[:3] for it in self._index.from_offset(0)] if self._index else ()

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id. Callers must not change it."""
        return self._open

    def is_owned_by(self, producer_id: int, transactional_id: str) -> bool:
        """Whether an open transaction may be this transactional id's. After a restart, it may be any id's."""
        return self._owners.get(producer_id, transactional_id) == transactional_id

    def set_owner(self, producer_id: int, transactional_id: str) -> None:
        """The coordinator has confirmed that a producer's transaction is this transactional id's."""
        self._owners[producer_id] = transactional_id

    # Events of the log ------------------------------------------------------------------------------------------------

    def _restorable_upto(self, recovery_point: int) -> int:
        """Up to this offset, the state can be restored from a snapshot. The producers ask before they load one."""
        names = self._files.list(self._directory)
        self._segments = base_offsets(names)
        self._indexed_upto = self._index.open(names, upto_offset=recovery_point)
        return min(self._indexed_upto, self._high_watermark())

    def restore(self, *, log_start_offset: int, log_end_offset: int, recovery_point: int) -> int:  # noqa: ARG002
        """Take the open transactions from the producers, which have loaded a snapshot, and go on from there."""
        self._log_start_offset = log_start_offset
        self._segments = self._segments or [log_start_offset]
        if self._producers.snapshot_offset == log_start_offset:
            # There is no snapshot, so the whole log is read, and the whole index is made again.
            self._indexed_upto = self._index.open(self._files.list(self._directory), upto_offset=log_start_offset)
        known = self._producers.producers.items()
        firsts = [(it.current_txn_first_offset, producer_id) for producer_id, it in known]
        # Rules refer to this dictionary, so it stays the same object.
        self._open.clear()
        self._open.update((producer_id, first) for first, producer_id in sorted(firsts) if first != NO_OFFSET)
        self._owners.clear()
        self._decided.clear()
        self.guards.end_all()
        return self._producers.snapshot_offset

    def on_restored(self) -> None:
        """Flush the entries that were made again: the recovery point may be after them already."""
        self._index.flush()

    def replay(self, header: BatchHeader, batch: Bytes | FileSlice, position: int = 0) -> None:  # noqa: ARG002
        """Note a batch that was appended, or that is read at the start."""
        attributes = header.attributes
        if not attributes & TRANSACTIONAL_BIT:
            return
        if attributes & CONTROL_BIT:
            self._on_marker(header, batch)
        elif header.producer_id not in self._open:
            self._open[header.producer_id] = header.base_offset
            self.guards.end(header.producer_id)

    on_append = replay

    def _on_marker(self, header: BatchHeader, batch: Bytes | FileSlice) -> None:
        producer_id, marker_offset = header.producer_id, header.base_offset
        self.guards.on_marker(producer_id, header.producer_epoch)
        self._owners.pop(producer_id, None)
        first_offset = self._open.pop(producer_id, None)
        record = next(Batch(batch.read() if isinstance(batch, FileSlice) else batch).records(), None)
        # Compaction has emptied the marker of a producer that has nothing else in the log.
        if record is None:
            return
        self._producers.set_coordinator_epoch(producer_id, coordinator_epoch(record))
        # A marker without records before it decides nothing.
        if first_offset is None:
            return
        self._add_decided(Decided(first_offset, marker_offset))
        if control_type(record) == ControlType.ABORT and marker_offset >= self._indexed_upto:
            stable_offset = next(iter(self._open.values()), marker_offset + 1)
            base_offset = self._segments[max(bisect_right(self._segments, marker_offset) - 1, 0)]
            self._index.add(base_offset, AbortedTransaction(producer_id, first_offset, marker_offset, stable_offset))

    def _add_decided(self, decided: Decided) -> None:
        # A transaction that began after this one, and has its marker before this one's, does not matter any more: this
        # one keeps the last stable offset lower, and for longer.
        while self._decided and self._decided[-1].first_offset > decided.first_offset:
            self._decided.pop()
        self._decided.append(decided)
        # On a leader, `last_stable_offset` forgets replicated transactions. Nobody calls it on a follower.
        if len(self._decided) > _DECIDED_MAX:
            self._forget_replicated(self._high_watermark())

    def _forget_replicated(self, high_watermark: int) -> None:
        while self._decided and self._decided[0].marker_offset < high_watermark:
            self._decided.popleft()

    def on_flush(self, offset: int) -> None:  # noqa: ARG002
        """Flush the index before the recovery point moves: the next start does not read the log before that point."""
        self._index.flush()

    def on_roll(self, base_offset: int) -> None:
        """A segment begins."""
        self._segments.append(base_offset)

    def on_delete(self, offset: int) -> None:
        """Records were deleted."""
        self._log_start_offset = offset
        self._index.refresh()

    def on_replace(self, base_offsets: Sequence[int]) -> None:
        """Compaction has removed the records of aborted transactions, and with the old segments their index entries."""
        del base_offsets
        self._index.refresh()

    def on_close(self, offset: int) -> None:
        """The log is closed."""
        del offset
        self._index.flush()
