"""The checker flags a planted bad history of every class, and passes a good one."""

from collections.abc import Sequence

import pytest
from cases import case

from minibroker.simulation.checker import INVARIANTS, Checker, Violation
from minibroker.simulation.history import Acked, Event, Failed, History, Invoked, Promise, Read, Unknown, Value

A0, A1, A2 = (Value("a", sequence) for sequence in range(3))
B0, B1 = (Value("b", sequence) for sequence in range(2))
WEAK = {"a": Promise(is_durable=False, is_idempotent=False)}

GOOD: list[Event] = [
    Invoked(0, A0),
    Invoked(1, B0),
    Acked(5, A0, 0),
    Invoked(6, A1),
    Acked(7, B0, 1),
    Read(8, "c", 0, A0),
    Read(8, "c", 1, B0),
    Unknown(9, A1),
    Invoked(10, B1),
    Failed(11, B1),
    Invoked(12, A2),
    Acked(13, A2, 3),
]
GOOD_LOG = {0: A0, 1: B0, 2: A1, 3: A2}


def check(
    events: Sequence[Event], log: dict[int, Value] | None = None, *, start: int = 0, weak: bool = False
) -> Violation | None:
    """Check a history, and the final log if there is one."""
    checker = Checker(WEAK if weak else {})
    history = History(checker.on)
    try:
        for event in events:
            history.record(event)
        if log is not None:
            checker.finish(log, log_start_offset=start)
    except Violation as violation:
        return violation
    return None


def test_a_good_history_passes() -> None:
    assert check(GOOD, GOOD_LOG) is None


def test_the_history_counts() -> None:
    history = History(Checker().on)
    for event in GOOD:
        history.record(event)
    assert history.acks == 3


BAD: dict[str, tuple[int, list[Event], dict[int, Value] | None]] = {
    "an acked record is gone": (1, [Invoked(0, A0), Acked(5, A0, 0)], {}),
    "an acked record is elsewhere": (1, [Invoked(0, A0), Acked(5, A0, 0)], {0: B0, 1: A0}),
    "two acks for one offset": (2, [Invoked(0, A0), Invoked(0, B0), Acked(5, A0, 0), Acked(6, B0, 0)], None),
    "two readers disagree": (2, [Invoked(0, A0), Invoked(0, B0), Read(5, "c", 0, A0), Read(6, "d", 0, B0)], None),
    "a later record is first": (3, [Invoked(0, A0), Invoked(0, A1), Acked(5, A1, 0), Acked(6, A0, 1)], None),
    "an earlier one is seen last": (3, [Invoked(0, A0), Invoked(0, A1), Acked(5, A0, 7), Read(6, "c", 3, A1)], None),
    "the final log is out of order": (3, [Invoked(0, A0), Invoked(0, A1)], {0: A1, 1: A0}),
    "one record twice": (4, [Invoked(0, A0), Acked(5, A0, 0), Read(6, "c", 1, A0)], None),
    "one record twice in the final log": (4, [Invoked(0, A0)], {0: A0, 1: A0}),
    "an ack that goes back in time": (5, [Invoked(0, B0), Acked(5, B0, 9), Invoked(6, A0), Acked(7, A0, 4)], None),
    "a read that does": (5, [Invoked(0, B0), Acked(5, B0, 9), Invoked(6, A0), Read(7, "c", 4, A0)], None),
    "what was read is gone": (6, [Invoked(0, A0), Read(5, "c", 0, A0)], {}),
    "what was read is something else": (6, [Invoked(0, A0), Invoked(0, B0), Read(5, "c", 0, A0)], {0: B0}),
}


def test_a_bad_history_is_flagged() -> None:
    for name in BAD:
        with case(name):
            invariant, events, log = BAD[name]
            violation = check(events, log)
            assert violation is not None
            assert violation.invariant == invariant
            assert str(violation).startswith(f"invariant {invariant} ({INVARIANTS[invariant]}) is broken: ")


def test_every_class_of_one_log_has_a_bad_history() -> None:
    assert {invariant for invariant, _events, _log in BAD.values()} == {1, 2, 3, 4, 5, 6}


def test_a_violation_tells_the_facts() -> None:
    violation = check([Invoked(0, A0), Acked(5, A0, 3)], {0: B0})
    assert violation is not None
    assert violation.facts == "a/0 was acked at 5 ms with offset 3; the final log has nothing there, it ends at 1"


def test_a_violation_is_raised_at_the_first_event_that_shows_it() -> None:
    checker = Checker()
    checker.on(Invoked(0, A0))
    checker.on(Acked(1, A0, 0))
    with pytest.raises(Violation):
        checker.on(Read(2, "c", 1, A0))


def test_records_before_the_start_of_the_log_may_be_missing() -> None:
    events: list[Event] = [Invoked(0, A0), Acked(5, A0, 0), Read(6, "c", 0, A0)]
    assert check(events, {1: B0}, start=1) is None
    assert check(events, {1: B0}, start=0) is not None


def test_acks_of_a_producer_with_acks_1_are_not_checked() -> None:
    lost: list[Event] = [Invoked(0, A0), Acked(5, A0, 0)]
    assert check(lost, {0: B0}, weak=True) is None
    twice: list[Event] = [Invoked(0, A0), Read(5, "c", 0, A0), Read(6, "c", 1, A0)]
    assert check(twice, {0: A0, 1: A0}, weak=True) is None


def test_reads_of_a_producer_with_acks_1_are_checked() -> None:
    violation = check([Invoked(0, A0), Read(5, "c", 0, A0)], {0: B0}, weak=True)
    assert violation is not None
    assert violation.invariant == 6
