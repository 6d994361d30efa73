"""The guards of a partition: a producer's first batch waits until the coordinator knows of its transaction. Pure.

A transaction that the coordinator does not know would never get a marker, and would hold up the last stable offset for
ever. A late batch, which arrives after its transaction was aborted, would begin such a transaction. So a batch that
would open a transaction waits for a coordinator's answer (KIP-890, part 1). Until then it is held, under a guard:

    first batch ──▶ asked ── the coordinator knows the transaction ──▶ verified ── batch appended ──▶ over
                      ├───── it does not ──▶ refused
                      └───── a marker of the producer comes first ──▶ over, and the batch is refused

A guard ends with a marker, because the answer may be older than the marker. A request keeps its guard. So an answer
about an earlier transaction never admits a batch, even if the same producer has begun the next transaction meanwhile.

With transaction version 2, the marker of one transaction has the epoch of the next one. A batch of the next transaction
may wait while that marker is written, because the coordinator adds its partition only afterwards. So a guard of version
2 outlives a marker with the guard's epoch. The marker of the guard's own transaction has a larger epoch.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from minibroker.wire.codes import ErrorCode


@dataclass(slots=True, eq=False)
class Guard:
    """One question to the coordinator about a producer's transaction."""

    transactional_id: str
    producer_epoch: int
    lowest_sequence: int
    """The smallest sequence of the batches that were held. A later batch must not be appended before that one."""
    is_add: bool = False
    """Whether the question adds the partition to the transaction, as with transaction version 2."""
    code: ErrorCode | None = None
    """The coordinator's answer; None while there is none."""
    is_over: bool = False
    """Whether a batch or a marker of the producer was appended since."""


class Guards:
    """The guards of one partition, by producer. A partition without transactions has none."""

    def __init__(self, wake: Callable[[Hashable], None]) -> None:
        self._wake = wake
        self._guards: dict[int, list[Guard]] = {}

    def find(self, producer_id: int, transactional_id: str, producer_epoch: int) -> Guard | None:
        """The guard of a producer in an epoch, if there is one."""
        for guard in self._guards.get(producer_id, ()):
            if guard.producer_epoch == producer_epoch and guard.transactional_id == transactional_id:
                return guard
        return None

    def add(self, producer_id: int, guard: Guard) -> None:
        """Add a guard, because the coordinator is asked."""
        self._guards.setdefault(producer_id, []).append(guard)

    def remove(self, producer_id: int, guard: Guard) -> None:
        """Remove a guard, because the coordinator has refused it. The next batch asks again."""
        left = [it for it in self._guards.pop(producer_id, ()) if it is not guard]
        if left:
            self._guards[producer_id] = left

    def answer(self, guard: Guard, code: ErrorCode) -> None:
        """The coordinator has answered."""
        guard.code = code
        self._wake(guard)

    def end(self, producer_id: int) -> None:
        """A batch of a producer was appended."""
        if self._guards:
            for guard in self._guards.pop(producer_id, ()):
                guard.is_over = True
                self._wake(guard)

    def on_marker(self, producer_id: int, epoch: int) -> None:
        """A marker of a producer was appended. It ends all guards but those that must be of a later transaction."""
        later = [it for it in self._guards.get(producer_id, ()) if it.is_add and it.producer_epoch >= epoch]
        for guard in self._guards.pop(producer_id, ()):
            if guard not in later:
                guard.is_over = True
                self._wake(guard)
        if later:
            self._guards[producer_id] = later

    def end_all(self) -> None:
        """The log was truncated, so nothing is known about its producers."""
        for producer_id in list(self._guards):
            self.end(producer_id)

    def __len__(self) -> int:
        return sum(map(len, self._guards.values()))
