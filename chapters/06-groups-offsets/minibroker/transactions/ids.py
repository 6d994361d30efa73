"""The state of one transactional id, as an immutable value. A pure module.

transactional id ──▶ producer id and epoch       the epoch rises, and fences the producers with a lower one
                     state, partitions           the transaction that is open, or is being ended
                     timeout, times              when an open transaction is aborted
"""

from typing import NamedTuple

from minibroker.groups.pending import Producer
from minibroker.segments.checkpoint import TopicPartition
from minibroker.transactions.transitions import TransactionState

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1

EPOCH_MAX = 2**15 - 1
EPOCH_GIVEN_MAX = EPOCH_MAX - 1
"""The largest epoch that a producer gets. EPOCH_MAX is left for fencing the last transaction of a producer id."""


class Transaction(NamedTuple):
    """The state of one transactional id. It is replaced as a whole, when a record says so."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    client_version: int = 0
    """The transaction version of the client: 2 if each transaction has an epoch of its own, otherwise 0."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, if the epochs of the current one are used up."""
    last_epoch: int = NO_EPOCH
    """The epoch before the current one, to recognise a retry of InitProducerId. No record has it."""

    @property
    def producer(self) -> Producer:
        """The producer that may use the transactional id now."""
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def next_producer(self) -> Producer:
        """The producer id and epoch for the transaction after this one."""
        return self.producer if self.next_producer_id == NO_PRODUCER_ID else Producer(self.next_producer_id, 0)
