"""Answers that cannot be given yet: the only table of them. A pure module.

A consumer asks for records that do not exist, and is willing to wait for half a second. Instead of a task that sleeps,
its request becomes an entry here: what it waits for, until when, and how to try again. Whoever changes something says
so (`wake`), and the owner of the table lets those try that were woken (`settle`) and those whose time is over
(`expire`).

    park ──▶ waiting ── woken, and the attempt has an answer ──▶ completed
                │  └─── woken, but still nothing ──▶ waiting
                └────── deadline ──▶ completed with what there is

Chapter 04 wakes by the high watermark, chapter 06 parks those who join a group: conditions of another kind, in the same
table.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(slots=True, eq=False)
class Wait(Generic[A]):
    """An answer that is not ready: woken by any of `keys`, tried again, and given up after `timeout_ms`."""

    keys: Sequence[Hashable]
    timeout_ms: int
    attempt: Callable[[], A | None]
    """The answer, or None if it must wait on."""
    expire: Callable[[], A]
    """The answer when the time is over."""


def _raise(error: Exception) -> None:
    raise error


@dataclass(slots=True, eq=False)
class Parked(Generic[A]):
    """A wait in the table, and who gets its answer."""

    wait: Wait[A]
    complete: Callable[[A], None]
    fail: Callable[[Exception], None]
    is_over: bool = field(default=False)


class Waiting(Generic[A]):
    """The table. Everything happens where its owner calls it; nothing is answered inside `wake`."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, dict[Parked[A], None]] = {}
        self._deadlines: list[tuple[int, int, Parked[A]]] = []
        self._woken: dict[Hashable, None] = {}
        self._parked_count = 0
        self._serial = 0

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
        """Keep a wait until it is woken or its time is over. The clock is any that only moves forward.

        A mistake in one attempt goes to `fail`: neither who has woken it nor the others must suffer.
        """
        parked = Parked(wait, complete, fail)
        for key in wait.keys:
            self._by_key.setdefault(key, {})[parked] = None
        # The serial number keeps the order of equal deadlines, and spares the heap from comparing waits.
        self._serial += 1
        heappush(self._deadlines, (now_ms + wait.timeout_ms, self._serial, parked))
        self._parked_count += 1
        return parked

    def forget(self, parked: Parked[A]) -> None:
        """Take a wait out without an answer: whoever waited is gone."""
        # It may be over already. Otherwise it leaves all its keys, and a key that nobody waits for is not kept.
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
        # What is over leaves the heap at its deadline. A reader that never waits to the end must not fill it.
        if len(self._deadlines) > 64 + 2 * self._parked_count:
            self._deadlines = sorted(entry for entry in self._deadlines if not entry[2].is_over)

    def wake(self, key: Hashable) -> None:
        """Something about `key` has changed. Those who wait for it try again when the table is settled."""
        if key in self._by_key:
            self._woken[key] = None

    def settle(self) -> None:
        """Let those try that were woken. An answer may wake others, so go on until nobody is left."""
        # Take the woken keys away first: what is woken from here on belongs to the next round.
        # Whoever waits for several of them tries once; and one who was answered a moment ago does not try again.
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
        """Answer those whose time is over with what there is."""
        # The heap has the earliest deadline first, and may still hold waits that are over.
        # Take a wait out of the table before it is answered: its answer may look into the table.
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            parked = heappop(self._deadlines)[2]
            if not parked.is_over:
                self.forget(parked)
                self._give_up(parked)

    def _give_up(self, parked: Parked[A]) -> None:
        try:
            answer = parked.wait.expire()
        except Exception as error:
            parked.fail(error)
        else:
            parked.complete(answer)

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do at the earliest."""
        while self._deadlines and self._deadlines[0][2].is_over:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def end(self) -> None:
        """Answer everybody now: the broker goes down."""
        self.expire(2**63)
