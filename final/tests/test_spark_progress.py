"""The pure parts of the exactly-once sink: the decision in every interleaving of attempts, and the fingerprint."""

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pytest
from cases import case

from minibroker.spark.fingerprint import fingerprint
from minibroker.spark.progress import (
    Await,
    Begin,
    Commit,
    Committed,
    Done,
    Fingerprint,
    Look,
    Overtaken,
    Read,
    ReplayRefused,
    Step,
    Ticket,
    Write,
    attempt,
    committed_of,
    decide,
)

ROWS, OTHER_ROWS = ("a", "b"), ("a", "c")
STEPS_MAX = 8  # of one attempt, with those of an attempt that was fenced


def ticket(batch_id: int = 7, run_id: str = "run") -> Ticket:
    return Ticket("sink", "query", run_id, batch_id, 0)


def of(rows: Sequence[str]) -> Fingerprint:
    return Fingerprint(len(rows), hash(frozenset(rows)) % 2**64)


# A model ------------------------------------------------------------------------------------------------------------


class Brokers:
    """What brokers keep for one transactional id: the epoch, the open transaction, the progress and the log."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open: tuple[str, ...] = ()
        self.progress: Committed | None = None
        self.log: list[str] = []


class Attempt:
    """One attempt. Its answers arrive with its next turn, so that others may come in between, or it dies."""

    def __init__(self, brokers: Brokers, rows: Sequence[str]) -> None:
        self._brokers = brokers
        self._rows = tuple(rows)
        self._epoch = 0
        self._steps = attempt(ticket(), is_empty=not rows)
        self._answer: object = None
        self._step: Step | None = None
        self.end: Done | Exception | None = None

    def turn(self) -> None:
        if self.end is not None:
            return
        try:
            is_lost = isinstance(self._step, Write | Commit) and self._epoch < self._brokers.epoch
            # If it was fenced before the answer arrived, it asks again, and is told that it was.
            self._step = self._steps.throw(Overtaken("fenced")) if is_lost else self._steps.send(self._answer)
            self._answer = self._carry_out(self._step)
        except StopIteration as stop:
            self.end = stop.value
        except (Overtaken, ReplayRefused) as error:
            self.end = error

    def _carry_out(self, step: Step) -> object:
        brokers = self._brokers
        if isinstance(step, Begin):
            brokers.epoch += 1
            self._epoch, brokers.open = brokers.epoch, ()
        is_mine = self._epoch == brokers.epoch
        if isinstance(step, Write) and is_mine:
            brokers.open = self._rows
        if isinstance(step, Commit) and is_mine:
            brokers.log += brokers.open
            brokers.progress, brokers.open = step.progress, ()
        return of(self._rows) if isinstance(step, Write | Read) else brokers.progress


def schedules(steps_max: int) -> list[tuple[int, ...]]:
    """Every order of the turns of two attempts, each of which may die before any of its turns."""
    return [
        tuple(int(place in chosen) for place in range(first + second))
        for first in range(steps_max + 1)
        for second in range(steps_max + 1)
        for chosen in itertools.combinations(range(first + second), second)
    ]


def run(schedule: Sequence[int], *rows: Sequence[str]) -> tuple[Brokers, list[Attempt]]:
    brokers = Brokers()
    attempts = [Attempt(brokers, it) for it in rows]
    for number in schedule:
        attempts[number].turn()
    while attempts[-1].end is None:
        attempts[-1].turn()
    return brokers, attempts


def test_rows_are_committed_once_however_two_attempts_and_a_last_one_interleave() -> None:
    for schedule in schedules(STEPS_MAX):
        brokers, attempts = run(schedule, ROWS, ROWS, ROWS)
        last = attempts[-1].end
        if brokers.log != list(ROWS) or not isinstance(last, Done):
            pytest.fail(f"{schedule}: the log has {brokers.log}, and the last attempt ended with {last!r}")
        claims = [it.end for it in attempts if isinstance(it.end, Done) and it.end.is_written]
        assert len(claims) <= 1, schedule


def test_rows_that_changed_are_refused_or_were_never_written() -> None:
    for schedule in schedules(6):
        brokers, attempts = run(schedule, ROWS, ROWS, OTHER_ROWS)
        last = attempts[-1].end
        expected = list(OTHER_ROWS) if isinstance(last, Done) else list(ROWS)
        if brokers.log != expected or isinstance(last, Overtaken):
            pytest.fail(f"{schedule}: the log has {brokers.log}, and the last attempt ended with {last!r}")


def test_a_partition_that_is_empty_now_notices_that_it_was_not() -> None:
    brokers, attempts = run([], ROWS)
    assert isinstance(attempts[0].end, Done)
    late = Attempt(brokers, ())
    while late.end is None:
        late.turn()
    assert isinstance(late.end, ReplayRefused)
    fresh = run([], ())[1][0]
    assert fresh.end == Done(Fingerprint(), is_written=False, is_known_run=False)


# The decision -------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_older_than_the_topic_is_refused() -> None:
    with pytest.raises(
        ReplayRefused, match=r"^batch 7 of query query, Spark partition 0: batch 9 is in the topic alre"
    ):
        decide(ticket(7), Committed(10, Fingerprint()))


def test_a_refusal_names_the_rows_and_the_way_out() -> None:
    _, attempts = run([0] * 6, ROWS, OTHER_ROWS)
    told = str(attempts[-1].end)
    assert told.startswith("batch 7 of query query, Spark partition 0: 2 rows are committed, and the same batch has 2 ")
    assert "delivery=at-least-once" in told
    assert "\n" not in told


def test_progress_is_read_back_from_the_text_beside_the_offset() -> None:
    progress = Committed(8, Fingerprint(3, 2**64 - 1), "run")
    assert committed_of("g", 8, progress.metadata()) == progress
    for text in ("", "{}", "[]", '{"rows":1,"hash":"x","run":""}'):
        with case(text), pytest.raises(ReplayRefused, match=r"^group g has an offset that this sink did not write"):
            committed_of("g", 8, text)


def test_the_run_that_wrote_the_last_batch_is_recognised() -> None:
    for run_id, is_known in (("run", True), ("another", False)):
        with case(run_id):
            steps = attempt(ticket(run_id=run_id), is_empty=False)
            answers: list[object] = [None, Committed(7, Fingerprint(), "run"), None, Committed(7, Fingerprint(), "run")]
            for answer in (*answers, Fingerprint(1, 1)):
                steps.send(answer)
            with pytest.raises(StopIteration) as stopped:
                steps.send(None)
            assert stopped.value.value.is_known_run is is_known


def test_a_fenced_attempt_waits_for_the_other_one() -> None:
    steps = attempt(ticket(), is_empty=False)
    assert [next(steps), steps.send(None), steps.send(None), steps.send(None)] == [
        Look(is_stable=False),
        Begin(),
        Look(is_stable=True),
        Write(),
    ]
    assert [steps.throw(Overtaken("fenced")), steps.send(of(ROWS))] == [Read(), Await()]
    with pytest.raises(StopIteration) as stopped:
        steps.send(Committed(8, of(ROWS)))
    assert stopped.value.value.is_written is False


# The fingerprint ----------------------------------------------------------------------------------------------------

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def printed(*rows: tuple[object, ...]) -> Fingerprint:
    """The fingerprint of rows of key, value, headers, topic and partition."""
    types = (pa.binary(), pa.binary(), HEADERS, pa.string(), pa.int32())
    return fingerprint(*(pa.array([row[index] for row in rows], kind) for index, kind in enumerate(types)))


def test_the_fingerprint_depends_on_every_field_and_not_on_the_order_or_the_arrow_batches() -> None:
    base = (b"k", b"v" * 100, [("h", b"1")], "t", 1)
    sizes = (0, 1, 7, 8, 63, 64, 65, 127, 128, 129, 4095, 4096, 5000)
    rows = [base, *((None, bytes([size % 251]) * size, None, "t", None) for size in sizes)]
    whole = printed(*rows)
    for chosen in (rows[::-1], rows[3:] + rows[:3]):
        assert printed(*chosen) == whole
    for cut in range(len(rows) + 1):
        with case(cut):
            assert printed(*rows[:cut]).plus(printed(*rows[cut:])) == whole
    for index, others in enumerate(
        [(None, b"", b"K"), (None, b"", b"v" * 99 + b"w", b"v" * 101), (None, [("h", None)]), ("T",), (None, 2)]
    ):
        for other in others:
            with case(index, other):
                assert printed((*base[:index], other, *base[index + 1 :])) != printed(base)


def test_one_changed_byte_anywhere_changes_the_fingerprint() -> None:
    for size in (1, 64, 100, 4096, 4100):
        found = set()
        for place in range(0, size, max(1, size // 50)):
            value = bytearray(size)
            value[place] = 1
            found.add(printed((None, bytes(value), None, "t", None)).digest)
        with case(size):
            assert len(found) == len(range(0, size, max(1, size // 50)))


def test_the_fingerprint_is_the_same_in_every_release() -> None:
    rows = [(b"k", b"value" * 30, None, "t", 3), (None, None, [("h", b"x")], "t", None)]
    assert f"{printed(*rows).digest:016x}" == "1a6dd7576cd24656"
