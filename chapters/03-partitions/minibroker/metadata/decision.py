"""How a command becomes records: what all commands have in common. A pure module.

A command is a wish, such as to create topics. It is held against an image, and the decision is a list of records, to be
written all together or not at all, and a result for whoever asked. Deciding changes nothing and knows no clock and no
chance: what a command needs of either, such as the ids of new topics, it brings along.

A chapter that brings a new command writes a class; nothing here changes.
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
    """The records that a command has come to so far. There is a limit, and it holds before they are made."""

    def __init__(self, count_max: int | None = RECORDS_PER_COMMAND_MAX) -> None:
        self._count_max = count_max
        self.list: list[MetadataRecord] = []

    def reserve(self, count: int) -> None:
        """Demand that there is room for so many more."""
        if self._count_max is not None and len(self.list) + count > self._count_max:
            raise TooManyRecords(
                f"{len(self.list) + count} metadata records for one request, {self._count_max} are allowed: split it"
            )

    def add(self, records: Iterable[MetadataRecord]) -> None:
        """Take some more."""
        self.list.extend(records)
        self.reserve(0)


@dataclass(frozen=True)
class Decision(Generic[R]):
    """What is to be written, and what is to be answered once it is."""

    records: list[MetadataRecord]
    result: R


@dataclass(frozen=True)
class Outcome(Generic[K]):
    """What came of one part of a command: of the topic or partition of this name."""

    name: K
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class Command(ABC, Generic[R]):
    """A wish to change metadata."""

    validate_only: bool = False
    """Whether to say only what would happen."""
    records_max: int | None = RECORDS_PER_COMMAND_MAX
    """How many records it may come to. What the cluster does by itself has no limit: it must be one batch, and cannot
    be asked to come in smaller parts."""

    @abstractmethod
    def run(self, image: Image, records: Records) -> R:
        """Add what must be written, and return the result. Each part of a command fails by itself."""

    @abstractmethod
    def refuse(self, code: ErrorCode, message: str) -> R:
        """The result if nothing of it is done: for this reason, every part of it."""


def decide(image: Image, command: Command[R]) -> Decision[R]:
    """Hold a command against an image."""
    records = Records(command.records_max)
    try:
        result = command.run(image, records)
    except TooManyRecords as error:
        return Decision([], command.refuse(ErrorCode.POLICY_VIOLATION, str(error)))
    return Decision([] if command.validate_only else records.list, result)


def duplicates(keys: Iterable[K]) -> set[K]:
    """What is there more than once."""
    seen: set[K] = set()
    twice: set[K] = set()
    for key in keys:
        (twice if key in seen else seen).add(key)
    return twice
