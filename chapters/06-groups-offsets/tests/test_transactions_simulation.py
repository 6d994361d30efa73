"""Groups and transactions under faults: seeds of `transactions_world`, and planted bugs that they find.

`make simulate WORLDS=transactions_world SEEDS=1000` runs more seeds; `transactions_bugs` looks for each planted
bug anew.
"""

from collections.abc import Callable

import pytest
from cases import case
from groups_watch import CLAIMS, Broken
from simulation_claims import check_found, check_one_trace, check_seeds
from simulation_planted import Bug
from transactions_bugs import BUGS
from transactions_watch import Begun, Copied, DurableOutput, Outcomes
from transactions_world import ACKS_MIN, World

from minibroker.log.batch import Batch, BatchBuilder
from minibroker.log.control import ControlType, build_marker
from minibroker.segments.checkpoint import TopicPartition

SEEDS = range(1, 3)
OUT = TopicPartition("out", 0)


def test_every_invariant_holds_in_every_seed() -> None:
    """The invariants hold after every event, and after the faults no transaction stays open."""
    summary = check_seeds(World, SEEDS, rare=set(World.STATES))
    assert summary.acks_min is not None
    assert summary.acks_min >= ACKS_MIN
    always = ("commit marker", "abort marker", "pending offsets moved", "pending offsets dropped", "coordinator loaded")
    assert not set(summary.missing) & set(always)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    check_found(bug)


def test_a_seed_has_one_trace_under_any_hash_seed() -> None:
    check_one_trace(World, 4)


# The checker itself ---------------------------------------------------------------------------------------------------


class History:
    """Durable records of one partition, and what clients were told."""

    def __init__(self) -> None:
        self.outcomes = Outcomes(lambda _state: None)
        self.log = DurableOutput(OUT, self.outcomes, lambda _state: None)
        for number in (1, 2):
            self.outcomes.begin(f"t{number}", Begun("id", f"life-{number}", {}, {}))

    def write(self, transaction: str = "t1", *, epoch: int = 0) -> None:
        builder = BatchBuilder(producer_id=7, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        builder.append(timestamp=0, key=None, value=Copied(transaction, "g", 0, 0).encode())
        self._take(builder.build())

    def mark(self, outcome: ControlType) -> None:
        marker = build_marker(outcome, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0)
        self._take(marker)

    def _take(self, batch: bytearray) -> None:
        batch[:8] = self.log.end.to_bytes(8, "big")
        self.log.end += 1
        self.log.take_batch(Batch(bytes(batch)))

    def commit(self, transaction: str = "t1") -> None:
        self.outcomes.on_asked(transaction)
        self.mark(ControlType.COMMIT)


def test_every_kind_of_bad_history_is_flagged() -> None:
    def open_record_is_read(it: History) -> None:
        it.write()
        it.log.on_read(0, 1, {0: Copied("t1", "g", 0, 0)})

    def aborted_record_is_read(it: History) -> None:
        it.write()
        it.mark(ControlType.ABORT)
        it.log.on_read(0, 2, {0: Copied("t1", "g", 0, 0)})

    def committed_record_is_missed(it: History) -> None:
        it.write()
        it.commit()
        it.log.on_read(0, 2, {})

    def client_was_told_otherwise(it: History) -> None:
        it.outcomes.on_told("t1", is_commit=True)
        it.write()
        it.mark(ControlType.ABORT)

    def nobody_asked_to_commit(it: History) -> None:
        it.write()
        it.mark(ControlType.COMMIT)

    def transaction_has_no_marker(it: History) -> None:
        it.write()
        it.write("t2")

    def two_outcomes(it: History) -> None:
        it.outcomes.decide("t1", "another partition", is_commit=False)
        it.write()
        it.commit()

    def fenced_producer_commits(it: History) -> None:
        it.write()
        it.outcomes.on_initialized("id", "life-2", 7, 0)
        it.commit()

    def fenced_producer_writes(it: History) -> None:
        it.outcomes.on_initialized("id", "life-2", 7, 1)
        it.write()

    histories: dict[Callable[[History], None], int] = {
        open_record_is_read: 9,
        aborted_record_is_read: 9,
        committed_record_is_missed: 9,
        client_was_told_otherwise: 25,
        nobody_asked_to_commit: 25,
        transaction_has_no_marker: 25,
        two_outcomes: 25,
        fenced_producer_commits: 28,
        fenced_producer_writes: 28,
    }
    for play, invariant in histories.items():
        with case(play.__name__), pytest.raises(Broken, match=CLAIMS[invariant]):
            play(History())
