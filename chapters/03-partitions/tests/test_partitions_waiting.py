"""The table of waiting requests: which ones are woken and answered, and that none is answered twice."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minibroker.partitions.waiting import Parked, Wait, Waiting


class Shelf:
    """Something to wait for: under each key there is a number of things."""

    def __init__(self) -> None:
        self.waiting: Waiting[str] = Waiting()
        self.things: dict[str, int] = {}
        self.answers: list[str] = []

    def ask(self, name: str, *keys: str, least: int = 1, timeout_ms: int = 100, now_ms: int = 0) -> Parked[str]:
        def attempt() -> str | None:
            count = sum(self.things.get(key, 0) for key in keys)
            return f"{name}: {count}" if count >= least else None

        wait = Wait(keys, timeout_ms, attempt, lambda: f"{name}: too late")
        return self.waiting.park(wait, self.answers.append, now_ms=now_ms)

    def put(self, key: str, count: int = 1) -> None:
        self.things[key] = self.things.get(key, 0) + count
        self.waiting.wake(key)


def test_a_wait_is_answered_when_its_key_is_woken_and_the_table_settled() -> None:
    shelf = Shelf()
    shelf.ask("a", "x")
    shelf.put("x")
    assert shelf.answers == []  # not inside `wake`: its caller is in the middle of a change
    shelf.waiting.settle()
    assert shelf.answers == ["a: 1"]
    assert len(shelf.waiting) == 0


def test_a_watcher_is_told_of_every_change_until_it_has_seen_enough() -> None:
    shelf, seen = Shelf(), list[str]()

    def watcher() -> None:
        seen.append("x")

    shelf.waiting.watch("x", watcher)
    shelf.put("x")
    shelf.put("x")
    shelf.put("y")
    assert seen == ["x", "x"]
    assert len(shelf.waiting) == 0

    def once() -> None:
        seen.append("once")
        shelf.waiting.unwatch("x", once)

    # A watcher may end its watch while it is called, and does not end another one's.
    shelf.waiting.watch("x", once)
    shelf.put("x")
    shelf.put("x")
    assert seen == ["x", "x", "x", "once", "x"]
    shelf.waiting.unwatch("x", watcher)
    shelf.put("x")
    assert len(seen) == 5


def test_an_attempt_without_an_answer_waits_longer() -> None:
    shelf = Shelf()
    shelf.ask("a", "x", "y", least=2)
    shelf.put("x")
    shelf.waiting.settle()
    assert shelf.answers == []
    shelf.put("y")
    shelf.waiting.settle()
    assert shelf.answers == ["a: 2"]


def test_a_wait_with_many_woken_keys_is_tried_once() -> None:
    shelf = Shelf()
    tries = []

    def attempt() -> str | None:
        tries.append(1)
        return None

    wait = Wait("xyz", 100, attempt, lambda: "")
    shelf.waiting.park(wait, shelf.answers.append, now_ms=0)
    for key in "xyz":
        shelf.put(key)
    shelf.waiting.settle()
    assert len(tries) == 1


def test_another_key_wakes_nothing() -> None:
    shelf = Shelf()
    shelf.ask("a", "x")
    shelf.put("y", 5)
    shelf.waiting.settle()
    assert shelf.answers == []


def test_expired_waits_are_answered_in_the_order_of_their_deadlines() -> None:
    shelf = Shelf()
    shelf.ask("late", "x", timeout_ms=300)
    shelf.ask("early", "x", timeout_ms=100)
    shelf.ask("also early", "x", timeout_ms=100)
    assert shelf.waiting.next_deadline_ms == 100
    shelf.waiting.expire(99)
    assert shelf.answers == []
    shelf.waiting.expire(100)
    assert shelf.answers == ["early: too late", "also early: too late"]
    assert shelf.waiting.next_deadline_ms == 300


def test_a_forgotten_wait_gets_no_answer() -> None:
    shelf = Shelf()
    parked = shelf.ask("a", "x")
    shelf.waiting.forget(parked)
    shelf.waiting.forget(parked)
    shelf.put("x")
    shelf.waiting.settle()
    shelf.waiting.end()
    assert shelf.answers == []
    assert shelf.waiting.next_deadline_ms is None


def test_an_answer_may_wake_others() -> None:
    shelf = Shelf()
    shelf.ask("b", "y")

    def complete(answer: str) -> None:
        shelf.answers.append(answer)
        shelf.put("y")

    shelf.waiting.park(Wait("x", 100, lambda: "a", lambda: ""), complete, now_ms=0)
    shelf.put("x")
    shelf.waiting.settle()
    assert shelf.answers == ["a", "b: 1"]


def test_an_answer_may_forget_another_that_was_woken_with_it() -> None:
    shelf = Shelf()
    others: list[Parked[str]] = []

    def complete(answer: str) -> None:
        shelf.answers.append(answer)
        shelf.waiting.forget(others[0])

    shelf.waiting.park(Wait("x", 100, lambda: "a", lambda: ""), complete, now_ms=0)
    others.append(shelf.ask("b", "x"))
    shelf.put("x")
    shelf.waiting.settle()
    assert shelf.answers == ["a"]


def test_an_expired_wait_cannot_be_woken() -> None:
    shelf = Shelf()

    def complete(answer: str) -> None:
        shelf.answers.append(answer)
        shelf.put("x")
        shelf.waiting.settle()

    shelf.waiting.park(Wait("x", 100, lambda: "woken", lambda: "too late"), complete, now_ms=0)
    shelf.waiting.expire(100)
    assert shelf.answers == ["too late"]


def test_an_exception_in_one_attempt_does_not_reach_other_waits() -> None:
    shelf = Shelf()
    failures: list[Exception] = []

    def broken() -> str | None:
        raise ZeroDivisionError("a bug")

    shelf.waiting.park(Wait("x", 100, broken, lambda: ""), shelf.answers.append, now_ms=0, fail=failures.append)
    shelf.ask("good", "x")
    shelf.put("x")
    shelf.waiting.settle()
    assert shelf.answers == ["good: 1"]
    assert [str(error) for error in failures] == ["a bug"]
    assert len(shelf.waiting) == 0
    # The same holds at the deadline.
    wait: Wait[str] = Wait("x", 100, lambda: None, lambda: dict[str, str]()["an answer"])
    shelf.waiting.park(wait, shelf.answers.append, now_ms=0, fail=failures.append)
    shelf.ask("late", "y")
    shelf.waiting.expire(100)
    assert shelf.answers == ["good: 1", "late: too late"]
    assert len(failures) == 2


def test_a_wait_whose_answer_is_turned_into_another_one_is_the_same_wait() -> None:
    answers: list[str | None] = [None, "ready"]
    wait = Wait("xy", 100, lambda: answers.pop(0), lambda: "too late", is_blocking=False).then(len)
    assert (wait.keys, wait.timeout_ms, wait.is_blocking) == ("xy", 100, False)
    assert [wait.attempt(), wait.attempt(), wait.expire()] == [None, 5, 8]


def test_every_wait_is_answered_when_the_broker_stops() -> None:
    shelf = Shelf()
    shelf.ask("a", "x", timeout_ms=2**31)
    shelf.waiting.end()
    assert shelf.answers == ["a: too late"]


def test_waits_that_end_early_do_not_accumulate() -> None:
    shelf = Shelf()
    for number in range(10_000):
        shelf.ask(str(number), "x", timeout_ms=2**31)
        shelf.put("x")
        shelf.waiting.settle()
    assert len(shelf.answers) == 10_000
    assert len(shelf.waiting._deadlines) < 200, "waits that are over stay in the heap: rebuild it now and then"


class WaitingMachine(RuleBasedStateMachine):
    """Compared with a model: every wait ends exactly once, by its condition or at its deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.now_ms = 0
        self.count = 0
        self.open: dict[str, tuple[str, int, int]] = {}

    @rule(key=st.sampled_from("xyz"), least=st.integers(1, 5), timeout_ms=st.integers(0, 50))
    def ask(self, key: str, least: int, timeout_ms: int) -> None:
        self.count += 1
        name = f"w{self.count}"
        self.shelf.ask(name, key, least=least, timeout_ms=timeout_ms, now_ms=self.now_ms)
        self.open[name] = (key, least, self.now_ms + timeout_ms)

    @rule(key=st.sampled_from("xyz"))
    def put(self, key: str) -> None:
        self.shelf.put(key)
        self.shelf.waiting.settle()
        have = self.shelf.things[key]
        done = {name for name, (wanted, least, _) in self.open.items() if wanted == key and have >= least}
        self._expect(done)

    @rule(ms=st.integers(0, 30))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.shelf.waiting.expire(self.now_ms)
        self._expect({name for name, (_, _, deadline_ms) in self.open.items() if deadline_ms <= self.now_ms})

    def _expect(self, done: set[str]) -> None:
        assert {answer.partition(":")[0] for answer in self.shelf.answers} == done
        assert len(self.shelf.answers) == len(done)
        self.shelf.answers.clear()
        for name in done:
            del self.open[name]

    @invariant()
    def as_many_wait_as_should(self) -> None:
        assert len(self.shelf.waiting) == len(self.open)


TestWaiting = WaitingMachine.TestCase
