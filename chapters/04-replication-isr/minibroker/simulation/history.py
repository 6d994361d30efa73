"""What clients did and saw, and when. A pure module.

Every record that is ever sent has a value of its own: its producer, and a number that grows. So whoever reads one knows
who sent it, whether it was acked, and what was sent before. The history is all that the checker knows: it does not look
into nodes, so it holds for any system that claims to be a log.
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
    """What a producer was promised: with acks=all that an ack lasts, with idempotence that it is written once."""

    is_durable: bool = True
    is_idempotent: bool = True


class Invoked(NamedTuple):
    """A producer begins to send a value. It may send it again and again: this is the first time."""

    at_ms: int
    value: Value


class Acked(NamedTuple):
    """It is told that the value is at this offset."""

    at_ms: int
    value: Value
    offset: int


class Failed(NamedTuple):
    """It is told that the value was refused, and gives up."""

    at_ms: int
    value: Value


class Unknown(NamedTuple):
    """It gives up without an answer: the value may be there or not."""

    at_ms: int
    value: Value


class Read(NamedTuple):
    """A consumer is given a value at an offset."""

    at_ms: int
    consumer: str
    offset: int
    value: Value


Event = Invoked | Acked | Failed | Unknown | Read


class History:
    """All events in their order; `listener` hears each as it comes, and may raise."""

    def __init__(self, listener: Callable[[Event], None]) -> None:
        self._listener = listener
        self.acks = 0

    def record(self, event: Event) -> None:
        """Something happened to a client."""
        if isinstance(event, Acked):
            self.acks += 1
        self._listener(event)
