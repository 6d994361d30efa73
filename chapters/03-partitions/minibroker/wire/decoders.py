"""Generates the source of a decoder: one function for one message in one version. A pure module.

The function is flat. A struct inside an array becomes a nested loop, not a call. A run of fields of fixed size is one
`unpack_from`, and the first byte of a length or a count belongs to the run before it. In the source

- `buffer` is the message, `size` its length, `p` the position of the next byte, `n` the last length or count;
- `o0` is the message, `o1` the struct inside it, and so on; `a1` is the list that collects the `o1`.

Bounds are checked late. A slice past the end is short and harmless, but it moves `p` past the end, where the next read
fails. If there is no next read, the comparison at the end of the function fails. Counts are checked at once, so that
no list grows beyond the elements that the remaining bytes can hold.

An object needs far more memory and time than the bytes of an element, so a server limits the elements of a request. A
second decoder counts them: `left` is the number of elements that may still follow. It is used only for a message with
more bytes than the limit. A shorter message cannot exceed the limit, because each element has at least one byte.
"""

from contextlib import AbstractContextManager, nullcontext
from struct import error as struct_error
from typing import TYPE_CHECKING

from minibroker.log.errors import InvalidVarint
from minibroker.log.varint import decode_unsigned_varint
from minibroker.wire.errors import MalformedMessage, TooManyElements
from minibroker.wire.fields import FIXED_FORMATS, NEVER, REQUIRED, Field
from minibroker.wire.source import Source, packing, repeated

if TYPE_CHECKING:
    from minibroker.wire.schema import Struct

STRING_BYTES_MAX = 0x7FFF  # even where the length is a varint, as in Kafka
UNREADABLE = (struct_error, IndexError, UnicodeDecodeError, InvalidVarint)


def decoder_source(cls: "type[Struct]", version: int) -> Source:
    """Generate `decode(buffer, p) -> (message, position after it)`."""
    return _source(cls, version, copied=not has_records(cls), counting=False)


def counting_decoder_source(cls: "type[Struct]", version: int) -> Source:
    """Generate `decode(buffer, p, left)`, which refuses more than `left` elements. It does not copy the message."""
    return _source(cls, version, copied=False, counting=True)


def _source(cls: "type[Struct]", version: int, *, copied: bool, counting: bool) -> Source:
    writer = _Decoder(version, flexible=cls.schema.is_flexible(version), copied=copied, counting=counting)
    source = writer.source
    source.names |= {
        "new": object.__new__,
        "MalformedMessage": MalformedMessage,
        "TooManyElements": TooManyElements,
        "UNREADABLE": UNREADABLE,
        "long_string": _long_string,
        "varint": decode_unsigned_varint,
        "skip_tags": _skip_tags,
    }
    left = ", left" * counting
    with source.block(f"def decode_{cls.__name__}_v{version}(buffer, p{left}):"):
        # Slices of bytes are cheaper than slices of a memoryview; only a record set must stay a view of the frame.
        if copied:
            source.line("buffer = bytes(buffer)")
        source.line("size = len(buffer)")
        with source.block("try:"):
            writer.struct(cls, depth=0)
            writer.flush()
        with source.block("except UNREADABLE as error:"):
            source.line(_refusal(cls, version, "{error}", cause=True))
        with source.block("if p > size:"):
            source.line(_refusal(cls, version, "a field ends past the last byte"))
        source.line("return o0, p")
    return source


def has_records(cls: "type[Struct]") -> bool:
    """Whether a struct, or a struct inside it, has a record set."""
    return any(
        field.kind == "records" or (field.struct is not None and has_records(field.struct))
        for field in cls.schema.fields
    )


def size_min(cls: "type[Struct]", version: int) -> int:
    """The smallest size of a struct in bytes. Counts are checked against it."""
    flexible = cls.schema.is_flexible(version)
    fields = (field_size_min(field, version, flexible=flexible) for field in cls.schema.fields_in(version))
    return sum(fields) + flexible  # a flexible struct ends with the count of its tagged fields, at least one byte


def field_size_min(field: Field, version: int, *, flexible: bool) -> int:
    """The smallest size of a field in bytes."""
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if version in field.nullable else size_min(field.struct, version)
    if field.fixed_format is not None:
        return packing(field.fixed_format).size
    return 1 if flexible else 2 if field.kind == "string" else 4


