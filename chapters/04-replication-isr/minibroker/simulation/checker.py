"""Checks whether a correct log could have shown its clients what they saw. A pure module.

The numbers of these invariants are not those of the chapter's invariants; a table in the lesson compares the two.
Invariants 1 to 6 are about one log. They are checked here, at each event and again with the final log. Invariants 10
to 13 are about replicas. A world with replicas checks them and raises the same `Violation`.

    checked with each ack and read   2 one value per offset   3 producer order   4 no duplicate   5 real-time order
    checked with the final log       1 nothing acked is lost  6 nothing that was read is lost

The acks of a producer with acks=1 promise nothing and are not checked. But every record that a consumer has read is
checked, because the high watermark had passed it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from typing import Any

from minibroker.simulation.history import Acked, Event, Failed, Invoked, Promise, Read, Unknown, Value

LIVENESS = 0

INVARIANTS = {
    LIVENESS: "once all faults are healed, the cluster recovers",
    1: "no acked record is lost",
    2: "one value per offset",
    3: "a producer's records are in the order in which it sent them",
    4: "no duplicate with idempotence",
    5: "a record sent after an ack gets a larger offset",
    6: "a record that was read stays in the log",
    10: "one leader per epoch",
    11: "logs are equal below the high watermark",
    12: "the high watermark never goes back, and every in-sync replica has all records before it",
    13: "the in-sync replicas change only by compare-and-set, and only a replica that has caught up joins",
}


_STRONGEST = Promise()


class Violation(Exception):
    """An invariant is broken. The message has its number, its text, and the facts."""

    def __init__(self, invariant: int, facts: str) -> None:
        super().__init__(f"invariant {invariant} ({INVARIANTS[invariant]}) is broken: {facts}")
        self.invariant = invariant
        self.facts = facts


class Checker:
    """Checks every event of a history. A producer that is not in `promises` gets the strongest promises."""

    def __init__(self, promises: Mapping[str, Promise] | None = None) -> None:
        self._promises = {} if promises is None else promises
        self._values: dict[int, tuple[Value, str]] = {}  # by offset, each with the event that showed it
        self._offsets: dict[Value, int] = {}  # by value, for idempotent producers only
        self._orders: dict[str, list[tuple[int, int]]] = {}  # by idempotent producer: offsets and sequence numbers
        self._floors: dict[Value, tuple[int, str]] = {}  # the largest acked offset when the value was first sent
        self._acked: dict[int, tuple[Value, int]] = {}  # durable acks by offset, with their time
        self._read: dict[int, tuple[Value, str]] = {}
        self._highest: tuple[int, str] = (-1, "")

    def on(self, event: Event) -> None:
        """Check one more event; raise Violation if no correct log could have caused it."""
        _STEPS[type(event)](self, event)

    def _promise(self, value: Value) -> Promise:
        return self._promises.get(value.producer, _STRONGEST)

    # Events -----------------------------------------------------------------------------------------------------------

    def on_invoked(self, event: Invoked) -> None:
        """Remember the largest acked offset: this value must get a larger one."""
        self._floors[event.value] = self._highest

    def on_acked(self, event: Acked) -> None:
        """Check the offset of an acked value, and remember that the value must stay there."""
        if not self._promise(event.value).is_durable:
            return
        said = f"acked at {event.at_ms} ms"
        self._place(event.offset, event.value, said)
        self._acked[event.offset] = (event.value, event.at_ms)
        if event.offset > self._highest[0]:
            self._highest = (event.offset, f"{event.value} was acked at {event.at_ms} ms with offset {event.offset}")

    def on_read(self, event: Read) -> None:
        """Check the offset of a value that was read, and remember that the value must stay there."""
        said = f"read by {event.consumer} at {event.at_ms} ms"
        self._place(event.offset, event.value, said)
        self._read.setdefault(event.offset, (event.value, said))

    def on_given_up(self, event: Failed | Unknown) -> None:
        """Nothing to check: a retry may have been refused after the first attempt was written."""

    # Values at offsets ------------------------------------------------------------------------------------------------

    def _place(self, offset: int, value: Value, said: str) -> None:
        """Check a value at an offset against everything that was seen before."""
        # An offset that is known must have the same value (invariant 2), and then there is nothing more to check.
        known = self._values.get(offset)
        if known is not None:
            if known[0] != value:
                raise Violation(2, f"offset {offset} has two values: {known[0]}, {known[1]}, and {value}, {said}")
            return
        # Remember a new offset. An idempotent producer's value must be at no other offset, and in the producer's order.
        self._values[offset] = (value, said)
        promise = self._promise(value)
        if promise.is_idempotent:
            self._check_once(offset, value, said)
            self._check_order(offset, value, said)
        # A durable value must be after every offset that was acked before the value was sent (invariant 5).
        if promise.is_durable:
            floor, why = self._floors.get(value, (-1, ""))
            if offset <= floor:
                raise Violation(5, f"{value} has offset {offset}, {said}, but {why} before {value} was sent")

    def _check_once(self, offset: int, value: Value, said: str) -> None:
        other = self._offsets.setdefault(value, offset)
        if other != offset:
            raise Violation(4, f"{value} is at offset {other}, {self._values[other][1]}, and at {offset}, {said}")

    def _check_order(self, offset: int, value: Value, said: str) -> None:
        order = self._orders.setdefault(value.producer, [])
        place = bisect_left(order, (offset, value.sequence))
        for other, sequence in order[max(place - 1, 0) : place + 1]:
            if (other < offset) != (sequence < value.sequence):
                facts = f"{value} is at offset {offset}, {said}, and {value.producer}/{sequence} at {other}"
                raise Violation(3, f"{facts}, {self._values[other][1]}")
        insort(order, (offset, value.sequence))

    # The end ----------------------------------------------------------------------------------------------------------

    def finish(self, log: Mapping[int, Value], *, log_start_offset: int = 0) -> None:
        """Check the final log, after healing. Records before its start were deleted and may be missing."""
        # Every value that was acked (invariant 1) or read (invariant 6) must still be at its offset.
        for offset, (value, at_ms) in sorted(self._acked.items()):
            if offset >= log_start_offset and log.get(offset) != value:
                raise Violation(1, f"{value} was acked at {at_ms} ms with offset {offset}; {_there(log, offset)}")
        for offset, (value, said) in sorted(self._read.items()):
            if offset >= log_start_offset and log.get(offset) != value:
                raise Violation(6, f"{value} was {said} at offset {offset}; {_there(log, offset)}")
        # Records that no client has seen must be in order, too: a producer may have died before its ack arrived.
        for offset in sorted(log):
            self._place(offset, log[offset], "in the final log")


def _there(log: Mapping[int, Value], offset: int) -> str:
    if offset in log:
        return f"the final log has {log[offset]} there"
    return f"the final log has nothing there, it ends at {max(log, default=-1) + 1}"


_STEPS: dict[type[Event], Callable[[Checker, Any], None]] = {
    Invoked: Checker.on_invoked,
    Acked: Checker.on_acked,
    Read: Checker.on_read,
    Failed: Checker.on_given_up,
    Unknown: Checker.on_given_up,
}
