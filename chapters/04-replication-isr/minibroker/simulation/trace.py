"""What happened in a run, in order. A pure module.

Most runs are never read, so a trace keeps its entries only on request, and makes lines of text only when they are read.
A seed always has the same trace, so a failure can be run again and examined where it went wrong.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from minibroker.simulation.scheduler import Scheduler

# The kinds of a `Happened`; the diagram has a shape for each.
KILLED = "killed"
STARTED = "started"
PAUSED = "paused"
RESUMED = "resumed"
BAND = "band"  # the node's role from now on, such as "leads, epoch 3"; an empty text ends it
MARK = "mark"  # a value that changed: "high watermark 7"
NOTE = "note"


class Sent(NamedTuple):
    """A message left a node."""

    at_ms: int
    number: int
    source: str
    target: str
    message: object


class Arrived(NamedTuple):
    """A message has arrived."""

    at_ms: int
    number: int


class Lost(NamedTuple):
    """A message is lost."""

    at_ms: int
    number: int
    why: str


class Happened(NamedTuple):
    """An event at one node, other than a message."""

    at_ms: int
    node: str
    what: str
    text: str


Entry = Sent | Arrived | Lost | Happened


class Trace:
    """The entries of a run. If a text is costly to make, the caller looks at `is_kept` first."""

    def __init__(self, scheduler: Scheduler, *, is_kept: bool) -> None:
        self._scheduler = scheduler
        self.is_kept = is_kept
        self.entries: list[Entry] = []
        self._sent = 0

    def sent(self, source: str, target: str, message: object) -> int:
        """A message is sent; return its number. The message must not change, because its text is made later."""
        self._sent += 1
        if self.is_kept:
            self.entries.append(Sent(self._scheduler.now_ms, self._sent, source, target, message))
        return self._sent

    def arrived(self, number: int) -> None:
        """A message arrives."""
        if self.is_kept:
            self.entries.append(Arrived(self._scheduler.now_ms, number))

    def lost(self, number: int, why: str) -> None:
        """A message is lost."""
        if self.is_kept:
            self.entries.append(Lost(self._scheduler.now_ms, number, why))

    def happened(self, node: str, what: str, text: str = "") -> None:
        """Add an event at a node, other than a message."""
        if self.is_kept:
            self.entries.append(Happened(self._scheduler.now_ms, node, what, text))


def lines(entries: Sequence[Entry]) -> Iterator[str]:
    """One readable line for each entry."""
    sent = {entry.number: entry for entry in entries if isinstance(entry, Sent)}
    for entry in entries:
        yield f"{entry.at_ms / 1000:9.3f} s  {_described(entry, sent)}"


def digest(entries: Sequence[Entry]) -> str:
    """A hash of a whole run: two runs with the same hash did the same."""
    summed = sha256()
    for line in lines(entries):
        summed.update(line.encode())
        summed.update(b"\n")
    return summed.hexdigest()


def _described(entry: Entry, sent: dict[int, Sent]) -> str:
    match entry:
        case Sent(_, number, source, target, message):
            return f"{source:>10} → {target:<10} {message}  #{number}"
        case Arrived(_, number):
            return f"{_ends(sent.get(number), '⇢')} #{number} arrives"
        case Lost(_, number, why):
            return f"{_ends(sent.get(number), '✕')} #{number} is lost: {why}"
        case Happened(_, node, what, text):
            return f"{node:>10}   {what}{': ' if text else ''}{text}"


def _ends(sent: Sent | None, sign: str) -> str:
    # If a message was sent before the first entry, only its number is known.
    return f"{sent.source:>10} {sign} {sent.target:<10}" if sent else f"{'':>10} {sign} {'':<10}"
