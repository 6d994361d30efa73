"""Generates the source of an encoder: one function for one message in one version. A pure module.

The function appends to the bytearray `out`. It is flat, like a decoder, with nested loops, and one `pack` for a run of
fields of fixed size. A length that follows a run is packed together with it, if one byte is enough. In the source

- `o0` is the message, `o1` the struct inside it, and so on; `n` is the next length or count to encode;
- `parts` is the result of the function, usually `out` alone. A record set is never copied into `out`. It becomes a
  separate part, and a new `out` begins after it.
"""

from collections.abc import Iterator
from struct import error as struct_error
from typing import TYPE_CHECKING, Any

from minibroker.log.interfaces import FileSlice
from minibroker.log.varint import encode_unsigned_varint
from minibroker.wire.decoders import STRING_BYTES_MAX, has_records
from minibroker.wire.errors import WireError
from minibroker.wire.fields import FIXED_FORMATS, NEVER, REQUIRED, Field
from minibroker.wire.source import Source, packing, repeated
from minibroker.wire.uuids import UUID_SIZE

if TYPE_CHECKING:
    from minibroker.wire.schema import Struct

VALUE_SHOWN_MAX = 60
UNWRITABLE = (struct_error, AttributeError, TypeError, UnicodeEncodeError)


def encoder_source(cls: "type[Struct]", version: int) -> Source:
    """Generate `encode(message, out) -> parts`."""
    writer = _Encoder(version, flexible=cls.schema.is_flexible(version))
    source = writer.source
    source.names |= {
        "FileSlice": FileSlice,
        "UNWRITABLE": UNWRITABLE,
        "WireError": WireError,
        "long_string": _long_string,
        "long_varint": encode_unsigned_varint,
        "refuse": _refuse,
    }
    with source.block(f"def encode_{cls.__name__}_v{version}(o0, out):"):
        if has_records(cls):
            source.line("parts = [out]")
        with source.block("try:"):
            writer.struct(cls, depth=0)
            writer.flush()
        with source.block("except UNWRITABLE as error:"):
            source.line(f"refuse(o0, {version}, error)")
        source.line("return parts" if has_records(cls) else "return [out]")
    return source


