"""The language of the tables: typed Python classes that read like Kafka's message definitions. A pure module.

    class PartitionProduceData(Struct):
        index: int = int32(about="the partition")
        records: Records | None = schema.records(nullable="0+")

Each line of a table is a field in the order of the bytes. What may be said of one:

- `versions`: those that have the field; all of them if nothing is said
- `nullable`: those in which it may be null
- `tag`: it is optional and stands, under this number, behind the others (`tagged`: only in these versions)
- `default`: what it holds if nothing is given or the version lacks it; a field without a default must be given
- `ignorable`: a version that lacks the field may drop its value; otherwise writing a value other than the default fails
- `about`: what a reader should know

A message says its key, its versions, and from which version on it is *flexible*: lengths are varints, and each struct
ends with tagged fields, so that old readers can skip what they do not know (KIP-482). The structs inside a message
take over its versions.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Self, TypedDict, TypeVar, Unpack, cast, dataclass_transform

from minibroker.log.interfaces import FileSlice
from minibroker.wire import compiling
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.fields import NEVER, REQUIRED, Field, Schema, parse_versions

# A message is written as parts: bytes in memory, and slices of files that are not read until they are sent.
Part = bytes | bytearray | memoryview | FileSlice
Records = bytes | bytearray | memoryview | FileSlice

DEFAULTS: Final = "a struct of defaults"  # the default of a field that is a struct


# Fields -------------------------------------------------------------------------------------------------------------


class Said(TypedDict, total=False):
    """What may be said of a field."""

    versions: str
    nullable: str
    tag: int
    tagged: str
    default: object
    ignorable: bool
    about: str


def _field(kind: str, said: Said, *, struct: "type[Struct] | None" = None, is_array: bool = False) -> Any:
    versions = said.get("versions", "0+")
    return Field(
        name="",  # the class that the field is in knows it
        kind=kind,
        struct=struct,
        is_array=is_array,
        versions=parse_versions(versions),
        nullable=parse_versions(said.get("nullable", "none")),
        tagged=parse_versions(said.get("tagged", versions)) if "tag" in said else NEVER,
        tag=said.get("tag"),
        default=said.get("default", REQUIRED),
        ignorable=said.get("ignorable", False),
        about=said.get("about", ""),
    )


def boolean(**said: Unpack[Said]) -> Any:
    """One byte, 0 or 1."""
    return _field("bool", said)


def int8(**said: Unpack[Said]) -> Any:
    """One byte with a sign."""
    return _field("int8", said)


def int16(**said: Unpack[Said]) -> Any:
    """Two bytes with a sign, the highest first, as all numbers here."""
    return _field("int16", said)


def uint16(**said: Unpack[Said]) -> Any:
    """Two bytes without a sign, such as a port."""
    return _field("uint16", said)


def int32(**said: Unpack[Said]) -> Any:
    """Four bytes with a sign."""
    return _field("int32", said)


def uint32(**said: Unpack[Said]) -> Any:
    """Four bytes without a sign."""
    return _field("uint32", said)


def int64(**said: Unpack[Said]) -> Any:
    """Eight bytes with a sign."""
    return _field("int64", said)


def float64(**said: Unpack[Said]) -> Any:
    """Eight bytes, IEEE 754."""
    return _field("float64", said)


def uuid(**said: Unpack[Said]) -> Any:
    """Sixteen bytes; all zero means none."""
    return _field("uuid", said)


def string(**said: Unpack[Said]) -> Any:
    """A length and that many bytes of UTF-8, 32,767 at most."""
    return _field("string", said)


def bytes_(**said: Unpack[Said]) -> Any:
    """A length and that many bytes."""
    return _field("bytes", said)


def records(**said: Unpack[Said]) -> Any:
    """A length and a record set, which is never copied: read as a view, written as a part of its own."""
    return _field("records", said)


def array(element: "type[Struct] | Callable[..., Any]", **said: Unpack[Said]) -> Any:
    """A count and that many elements: structs, or what one of the functions above describes."""
    if isinstance(element, type):
        return _field("struct", said, struct=element, is_array=True)
    return _field(element().kind, said, is_array=True)


def struct(element: "type[Struct]", **said: Unpack[Said]) -> Any:
    """One struct in place. Its default, unless it is null, is a struct of defaults."""
    if said.get("default") is DEFAULTS:
        said["default"] = _unchangeable(element)
    return _field("struct", said, struct=element)


# Structs ------------------------------------------------------------------------------------------------------------


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        uint16,
        int32,
        uint32,
        int64,
        float64,
        uuid,
        string,
        bytes_,
        records,
        array,
        struct,
    ),
)
class StructType(type):
    """Makes a class from a table: its fields become slots, and what was said of them its schema."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        key: int | None = None,
        versions: str | None = None,
        flexible: str = "none",
    ) -> "StructType":
        """Take the fields out of the class's body."""
        fields = tuple(value._replace(name=field) for field, value in namespace.items() if isinstance(value, Field))
        for field in fields:
            del namespace[field.name]
        namespace["__slots__"] = tuple(field.name for field in fields)
        cls: Any = super().__new__(mcls, name, bases, namespace)
        cls.schema = Schema(name, fields, key)
        cls._decoders = compiling.decoders(cls)
        cls._encoders = compiling.encoders(cls)
        if versions is not None:
            _hand_down(cls, versions, flexible)
        return cls  # type: ignore[no-any-return]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_said: Any) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=StructType):
    """Fields in a fixed order. Made with keywords, compared by value, shown with names."""

    schema: ClassVar[Schema]
    _decoders: ClassVar[compiling.Compiled]
    _encoders: ClassVar[compiling.Compiled]

    def __init__(self, **values: Any) -> None:
        # The class gets a constructor of its own when the first object is made: importing the tables stays cheap.
        cls: Any = type(self)
        cls.__init__ = compiling.constructor(cls)
        cls.__init__(self, **values)

    @classmethod
    def decode(cls, buffer: memoryview, position: int, version: int) -> tuple[Self, int]:
        """Read one at `position`; return it and the position behind it. What is not one is a MalformedMessage."""
        found: tuple[Self, int] = cls._decoders[version](buffer, position)
        return found

    def encode(self, version: int) -> bytes:
        """Write all of it into one piece of memory, record sets included."""
        return b"".join(part.read() if isinstance(part, FileSlice) else part for part in self.parts(version))

    def parts(self, version: int, out: bytearray | None = None) -> list[Part]:
        """Write it as parts, each record set one of its own; the first part continues `out` if that is given."""
        parts: list[Part] = self._encoders[version](self, bytearray() if out is None else out)
        return parts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.schema is not other.schema:
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.schema.fields)

    def __repr__(self) -> str:
        values = (f"{field.name}={getattr(self, field.name)!r}" for field in self.schema.fields)
        return f"{self.schema.name}({', '.join(values)})"