class _Decoder:
    def __init__(self, version: int, *, flexible: bool, copied: bool, counting: bool) -> None:
        self.source = Source()
        self.version = version
        self.flexible = flexible
        self.copied = copied
        self.counting = counting
        self._run: list[tuple[str, str]] = []  # format and target of the fields that are not decoded yet

    # A run of fixed fields

    def fixed(self, formats: str, target: str) -> None:
        self._run.append((formats, target))

    def flush(self) -> None:
        """Decode all fields of the run with one call."""
        if not self._run:
            return
        formats = "".join(formats for formats, _target in self._run)
        targets = ", ".join(target for _formats, target in self._run)
        if formats == "B":
            self.source.line(f"{targets} = buffer[p]")
        else:
            unpack = self.source.use(f"unpack_{formats.replace('?', 'o')}", packing(formats).unpack_from)
            comma = "," if len(self._run) == 1 else ""
            self.source.line(f"{targets}{comma} = {unpack}(buffer, p)")
        self.source.line(f"p += {packing(formats).size}")
        self._run = []

    def length(self, kind: str = "array") -> None:
        """Decode a length or a count into `n`, as the last field of the run. Null is 0 if flexible, else negative."""
        self.fixed("B" if self.flexible else "h" if kind == "string" else "i", "n")
        self.flush()
        if self.flexible:
            with self.source.block("if n > 127:"):
                if kind == "records":
                    # Most record sets have a length of two bytes, which needs no call.
                    self.source.line("n += (buffer[p] << 7) - 128")
                    self.source.line("p += 1")
                    with self.source.block("if n > 16383:"):
                        self.source.line("n, p = varint(buffer, p - 2)")
                else:
                    # The run has decoded the first byte already, so go back by one.
                    self.source.line(f"n, p = {'long_string' if kind == 'string' else 'varint'}(buffer, p - 1)")

    # Structs

    def struct(self, cls: "type[Struct]", depth: int) -> None:
        this = f"o{depth}"
        self.source.line(f"{this} = new({self.source.use(cls.__name__, cls)})")
        schema = cls.schema
        for field in schema.fields_in(self.version):
            self.value(field, f"{this}.{field.name}", depth)
        tagged = schema.tagged_in(self.version)
        present = {field.name for field in schema.fields_in(self.version)}
        for field in schema.fields:
            if field.name not in present:
                self.source.line(f"{this}.{field.name} = {self.default(cls, field)}")
        if self.flexible:
            self.tag_count(tagged, this, depth)

    def default(self, cls: "type[Struct]", field: Field) -> str:
        assert field.default is not REQUIRED, (
            f"{cls.__name__}.{field.name} is not in v{self.version}, so it needs a default"
        )
        if field.is_array and field.default is not None:
            return "[]"
        if field.struct is not None and field.default is not None:
            return self.source.use(f"no_{field.struct.__name__}", field.default)
        return repr(field.default)

    def tag_count(self, tagged: list[Field], this: str, depth: int) -> None:
        """Decode the number of tagged fields, as the last field of a run. Most messages have no tagged fields."""
        self.fixed("B", "n")
        self.flush()
        with self.source.block("if n:"):
            self.source.line("if n > 127: n, p = varint(buffer, p - 1)")
            self.count("the count of tagged fields")
            if tagged:
                self.tags(tagged, this, depth)
            else:
                self.source.line("p = skip_tags(buffer, p, n)")

    def number(self, target: str) -> None:
        """Decode a varint, which has one byte in most cases."""
        self.source.line(f"{target} = buffer[p]")
        self.source.line("p += 1")
        self.source.line(f"if {target} > 127: {target}, p = varint(buffer, p - 1)")

    def tags(self, tagged: list[Field], this: str, depth: int) -> None:
        """Decode tagged fields. Each has a tag and a length before it, so that unknown fields can be skipped."""
        tags, end = f"tags{depth}", f"end{depth}"
        source = self.source
        source.line(f"{tags} = n")
        with source.block(f"while {tags}:"):
            self.number("tag")
            self.number("n")
            source.line(f"{end} = p + n")
            for field in tagged:
                with source.block(f"{'el' if field is not tagged[0] else ''}if tag == {field.tag}:"):
                    self.value(field, f"{this}.{field.name}", depth)
                    self.flush()
                    with source.block(f"if p != {end}:"):
                        source.line(_raise(f"tagged field {field.name} ends at {{p}}, but its length says {{{end}}}"))
            with source.block("else:"):
                source.line(f"p = {end}")
            source.line(f"{tags} -= 1")

    # Values

    def value(self, field: Field, target: str, depth: int) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self.array(field, target, depth, nullable=nullable)
        elif field.struct is not None:
            null = "n < 1" if self.version in field.tagged else "n < 0"
            self.inner(field.struct, target, depth, null=null if nullable else "")
        elif field.fixed_format is not None:
            self.fixed(field.fixed_format, target)
        else:
            self.length(field.kind)
            with self.unless_null(target, field.name, nullable=nullable):
                self.slice(field.kind, target)

    def unless_null(self, target: str, name: str, *, nullable: bool) -> AbstractContextManager[None]:
        """Handle null. The lines that are added inside the `with` handle other values."""
        with self.source.block("if not n:" if self.flexible else "if n < 0:"):
            self.source.line(f"{target} = None" if nullable else _raise(f"{name} at position {{p}} is null"))
        return self.source.block("else:") if nullable else nullcontext()

    def slice(self, kind: str, target: str) -> None:
        """Take `n` bytes; a record set stays a view of the frame."""
        taken = "buffer[p:e]"
        if not self.copied and kind != "records":
            taken += ".tobytes()"
        self.source.line("e = p + n - 1" if self.flexible else "e = p + n")
        self.source.line(f"{target} = {taken}" + ".decode()" * (kind == "string"))
        self.source.line("p = e")

    def inner(self, cls: "type[Struct]", target: str, depth: int, *, null: str) -> None:
        if not null:
            self.struct(cls, depth + 1)
            self.flush()
            self.source.line(f"{target} = o{depth + 1}")
            return
        # One byte says whether a struct follows: 1, or -1 for null. The null of a tagged field is 0.
        self.fixed("b", "n")
        self.flush()
        with self.source.block(f"if {null}:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.struct(cls, depth + 1)
            self.flush()
            self.source.line(f"{target} = o{depth + 1}")

    def array(self, field: Field, target: str, depth: int, *, nullable: bool) -> None:
        self.length()
        with self.unless_null(target, field.name, nullable=nullable):
            if self.flexible:
                self.source.line("n -= 1")
            element = field._replace(is_array=False, nullable=NEVER)
            least = field_size_min(element, self.version, flexible=self.flexible)
            with self.source.block(f"if n * {least} > size - p:"):
                self.source.line(
                    _raise(f"{field.name} at position {{p}} cannot have {{n}} elements in {{size - p}} bytes")
                )
            self.count(field.name)
            if field.struct is None and field.kind in FIXED_FORMATS:
                self.fixed_elements(FIXED_FORMATS[field.kind], target)
            else:
                self.elements(field, target, depth + 1)

    def count(self, name: str) -> None:
        """Count `n` elements before they are decoded."""
        if self.counting:
            self.source.line("left -= n")
            with self.source.block("if left < 0:"):
                message = f"{name} at position {{p}} has {{n}} elements, {{-left}} too many"
                self.source.line(f'raise TooManyElements(f"{message}")')

    def fixed_elements(self, formats: str, target: str) -> None:
        arrays = self.source.use(f"arrays_of_{formats.replace('?', 'o')}", repeated(formats))
        self.source.line(f"{target} = list({arrays}[n].unpack_from(buffer, p)) if n else []")
        self.source.line(f"p += {packing(formats).size} * n")

    def elements(self, field: Field, target: str, depth: int) -> None:
        self.source.line(f"{target} = a{depth} = []")
        with self.source.block("for _ in range(n):"):
            if field.struct is not None:
                self.struct(field.struct, depth)
                self.flush()
                self.source.line(f"a{depth}.append(o{depth})")
            else:
                self.value(field._replace(is_array=False, nullable=NEVER), "s", depth)
                self.source.line(f"a{depth}.append(s)")


def _raise(message: str) -> str:
    return f'raise MalformedMessage(f"{message}")'


def _refusal(cls: "type[Struct]", version: int, what: str, *, cause: bool = False) -> str:
    return _raise(f"{cls.__name__} v{version}, {{size}} bytes, near position {{p}}: {what}") + " from error" * cause


# Called by the generated source in rare cases: for a first byte above 127, or for a tagged field.


def _long_string(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Decode the length of a string, and refuse a length above the limit."""
    length, position = decode_unsigned_varint(buffer, position)
    if length - 1 > STRING_BYTES_MAX:
        raise MalformedMessage(f"a string of {length - 1} bytes is too long: at most {STRING_BYTES_MAX} are allowed")
    return length, position


def _skip_tags(buffer: bytes | memoryview, position: int, count: int) -> int:
    """Skip unknown tagged fields."""
    for _ in range(count):
        _tag, position = decode_unsigned_varint(buffer, position)
        length, position = decode_unsigned_varint(buffer, position)
        position += length
    return position
