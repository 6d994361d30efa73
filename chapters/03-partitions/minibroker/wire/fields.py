"""What the tables say of a field and of a message: type, versions, default. A pure module.

The compiler, the inspector and the pages of the documentation all read the tables through these classes.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from minibroker.wire.schema import Struct

# Kafka's names of the types whose size never changes, and what `struct` calls them.
FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}

NEWEST = 2**15 - 1  # a version is an int16


class Versions:
    """A range of versions, both ends included, written as in Kafka's definitions: `3`, `3-12`, `9+` or `none`."""

    __slots__ = ("first", "last")

    def __init__(self, *, first: int, last: int) -> None:
        self.first = first
        self.last = last

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __repr__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == NEWEST:
            return f"{self.first}+"
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@lru_cache
def parse_versions(text: str) -> Versions:
    """Read a range of versions."""
    if text == "none":
        return Versions(first=0, last=-1)
    if text.endswith("+"):
        return Versions(first=int(text[:-1]), last=NEWEST)
    first, _dash, last = text.partition("-")
    return Versions(first=int(first), last=int(last or first))


NEVER = parse_versions("none")


class _Required:
    """Stands for the default of a field that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


class Field(NamedTuple):
    """One field of a struct, as its line in the table says."""

    name: str
    kind: str  # Kafka's name of the type; of an array that of its elements
    struct: "type[Struct] | None"  # where the kind is "struct"
    is_array: bool
    versions: Versions  # that have the field
    nullable: Versions  # in which it may be null
    tagged: Versions  # in which it is optional, behind the others, under its tag
    tag: int | None
    default: object  # what the field holds where a version lacks it; an array's is ()
    ignorable: bool  # whether a version that lacks the field may drop its value silently
    about: str

    @property
    def type_text(self) -> str:
        """The type as Kafka's definitions write it: `int32`, `[]string`, `[]TopicProduceData`."""
        element = self.struct.__name__ if self.struct else self.kind
        return f"[]{element}" if self.is_array else element

    @property
    def fixed_format(self) -> str | None:
        """The format of a value whose size never changes."""
        return None if self.is_array else FIXED_FORMATS.get(self.kind)


class Schema:
    """What the tables say of a struct: its fields and, handed down from the message it is in, its versions."""

    __slots__ = ("fields", "flexible", "key", "name", "versions")

    def __init__(self, name: str, fields: tuple[Field, ...], key: int | None) -> None:
        self.name = name
        self.fields = fields
        self.key = key
        self.versions: Versions | None = None
        self.flexible: Versions | None = None

    def is_flexible(self, version: int) -> bool:
        """Whether lengths are varints and every struct ends with tagged fields."""
        return self.flexible is not None and version in self.flexible

    def fields_in(self, version: int) -> list[Field]:
        """The fields that a version has in fixed order, without the tagged ones."""
        return [field for field in self.fields if version in field.versions and version not in field.tagged]

    def tagged_in(self, version: int) -> list[Field]:
        """The fields that a version has under a tag, by tag: so they are written."""
        tagged = [field for field in self.fields if version in field.versions and version in field.tagged]
        return sorted(tagged, key=lambda field: field.tag or 0)
