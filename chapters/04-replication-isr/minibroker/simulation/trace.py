"""What happened in a run, in order. A pure module.

Most runs are never looked at, so a trace keeps nothing unless it is asked to, and what it keeps are the facts: lines of
text are made of them when somebody reads. That a seed has one trace is what makes a failure worth reading: it can be
run again, and stopped where it went wrong.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from minibroker.simulation.scheduler import Scheduler

# What a `Happened` may be; the diagram has a shape for each.
KILLED = "killed"
STARTED = "started"
PAUSED = "paused"
RESUMED = "resumed"
BAND = "band"  # from now on the node is this, until told otherwise: "leads, epoch 3"; empty text ends it
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
    """It has reached the other."""

    at_ms: int
    number: int


class Lost(NamedTuple):
    """It never will."""

    at_ms: int
    number: int
    why: str


class Happened(NamedTuple):
    """Something at one node."""

    at_ms: int
    node: str
    what: str
    text: str


Entry = Sent | Arrived | Lost | Happened


class Trace:
    """The entries of a run. Who has something costly to tell looks at `is_kept` first."""

    def __init__(self, scheduler: Scheduler, *, is_kept: bool) -> None:
        self._scheduler = scheduler
        self.is_kept = is_kept
        self.entries: list[Entry] = []
        self._sent = 0

    def sent(self, source: str, target: str, message: object) -> int:
        """A message leaves; return its number. It must not change afterwards: it is spelled only when it is read."""
        self._sent += 1
        if self.is_kept:
            self.entries.append(Sent(self._scheduler.now_ms, self._sent, source, target, message))
        return self._sent

    def arrived(self, number: int) -> None:
        """A message is there."""
        if self.is_kept:
            self.entries.append(Arrived(self._scheduler.now_ms, number))

    def lost(self, number: int, why: str) -> None:
        """A message will not be there."""
        if self.is_kept:
            self.entries.append(Lost(self._scheduler.now_ms, number, why))

    def happened(self, node: str, what: str, text: str = "") -> None:
        """Something else."""
        if self.is_kept:
            self.entries.append(Happened(self._scheduler.now_ms, node, what, text))


def lines(entries: Sequence[Entry]) -> Iterator[str]:
    """One line for each entry, as people read it."""
    sent = {entry.number: entry for entry in entries if isinstance(entry, Sent)}
    for entry in entries:
        yield f"{entry.at_ms / 1000:9.3f} s  {_told(entry, sent)}"


def digest(entries: Sequence[Entry]) -> str:
    """A number for a whole run: two runs with the same one went the same way."""
    summed = sha256()
    for line in lines(entries):
        summed.update(line.encode())
        summed.update(b"\n")
    return summed.hexdigest()


def _told(entry: Entry, sent: dict[int, Sent]) -> str:
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
    # What was sent before the first entry is known by its number only.
    return f"{sent.source:>10} {sign} {sent.target:<10}" if sent else f"{'':>10} {sign} {'':<10}"