class _Encoder:
    def __init__(self, version: int, *, flexible: bool) -> None:
        self.source = Source()
        self.version = version
        self.flexible = flexible
        # The name of the bytearray to append to. A tagged field has its own, because its length is written first.
        self.out = "out"
        self._run: list[tuple[str, str]] = []  # format and value of the fields that are not encoded yet

    # A run of fixed fields

    def fixed(self, formats: str, value: str) -> None:
        self._run.append((formats, value))

    def flush(self) -> None:
        """Encode all fields of the run with one call."""
        if self._run:
            self.source.line(f"{self.out} += {self.packed()}")
        self._run = []

    def packed(self) -> str:
        formats = "".join(formats for formats, _value in self._run)
        if set(formats) == {"x"}:
            return f'b"{chr(92)}0"' if formats == "x" else f"bytes({len(formats)})"
        pack = self.source.use(f"pack_{formats.replace('?', 'o')}", packing(formats).pack)
        return f"{pack}({', '.join(value for _formats, value in self._run if value)})"

    def length(self, *, of_string: bool = False, classic_format: str = "i") -> None:
        """Encode the length or count `n` as the last field of the run."""
        if not self.flexible:
            self.fixed(classic_format, "n")
            self.flush()
            return
        # A varint below 128 is one byte, which is packed with the run.
        before = f"{self.packed()} + " if self._run else ""
        self.fixed("B", "n")
        with self.source.block("if n < 128:"):
            if before:
                self.source.line(f"{self.out} += {self.packed()}")
            else:
                self.source.line(f"{self.out}.append(n)")
        with self.source.block("else:"):
            self.source.line(f"{self.out} += {before}{'long_string' if of_string else 'long_varint'}(n)")
        self._run = []

    # Structs

    def struct(self, cls: "type[Struct]", depth: int) -> None:
        this = f"o{depth}"
        schema = cls.schema
        for field in schema.fields:
            if self.version not in field.versions and not field.ignorable:
                self.refuse_dropped(cls, field, this)
        for field in schema.fields_in(self.version):
            self.value(field, f"{this}.{field.name}", depth)
        if self.flexible:
            tagged = schema.tagged_in(self.version)
            if tagged:
                self.tags(tagged, this, depth)
            else:
                self.fixed("x", "")

    def refuse_dropped(self, cls: "type[Struct]", field: Field, this: str) -> None:
        """Refuse a value that the version cannot carry. Dropping it could change the meaning of the request."""
        if field.default is REQUIRED:
            return
        with self.source.block(f"if {self.differs(field, f'{this}.{field.name}')}:"):
            value = f"{{{this}.{field.name}!r}}"
            self.source.line(f'raise WireError(f"{cls.__name__} v{self.version} cannot carry {field.name}={value}")')

    def differs(self, field: Field, value: str) -> str:
        """The source of a condition: the field does not have its default value."""
        if field.default is None:
            return f"{value} is not None"
        if field.is_array:
            return f"{value} is None or {value}" if field.nullable is not NEVER else value
        if field.struct is not None:
            # All messages share one default object. So for most of them the first comparison, by identity, is enough.
            default = self.source.use(f"no_{field.struct.__name__}", field.default)
            fields = field.struct.schema.fields
            if field.nullable is not NEVER or any(it.default is REQUIRED for it in fields):
                return f"{value} is not {default} and {value} != {default}"
            inner = " or ".join(self.differs(it, f"{value}.{it.name}") for it in fields)
            return f"{value} is not {default} and ({inner})"
        if field.kind == "bool":
            return f"not {value}" if field.default else value
        return f"{value} != {field.default!r}"

    def tags(self, tagged: list[Field], this: str, depth: int) -> None:
        """Encode the tagged fields that do not have their default value. Most messages have none."""
        self.flush()
        source, outside = self.source, self.out
        count, body, self.out = f"count{depth}", f"body{depth}", f"value{depth}"
        conditions = [self.differs(field, f"{this}.{field.name}") for field in tagged]
        with source.block(f"if {' or '.join(conditions)}:"):
            source.line(f"{count} = 0")
            source.line(f"{body} = bytearray()")
            for field, condition in zip(tagged, conditions, strict=True):
                with source.block(f"if {condition}:"):
                    source.line(f"{count} += 1")
                    source.line(f"{self.out} = bytearray()")
                    self.value(field, f"{this}.{field.name}", depth)
                    self.flush()
                    source.line(f"n = len({self.out})")
                    source.line(f"{body} += {encode_unsigned_varint(field.tag or 0)!r}")
                    source.line(f"{body} += bytes((n,)) if n < 128 else long_varint(n)")
                    source.line(f"{body} += {self.out}")
            source.line(f"{outside} += long_varint({count}) + {body}")
        self.out = outside
        with source.block("else:"):
            source.line(f"{self.out}.append(0)")

    # Values

    def value(self, field: Field, value: str, depth: int) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self.array(field, value, depth, nullable=nullable)
        elif field.struct is not None:
            null = 0 if self.version in field.tagged else 255
            self.inner(field.struct, value, depth, null=null if nullable else None)
        elif field.kind == "string":
            self.string(value, nullable=nullable)
        elif field.kind == "bytes":
            self.bytes(value, nullable=nullable)
        elif field.kind == "records":
            self.records(value, nullable=nullable)
        else:
            self.number(field, value)

    def number(self, field: Field, value: str) -> None:
        if field.kind == "uuid":
            # `struct` would pad or cut an id of another size.
            with self.source.block(f"if len({value}) != {UUID_SIZE}:"):
                self.source.line(f'raise TypeError(f"{field.name} has {{len({value})}} bytes instead of {UUID_SIZE}")')
        self.fixed(FIXED_FORMATS[field.kind], value)

    def counted(self, value: str, count: str, *, nullable: bool, before: str = "") -> None:
        """Put the length of a value into `n`: if flexible, the length plus 1, and 0 for null; otherwise -1 for null."""
        length = f"{count} + 1" if self.flexible else count
        if not nullable:
            if before:
                self.source.line(before)
            self.source.line(f"n = {length}")
            return
        with self.source.block(f"if {value} is None:"):
            self.source.line("n = 0" if self.flexible else "n = -1")
        with self.source.block("else:"):
            if before:
                self.source.line(before)
            self.source.line(f"n = {length}")

    def string(self, value: str, *, nullable: bool) -> None:
        self.counted(value, "len(s)", nullable=nullable, before=f"s = {value}.encode()")
        self.length(of_string=True, classic_format="h")
        self.append("s", nullable=nullable)

    def bytes(self, value: str, *, nullable: bool) -> None:
        self.counted(value, "len(s)", nullable=nullable, before=f"s = {value}")
        self.length()
        self.append("s", nullable=nullable)

    def append(self, value: str, *, nullable: bool) -> None:
        if not nullable:
            self.source.line(f"{self.out} += {value}")
            return
        with self.source.block("if n:" if self.flexible else "if n > 0:"):
            self.source.line(f"{self.out} += {value}")

    def records(self, value: str, *, nullable: bool) -> None:
        self.source.line(f"s = {value}")
        count = "(s.count if isinstance(s, FileSlice) else len(s))"
        self.counted("s", count, nullable=nullable)
        self.length()
        with self.source.block("if n > 1:" if self.flexible else "if n > 0:"):
            self.source.line("parts.append(s)")
            self.source.line("out = bytearray()")
            self.source.line("parts.append(out)")

    def inner(self, cls: "type[Struct]", value: str, depth: int, *, null: int | None) -> None:
        this = f"o{depth + 1}"
        self.source.line(f"{this} = {value}")
        if null is None:
            self.struct(cls, depth + 1)
            self.flush()
            return
        # One byte says whether a struct follows: 1, or -1 for null. The null of a tagged field is 0.
        self.flush()
        with self.source.block(f"if {this} is None:"):
            self.source.line(f"{self.out}.append({null})")
        with self.source.block("else:"):
            self.source.line(f"{self.out}.append(1)")
            self.struct(cls, depth + 1)
            self.flush()

    def array(self, field: Field, value: str, depth: int, *, nullable: bool) -> None:
        items = f"a{depth + 1}"
        self.source.line(f"{items} = {value}")
        self.counted(items, f"len({items})", nullable=nullable)
        self.length()
        if field.struct is None and field.kind in FIXED_FORMATS:
            formats = FIXED_FORMATS[field.kind]
            arrays = self.source.use(f"arrays_of_{formats.replace('?', 'o')}", repeated(formats))
            with self.source.block("if n > 1:" if self.flexible else "if n > 0:"):
                self.source.line(f"{self.out} += {arrays}[{'n - 1' if self.flexible else 'n'}].pack(*{items})")
            return
        element = f"o{depth + 1}"
        with self.source.block(f"for {element} in {items}{' or ()' if nullable else ''}:"):
            if field.struct is not None:
                self.struct(field.struct, depth + 1)
            else:
                self.value(field._replace(is_array=False, nullable=NEVER), element, depth + 1)
            self.flush()


