"""The states of a transaction, and the causes by which they change. A pure module.

`NEXT` has all transitions: a request that would need another one is refused. The diagram in the lesson is drawn from
this table. The number of a state is the one in its record.

Kafka has two more states. `Dead` (6) is the state of a deleted id; here, a deleted id has no state. `PrepareEpochFence`
(7) lasts while Kafka writes a record; here, the record is applied at once.
"""

from enum import Enum, IntEnum


class TransactionState(IntEnum):
    """The state of a transactional id."""

    EMPTY = 0  # there has been no transaction since the producer began
    ONGOING = 1  # partitions were added, and the outcome is open
    PREPARE_COMMIT = 2  # the outcome is decided, and the markers are being written
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # every partition has its marker
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """The name that Kafka's tools show."""
        return self.name.title().replace("_", "")


class Cause(Enum):
    """Why the state changes."""

    INIT = "InitProducerId"
    FENCE = "InitProducerId or timeout"
    ADD = "partitions are added"
    COMMIT = "EndTxn commits"
    ABORT = "EndTxn aborts"
    ABORT_NOTHING = "EndTxn aborts nothing (version 2)"
    MARKED = "all markers are written"


_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_COMMITTED, _ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

NEXT: dict[tuple[TransactionState, Cause], TransactionState] = {
    (_EMPTY, Cause.INIT): _EMPTY,
    (_EMPTY, Cause.ADD): _ONGOING,
    (_EMPTY, Cause.ABORT_NOTHING): TransactionState.PREPARE_ABORT,
    (_ONGOING, Cause.ADD): _ONGOING,
    (_ONGOING, Cause.COMMIT): TransactionState.PREPARE_COMMIT,
    (_ONGOING, Cause.ABORT): TransactionState.PREPARE_ABORT,
    (_ONGOING, Cause.FENCE): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_COMMIT, Cause.MARKED): _COMMITTED,
    (TransactionState.PREPARE_ABORT, Cause.MARKED): _ABORTED,
    (_COMMITTED, Cause.INIT): _EMPTY,
    (_COMMITTED, Cause.ADD): _ONGOING,
    (_COMMITTED, Cause.ABORT_NOTHING): TransactionState.PREPARE_ABORT,
    (_ABORTED, Cause.INIT): _EMPTY,
    (_ABORTED, Cause.ADD): _ONGOING,
    (_ABORTED, Cause.ABORT_NOTHING): TransactionState.PREPARE_ABORT,
}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states in which the outcome is decided, but not yet in every partition."""

COMPLETED = frozenset({_COMMITTED, _ABORTED})
