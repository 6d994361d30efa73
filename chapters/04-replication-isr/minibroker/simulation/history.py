"""What clients did and saw, and when. A pure module.

Every record has a unique value: its producer, and a number that grows. So the value of a record tells which producer
sent it, whether it was acked, and what was sent before. The checker knows only the history and does not look into
nodes, so it can check any system that claims to be a log.
"""

from collections.abc import Callable
from typing import NamedTuple


class Value(NamedTuple):
    """The content of one record."""

    producer: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.sequence}"


class Promise(NamedTuple):
    """What a producer may rely on: with acks=all an acked record stays, with idempotence it is written once."""

    is_durable: bool = True
    is_idempotent: bool = True


class Invoked(NamedTuple):
    """A producer sends a value for the first time. Retries are not events."""

    at_ms: int
    value: Value


class Acked(NamedTuple):
    """The producer gets an acknowledgement with the offset of its value."""

    at_ms: int
    value: Value
    offset: int


class Failed(NamedTuple):
    """The producer gives up, because the value was refused."""

    at_ms: int
    value: Value


class Unknown(NamedTuple):
    """The producer gives up without an answer: the value may be in the log or not."""

    at_ms: int
    value: Value


class Read(NamedTuple):
    """A consumer reads a value at an offset."""

    at_ms: int
    consumer: str
    offset: int
    value: Value


Event = Invoked | Acked | Failed | Unknown | Read


class History:
    """Passes each event to `listener`, which may raise, and counts the acks."""

    def __init__(self, listener: Callable[[Event], None]) -> None:
        self._listener = listener
        self.acks = 0

    def record(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Acked):
            self.acks += 1
        self._listener(event)