# Called by the generated source in rare cases.


def _long_string(length: int) -> bytes:
    """Encode the length of a string as a varint of several bytes, and refuse a length above the limit."""
    if length - 1 > STRING_BYTES_MAX:
        raise TypeError(f"a string of {length - 1} bytes is too long: at most {STRING_BYTES_MAX} are allowed")
    return encode_unsigned_varint(length)


def _refuse(message: "Struct", version: int, error: Exception) -> None:
    """Raise an error that names the field at fault. The search is slow, so it is done only after an error."""
    name = type(message).__name__
    fault = next(_faults(message, version, name), str(error))
    raise WireError(f"{name} v{version} cannot be written: {fault}") from error


def _faults(this: "Struct", version: int, path: str) -> Iterator[str]:
    for field in this.schema.fields:
        if version in field.versions:
            yield from _value_faults(field, getattr(this, field.name), version, f"{path}.{field.name}")


def _value_faults(field: Field, value: Any, version: int, path: str) -> Iterator[str]:
    if value is None and version in field.nullable:
        return
    try:
        if field.is_array:
            element = field._replace(is_array=False, nullable=NEVER)
            for index, one in enumerate(value):
                yield from _value_faults(element, one, version, f"{path}[{index}]")
        elif field.struct is not None:
            yield from _faults(value, version, path)
        elif field.kind == "string":
            _long_string(len(value.encode()) + 1)
        elif field.kind in FIXED_FORMATS:
            packing(FIXED_FORMATS[field.kind]).pack(value)
    except UNWRITABLE as error:
        yield f"{path} = {repr(value)[:VALUE_SHOWN_MAX]}: {error}"
