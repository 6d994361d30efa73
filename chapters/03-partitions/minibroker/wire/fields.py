"""The properties of a field and of a message: type, versions, default. A pure module.

The compiler, the inspector and the generator of the protocol pages all read the tables through these classes.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from minibroker.wire.schema import Struct

# Kafka's names of the types of fixed size, and their `struct` formats.
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
    """Parse a range of versions."""
    if text == "none":
        return Versions(first=0, last=-1)
    if text.endswith("+"):
        return Versions(first=int(text[:-1]), last=NEWEST)
    first, _dash, last = text.partition("-")
    return Versions(first=int(first), last=int(last or first))


NEVER = parse_versions("none")


class _Required:
    """Marks a field that has no default."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


class Field(NamedTuple):
    """One field of a struct, as its line in the table declares it."""

    name: str
    kind: str  # Kafka's name of the type; for an array, the type of its elements
    struct: "type[Struct] | None"  # the class of the struct, if the kind is "struct"
    is_array: bool
    versions: Versions  # the versions that have the field
    nullable: Versions  # the versions in which the field may be null
    tagged: Versions  # the versions in which the field is tagged: optional, and written after the others
    tag: int | None
    default: object  # the value where a version lacks the field; () for an array
    ignorable: bool  # whether a version that lacks the field may drop its value silently
    about: str

    @property
    def type_text(self) -> str:
        """The type as Kafka's definitions write it: `int32`, `[]string`, `[]TopicProduceData`."""
        element = self.struct.__name__ if self.struct else self.kind
        return f"[]{element}" if self.is_array else element

    @property
    def fixed_format(self) -> str | None:
        """The `struct` format of a value of fixed size, or None."""
        return None if self.is_array else FIXED_FORMATS.get(self.kind)


class Schema:
    """The fields of a struct, and its versions. A struct has the versions of the message that contains it."""

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
        """The untagged fields of a version, in the order in which they are encoded."""
        return [field for field in self.fields if version in field.versions and version not in field.tagged]

    def tagged_in(self, version: int) -> list[Field]:
        """The tagged fields of a version in the order of their tags, which is the order in which they are encoded."""
        tagged = [field for field in self.fields if version in field.versions and version in field.tagged]
        return sorted(tagged, key=lambda field: field.tag or 0)
