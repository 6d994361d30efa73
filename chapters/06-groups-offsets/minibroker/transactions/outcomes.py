"""The transactional ids of one coordinator, and outcomes that are not yet in every partition. A pure module.

The driver appends each new state of an id as a record, and calls `apply` with the offset of the record. A new
coordinator replays the records with the same `apply`. So it knows which outcomes are decided, and orders their markers
again:

    apply(PrepareCommit, offset 7) ──▶ on_replicated(high watermark 8) ──▶ Markers ──▶ on_marked(partition), for each
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from minibroker.groups.pending import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.ids import Transaction
from minibroker.transactions.transitions import PREPARED, TransactionState


class Markers(NamedTuple):
    """An order: write the outcome of a transaction into its partitions."""

    transactional_id: str
    producer: Producer
    is_commit: bool
    client_version: int
    partitions: frozenset[TopicPartition]


class Transactions:
    """The transactional ids of one partition of `__transaction_state`."""

    def __init__(self) -> None:
        self._states: dict[str, Transaction] = {}
        self._decided: dict[str, int] = {}
        """For each id with a decided outcome whose markers are not ordered yet, the offset of the deciding record."""
        self._unmarked: dict[str, set[TopicPartition]] = {}
        """The partitions without a marker, of each transaction whose outcome is decided."""

    def get(self, transactional_id: str) -> Transaction | None:
        """The state of an id, or None if it is unknown."""
        return self._states.get(transactional_id)

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> Iterator[tuple[str, Transaction]]:
        """All ids with their states."""
        return iter(list(self._states.items()))

    def unmarked(self, transactional_id: str) -> frozenset[TopicPartition]:
        """The partitions of an open transaction; once its outcome is decided, those that still need their marker."""
        state = self._states[transactional_id]
        return frozenset(self._unmarked.get(transactional_id, state.partitions))

    def apply(self, transactional_id: str, new: Transaction | None, offset: int) -> None:
        """A record has been appended or loaded. If it decides an outcome, markers are due once it is replicated."""
        self._decided.pop(transactional_id, None)
        self._unmarked.pop(transactional_id, None)
        if new is None:
            self._states.pop(transactional_id, None)
            return
        self._states[transactional_id] = new
        if new.state in PREPARED:
            self._decided[transactional_id] = offset
            self._unmarked[transactional_id] = set(new.partitions)

    def on_replicated(self, high_watermark: int) -> list[Markers]:
        """The markers of all outcomes that cannot be lost any more. Each is ordered once."""
        due = [name for name, offset in self._decided.items() if offset < high_watermark]
        for name in due:
            del self._decided[name]
        return [self._markers(name, self._states[name]) for name in due]

    def _markers(self, transactional_id: str, state: Transaction) -> Markers:
        is_commit = state.state is TransactionState.PREPARE_COMMIT
        partitions = self.unmarked(transactional_id)
        return Markers(transactional_id, state.producer, is_commit, state.client_version, partitions)

    def on_marked(self, transactional_id: str, names: Iterable[TopicPartition]) -> bool:
        """Note that markers are written, or their partitions deleted. Return whether the transaction has them all."""
        left = self._unmarked.get(transactional_id)
        if left is None:
            return False
        left.difference_update(names)
        return not left
