"""The table of requests that wait for their answer. A pure module.

Suppose that a consumer asks for records that do not exist yet, and is willing to wait for half a second. Its request
does not become a sleeping task, but an entry in this table, with its keys, its deadline, and a function that tries
again. A change is reported with `wake`. The owner of the table then calls `settle`, which tries the woken entries
again, and `expire`, which answers those whose deadline has passed.

    park ──▶ waiting ── woken, and the attempt has an answer ──▶ completed
                │  └─── woken, but still no answer ──▶ waiting
                └────── deadline ──▶ completed with the answer for a timeout

A watcher waits for no answer: it is called at every change of a key, until `unwatch`. So a list of what has changed
since the last request is made without a look at everything that has not.

In chapter 04 an advance of the high watermark wakes entries. In chapter 06, members that join a group wait in this
table. In chapter 07, a fetch session watches its partitions.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Turn:
    """The key of long work in slices. Its wait is not for an event, but for another turn of the event loop.

    This key is the first key of such a wait. The owner of the table wakes it in every turn.
    """

    __slots__ = ("is_due", "is_over", "is_pausing")

    def __init__(self) -> None:
        self.is_due = False
        """Whether another turn has begun since the last slice. Another key may wake the wait before that."""
        self.is_pausing = False
        """Whether the work can do nothing now. Then it is enough to try again a little later."""
        self.is_over = False
        """Whether the work is done. The wait may still be for other keys."""


@dataclass(slots=True, eq=False)
class Wait(Generic[A]):
    """An answer that is not ready. It is tried again when one of `keys` is woken, and expires after `timeout_ms`."""

    keys: Sequence[Hashable]
    timeout_ms: int
    attempt: Callable[[], A | None]
    """Returns the answer, or None if it must wait longer."""
    expire: Callable[[], A]
    """Returns the answer for a timeout."""
    is_blocking: bool = True
    """Whether the next request of the same client must wait for this answer. If not, a server may serve the next
    one first. It must still send the answers in order, but need not keep the bytes of this request."""

    @property
    def turn(self) -> Turn | None:
        """The key to wake in every turn of the event loop, or None."""
        first = self.keys[0] if self.keys else None
        return first if isinstance(first, Turn) else None

    def then(self, finish: "Callable[[A], B]") -> "Wait[B]":
        """The same wait, whose answer `finish` turns into another one."""

        def attempt() -> B | None:
            answer = self.attempt()
            return None if answer is None else finish(answer)

        return Wait(self.keys, self.timeout_ms, attempt, lambda: finish(self.expire()), self.is_blocking)


def _raise(error: Exception) -> None:
    raise error


@dataclass(slots=True, eq=False)
class Parked(Generic[A]):
    """A wait in the table, and the function that is called with its answer."""

    wait: Wait[A]
    complete: Callable[[A], None]
    fail: Callable[[Exception], None]
    is_over: bool = field(default=False)


class Waiting(Generic[A]):
    """The table of waits. It does nothing by itself, and no wait is answered inside `wake`."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Parked[A], None]] = {}
        self._watchers: dict[Hashable, dict[Callable[[], None], None]] = {}
        self._deadlines: list[tuple[int, int, Parked[A]]] = []
        self._woken: dict[Hashable, None] = {}
        self._parked_count = 0
        self._serial = 0
        self.on_turn: Callable[[Parked[A], Turn], None] = lambda _parked, _turn: None
        """Called when a wait for turns is parked. The owner of the table sets it."""

    def __len__(self) -> int:
        return self._parked_count

    def park(
        self,
        wait: Wait[A],
        complete: Callable[[A], None],
        *,
        now_ms: int,
        fail: Callable[[Exception], None] = _raise,
    ) -> Parked[A]:
        """Add a wait to the table. `now_ms` is the time of a monotonic clock.

        An exception of its attempt goes to `fail`, so that it reaches neither the caller of `settle` nor other waits.
        """
        parked = Parked(wait, complete, fail)
        for key in wait.keys:
            self._by_key.setdefault(key, {})[parked] = None
        # The serial number keeps the order of equal deadlines, and spares the heap from comparing waits.
        self._serial += 1
        heappush(self._deadlines, (now_ms + wait.timeout_ms, self._serial, parked))
        self._parked_count += 1
        turn = wait.turn
        if turn is not None:
            self.on_turn(parked, turn)
        return parked

    def forget(self, parked: Parked[A]) -> None:
        """Remove a wait without answering it, for example because its client has disconnected."""
        # If the wait is over, there is nothing to do. Otherwise remove it, and its keys that have no other wait.
        if parked.is_over:
            return
        parked.is_over = True
        self._parked_count -= 1
        for key in parked.wait.keys:
            others = self._by_key.get(key)
            if others is not None:
                others.pop(parked, None)
                if not others:
                    del self._by_key[key]
        # A wait that is over stays in the heap until its deadline. Rebuild the heap when it holds mostly such waits.
        if len(self._deadlines) > 64 + 2 * self._parked_count:
            self._deadlines = sorted(entry for entry in self._deadlines if not entry[2].is_over)

    def wake(self, key: Hashable) -> None:
        """Something about `key` has changed. Its waits are tried again when the table is settled."""
        if key in self._by_key:
            self._woken[key] = None
        if self._watchers and key in self._watchers:
            for watcher in list(self._watchers[key]):
                watcher()

    def watch(self, key: Hashable, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever `key` is woken, until `unwatch`. It may wake other keys."""
        self._watchers.setdefault(key, {})[watcher] = None

    def unwatch(self, key: Hashable, watcher: Callable[[], None]) -> None:
        """Do not call `watcher` any more."""
        others = self._watchers[key]
        del others[watcher]
        if not others:
            del self._watchers[key]

    def settle(self) -> None:
        """Try the woken waits again. An answer may wake others, so continue until none is left."""
        # Take the woken keys out first: keys that are woken from here on belong to the next round.
        # A wait for several of these keys is tried only once. A wait that was answered meanwhile is not tried again.
        while self._woken:
            keys, self._woken = self._woken, {}
            woken = {parked: None for key in keys for parked in self._by_key.get(key, ())}
            for parked in woken:
                if not parked.is_over:
                    self._try(parked)

    def _try(self, parked: Parked[A]) -> None:
        try:
            answer = parked.wait.attempt()
        except Exception as error:
            self.forget(parked)
            parked.fail(error)
            return
        if answer is not None:
            self.forget(parked)
            parked.complete(answer)

    def expire(self, now_ms: int) -> None:
        """Answer the waits whose deadline has passed."""
        # The heap has the earliest deadline first, and may still hold waits that are over.
        # Remove a wait from the table before it is answered: its answer may change the table.
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            parked = heappop(self._deadlines)[2]
            if not parked.is_over:
                self.forget(parked)
                self._time_out(parked)

    def _time_out(self, parked: Parked[A]) -> None:
        try:
            answer = parked.wait.expire()
        except Exception as error:
            parked.fail(error)
        else:
            parked.complete(answer)

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline, or None if there is no wait."""
        while self._deadlines and self._deadlines[0][2].is_over:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def end(self) -> None:
        """Answer all waits now, because the broker stops."""
        self.expire(2**63)