class Message(Struct):
    """A struct that stands alone: `class ProduceRequest(Request, key=0, versions="3-12", flexible="9+")`."""


class Request(Message):
    """What a client sends."""


class Response(Message):
    """What a broker answers; its key and its versions are those of the request."""


S = TypeVar("S", bound=Struct)


def decode_whole(cls: "type[S]", buffer: memoryview, position: int, version: int) -> "S":
    """Read a message that must end where the buffer ends."""
    message, end = cls.decode(buffer, position, version)
    if end != len(buffer):
        raise MalformedMessage(f"{cls.__name__} v{version} ends at {end}, {len(buffer) - end} bytes before the end")
    return message


def codes_in(answer: Struct) -> Iterator[int]:
    """All error codes of an answer, wherever they are in it."""
    for field in answer.schema.fields:
        value = getattr(answer, field.name)
        if field.name == "error_code":
            yield value
        for it in value if isinstance(value, list) else ():
            if isinstance(it, Struct):
                yield from codes_in(it)


def _hand_down(cls: "type[Struct]", versions: str, flexible: str) -> None:
    """Give a message's versions to the structs inside it. One struct may serve two messages that agree."""
    schema = cls.schema
    if schema.versions is not None:
        same = (repr(schema.versions), repr(schema.flexible)) == (versions, flexible)
        assert same, f"{cls.__name__} is in messages of different versions: make it two structs"
    schema.versions = parse_versions(versions)
    schema.flexible = parse_versions(flexible)
    for field in schema.fields:
        if field.struct is not None:
            _hand_down(field.struct, versions, flexible)


def _unchangeable(cls: "type[Struct]") -> "Struct":
    """A struct of defaults that all messages share, so it must stay as it is."""

    def refuse(_self: object, name: str, value: object) -> None:
        raise AttributeError(f"{name}={value!r}: this {cls.__name__} is the default of many messages: make a new one")

    # A subclass that differs in nothing but this; it is made by `type` itself, because it is no table.
    unchangeable = type.__new__(StructType, cls.__name__, (cls,), {"__slots__": (), "__setattr__": refuse})
    shared: Struct = object.__new__(cast("type[Struct]", unchangeable))
    for field in cls.schema.fields:
        object.__setattr__(shared, field.name, field.default)
    return shared
