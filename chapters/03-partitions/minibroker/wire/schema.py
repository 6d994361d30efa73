"""The language of the tables: typed Python classes that read like Kafka's message definitions. A pure module.

    class PartitionProduceData(Struct):
        index: int = int32(about="the partition")
        records: Records | None = schema.records(nullable="0+")

Each line of a table is a field, in the order of the bytes. Its properties are:

- `versions`: the versions that have the field; all if left out
- `nullable`: the versions in which it may be null
- `tag`: the field is optional and is encoded after the others, under this number
- `tagged`: the versions in which the field is tagged; all that have the field if left out
- `default`: its value if none is given, or if the version lacks the field; a field without a default must be given
- `ignorable`: a version that lacks the field drops its value; otherwise a value other than the default is refused
- `about`: what the field means

A message has an API key, its versions, and the first version that is *flexible*. In a flexible version lengths are
varints, and each struct ends with tagged fields, so that old readers can skip unknown ones (KIP-482). The structs
inside a message have the message's versions.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, Final, Self, TypedDict, TypeVar, Unpack, cast, dataclass_transform

from minibroker.log.interfaces import FileSlice
from minibroker.wire import compiling
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.fields import NEVER, REQUIRED, Field, Schema, parse_versions

# A message is encoded as parts: bytes in memory, and slices of files that are not read until they are sent.
Part = bytes | bytearray | memoryview | FileSlice
Records = bytes | bytearray | memoryview | FileSlice

DEFAULTS: Final = "a struct of defaults"  # the default of a field that is a struct


# Fields -------------------------------------------------------------------------------------------------------------


class FieldProperties(TypedDict, total=False):
    """The properties that a line of a table may give."""

    versions: str
    nullable: str
    tag: int
    tagged: str
    default: object
    ignorable: bool
    about: str


def _field(
    kind: str, properties: FieldProperties, *, struct: "type[Struct] | None" = None, is_array: bool = False
) -> Any:
    versions = properties.get("versions", "0+")
    return Field(
        name="",  # set by the class that the field is in
        kind=kind,
        struct=struct,
        is_array=is_array,
        versions=parse_versions(versions),
        nullable=parse_versions(properties.get("nullable", "none")),
        tagged=parse_versions(properties.get("tagged", versions)) if "tag" in properties else NEVER,
        tag=properties.get("tag"),
        default=properties.get("default", REQUIRED),
        ignorable=properties.get("ignorable", False),
        about=properties.get("about", ""),
    )


def boolean(**properties: Unpack[FieldProperties]) -> Any:
    """One byte, 0 or 1."""
    return _field("bool", properties)


def int8(**properties: Unpack[FieldProperties]) -> Any:
    """One byte with a sign."""
    return _field("int8", properties)


def int16(**properties: Unpack[FieldProperties]) -> Any:
    """Two bytes with a sign. All numbers are big-endian."""
    return _field("int16", properties)


def uint16(**properties: Unpack[FieldProperties]) -> Any:
    """Two bytes without a sign, such as a port."""
    return _field("uint16", properties)


def int32(**properties: Unpack[FieldProperties]) -> Any:
    """Four bytes with a sign."""
    return _field("int32", properties)


def uint32(**properties: Unpack[FieldProperties]) -> Any:
    """Four bytes without a sign."""
    return _field("uint32", properties)


def int64(**properties: Unpack[FieldProperties]) -> Any:
    """Eight bytes with a sign."""
    return _field("int64", properties)


def float64(**properties: Unpack[FieldProperties]) -> Any:
    """Eight bytes, IEEE 754."""
    return _field("float64", properties)


def uuid(**properties: Unpack[FieldProperties]) -> Any:
    """Sixteen bytes; all zero means none."""
    return _field("uuid", properties)


def string(**properties: Unpack[FieldProperties]) -> Any:
    """A length and that many bytes of UTF-8, 32,767 at most."""
    return _field("string", properties)


def bytes_(**properties: Unpack[FieldProperties]) -> Any:
    """A length and that many bytes."""
    return _field("bytes", properties)


def records(**properties: Unpack[FieldProperties]) -> Any:
    """A length and a record set, which is decoded as a view and encoded as a separate part, so it is never copied."""
    return _field("records", properties)


def array(element: "type[Struct] | Callable[..., Any]", **properties: Unpack[FieldProperties]) -> Any:
    """A count and that many elements: structs, or values of one of the types above."""
    if isinstance(element, type):
        return _field("struct", properties, struct=element, is_array=True)
    return _field(element().kind, properties, is_array=True)


def struct(element: "type[Struct]", **properties: Unpack[FieldProperties]) -> Any:
    """One struct. Its default is null or a struct of defaults."""
    if properties.get("default") is DEFAULTS:
        properties["default"] = _immutable_default(element)
    return _field("struct", properties, struct=element)


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
    """Makes a class from a table: the fields become slots, and their properties become the schema."""

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
        """Make the class. Only a message gives `versions`; its structs get the same versions."""
        fields = tuple(value._replace(name=field) for field, value in namespace.items() if isinstance(value, Field))
        for field in fields:
            del namespace[field.name]
        namespace["__slots__"] = tuple(field.name for field in fields)
        cls: Any = super().__new__(mcls, name, bases, namespace)
        cls.schema = Schema(name, fields, key)
        cls._decoders = compiling.decoders(cls)
        cls._counting_decoders = compiling.counting_decoders(cls)
        cls._encoders = compiling.encoders(cls)
        if versions is not None:
            _set_versions(cls, versions, flexible)
        return cls  # type: ignore[no-any-return]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_properties: Any) -> None:
        super().__init__(name, bases, namespace)


class Struct(metaclass=StructType):
    """Fields in a fixed order. A struct is constructed with keywords and compared by value."""

    schema: ClassVar[Schema]
    _decoders: ClassVar[compiling.Compiled]
    _counting_decoders: ClassVar[compiling.Compiled]
    _encoders: ClassVar[compiling.Compiled]

    def __init__(self, **values: Any) -> None:
        # The constructor is compiled when the first object is made, so that importing the tables stays cheap.
        cls: Any = type(self)
        cls.__init__ = compiling.constructor(cls)
        cls.__init__(self, **values)

    def __copy__(self) -> Self:
        # Compiled at its first use, too. Without it, `copy.copy` would take a struct apart by the names of its fields.
        cls: Any = type(self)
        cls.__copy__ = compiling.copier(cls)
        made: Self = cls.__copy__(self)
        return made

    @classmethod
    def decode(cls, buffer: memoryview, position: int, version: int) -> tuple[Self, int]:
        """Decode a struct at `position`; return it and the position after it. Invalid bytes raise MalformedMessage."""
        found: tuple[Self, int] = cls._decoders[version](buffer, position)
        return found

    @classmethod
    def decode_at_most(cls, buffer: memoryview, position: int, version: int, *, elements_max: int) -> tuple[Self, int]:
        """Like `decode`. More than `elements_max` elements in all arrays together raise TooManyElements."""
        # Each element has at least one byte, so the elements of a short message need not be counted.
        if len(buffer) <= elements_max:
            found: tuple[Self, int] = cls._decoders[version](buffer, position)
        else:
            found = cls._counting_decoders[version](buffer, position, elements_max)
        return found

    def encode(self, version: int) -> bytes:
        """Encode the struct into one bytes object, record sets included."""
        return b"".join(part.read() if isinstance(part, FileSlice) else part for part in self.parts(version))

    def parts(self, version: int, out: bytearray | None = None) -> list[Part]:
        """Encode the struct as parts; each record set is a separate part. The first part is appended to `out`."""
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
    """A request or a response: `class ProduceRequest(Request, key=0, versions="3-12", flexible="9+")`."""


class Request(Message):
    """A message from a client to a broker."""


class Response(Message):
    """The answer to a request, with the same key and versions."""


S = TypeVar("S", bound=Struct)


def decode_whole(cls: "type[S]", buffer: memoryview, position: int, version: int) -> "S":
    """Decode a message that must end where the buffer ends."""
    message, end = cls.decode(buffer, position, version)
    if end != len(buffer):
        raise MalformedMessage(
            f"{cls.__name__} v{version} ends at {end}, {len(buffer) - end} bytes before the end of the frame"
        )
    return message


_CODES = ("error_code", "partition_error_code")


def codes_in(answer: Struct) -> Iterator[int]:
    """All error codes of an answer, including those of nested structs."""
    for name, is_code in _places_of_codes(type(answer)):
        value = getattr(answer, name)
        if is_code:
            yield value
        elif isinstance(value, list):
            for it in value:
                yield from codes_in(it)


@cache
def _places_of_codes(cls: "type[Struct]") -> tuple[tuple[str, bool], ...]:
    """The fields of a struct that are codes, and those with structs, in which there may be codes."""
    fields = [it for it in cls.schema.fields if it.name in _CODES or it.struct is not None]
    return tuple((it.name, it.name in _CODES) for it in fields)


def _set_versions(cls: "type[Struct]", versions: str, flexible: str) -> None:
    """Give a message's versions to the structs in it. Messages may share a struct if their versions are equal."""
    schema = cls.schema
    if schema.versions is not None:
        same = (repr(schema.versions), repr(schema.flexible)) == (versions, flexible)
        assert same, f"{cls.__name__} is in messages of different versions: make it two structs"
    schema.versions = parse_versions(versions)
    schema.flexible = parse_versions(flexible)
    for field in schema.fields:
        if field.struct is not None:
            _set_versions(field.struct, versions, flexible)


def _immutable_default(cls: "type[Struct]") -> "Struct":
    """A struct of defaults. It is immutable, because all messages share it."""

    def refuse(_self: object, name: str, value: object) -> None:
        raise AttributeError(f"{name}={value!r}: this {cls.__name__} is the default of many messages: make a new one")

    # The subclass is made by `type` itself, because StructType would take it for a table.
    immutable = type.__new__(StructType, cls.__name__, (cls,), {"__slots__": (), "__setattr__": refuse})
    shared: Struct = object.__new__(cast("type[Struct]", immutable))
    for field in cls.schema.fields:
        object.__setattr__(shared, field.name, field.default)
    return shared
