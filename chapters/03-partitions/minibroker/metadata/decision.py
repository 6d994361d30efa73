"""Commands, and how they become records. A pure module.

A command asks for a change, such as new topics. It is checked against an image. The decision is a list of records,
which are written all together or not at all, and a result for the caller. Deciding has no side effects and uses no
clock and no randomness. A command carries such inputs, for example the ids of new topics.

A chapter adds a command as a subclass of `Command`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from minibroker.metadata.errors import TooManyRecords
from minibroker.metadata.image import Image
from minibroker.metadata.records import MetadataRecord
from minibroker.wire.codes import ErrorCode

RECORDS_PER_COMMAND_MAX = 10_000

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


class Records:
    """The records of a command so far. Their number is limited; `reserve` checks the limit before records are made."""

    def __init__(self, count_max: int | None = RECORDS_PER_COMMAND_MAX) -> None:
        self._count_max = count_max
        self.list: list[MetadataRecord] = []

    def reserve(self, count: int) -> None:
        """Raise TooManyRecords if `count` more would exceed the limit."""
        if self._count_max is not None and len(self.list) + count > self._count_max:
            raise TooManyRecords(
                f"the request needs {len(self.list) + count} metadata records, but at most {self._count_max} are"
                " allowed: split the request"
            )

    def add(self, records: Iterable[MetadataRecord]) -> None:
        """Add records."""
        self.list.extend(records)
        self.reserve(0)


@dataclass(frozen=True)
class Decision(Generic[R]):
    """The records to write, and the result to return after they are written."""

    records: list[MetadataRecord]
    result: R


@dataclass(frozen=True)
class Outcome(Generic[K]):
    """The result for one part of a command, such as one topic."""

    name: K
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Command(ABC, Generic[R]):
    """A request to change metadata."""

    validate_only: bool = False
    """Whether to check only, and write nothing."""
    records_max: int | None = RECORDS_PER_COMMAND_MAX
    """The largest number of records. A command that the cluster itself issues has no limit: its records must be one
    batch, and no client could split it."""

    @abstractmethod
    def run(self, image: Image, records: Records) -> R:
        """Add the records, and return the result. An error in one part of the command does not affect the others."""

    @abstractmethod
    def refuse(self, code: ErrorCode, message: str) -> R:
        """The result of a command that is refused as a whole: this error for each of its parts."""


def decide(image: Image, command: Command[R]) -> Decision[R]:
    """Check a command against an image, and return its records and its result."""
    records = Records(command.records_max)
    try:
        result = command.run(image, records)
    except TooManyRecords as error:
        return Decision([], command.refuse(ErrorCode.POLICY_VIOLATION, str(error)))
    return Decision([] if command.validate_only else records.list, result)


def duplicates(keys: Iterable[K]) -> set[K]:
    """The keys that occur more than once."""
    seen: set[K] = set()
    twice: set[K] = set()
    for key in keys:
        (twice if key in seen else seen).add(key)
    return twice
