"""A message as a tree of fields, each with its bytes, its type and its value. A pure module.

This decoder interprets the tables field by field, so it is slower than the compiled decoders, but it knows the position
of every field. The tests compare the results of both decoders.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from minibroker.log.annotate import FIELDS as BATCH_FIELDS
from minibroker.log.batch import HEADER_SIZE, BatchHeader, read_header
from minibroker.log.errors import CorruptBatch, InvalidVarint
from minibroker.log.text import bytes_text, compression_text, counted_text, time_text
from minibroker.log.varint import decode_unsigned_varint
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.compiling import check_version
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.fields import FIXED_FORMATS, NEVER, Field
from minibroker.wire.headers import has_response_tags, read_request_header
from minibroker.wire.schema import Struct
from minibroker.wire.source import packing
from minibroker.wire.uuids import uuid_text

BYTES_PER_LINE = 8
LINES_PER_FIELD_MAX = 2
CHILDREN_MAX = 20


class Node(NamedTuple):
    """A field, a struct or a whole message. Its own bytes are the bytes before its first child."""

    name: str
    type: str
    value: Any  # the decoded value; for an array its count; None for null and for a struct
    start: int
    end: int
    children: list["Node"]


def explain(cls: type[Struct], buffer: memoryview, position: int, version: int) -> Node:
    """The tree of the struct at `position`."""
    check_version(cls, version)
    reader = _Reader(buffer, position, version, flexible=cls.schema.is_flexible(version))
    return reader.checked(lambda: reader.struct("message", cls)._replace(type=f"{cls.__name__} v{version}"))


def explain_request(frame: memoryview) -> Node:
    """The tree of a request with its header; the frame does not include its length prefix."""
    reader = _Reader(frame, 0, 0, flexible=False)
    node = reader.checked(reader.request_header)
    header, position = read_request_header(frame)
    assert position == node.end
    api = APIS[header.api_key]
    return _whole(f"{api.name} request", frame, node, explain(api.request, frame, position, header.api_version))


def explain_response(api_key: int, version: int, frame: memoryview) -> Node:
    """The tree of a response; a response does not name its API and version, so both must be given."""
    reader = _Reader(frame, 0, version, flexible=has_response_tags(api_key, version))
    node = reader.checked(reader.response_header)
    api = APIS[api_key]
    return _whole(f"{api.name} response", frame, node, explain(api.response, frame, node.end, version))


def _whole(name: str, frame: memoryview, header: Node, message: Node) -> Node:
    children = [header, message]
    if message.end < len(frame):
        children.append(Node("trailing bytes", "bytes", bytes(frame[message.end :]), message.end, len(frame), []))
    return Node(name, f"{len(frame)} bytes", None, 0, len(frame), children)


class _Reader:
    """Reads a message from a position on."""

    def __init__(self, buffer: memoryview, position: int, version: int, *, flexible: bool) -> None:
        self.buffer = buffer
        self.position = position
        self.version = version
        self.flexible = flexible

    def checked(self, read: Callable[[], Node]) -> Node:
        try:
            return read()
        except (InvalidVarint, UnicodeDecodeError) as error:
            raise MalformedMessage(f"near position {self.position}: {error}") from error

    # Numbers and byte ranges

    def take(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self.buffer):
            raise MalformedMessage(
                f"{count} bytes are expected at position {self.position}, but the message ends at {len(self.buffer)}"
            )
        taken = self.buffer[self.position : end]
        self.position = end
        return taken

    def number(self, kind: str) -> Any:
        number = packing(FIXED_FORMATS[kind])
        return number.unpack(self.take(number.size))[0]

    def varint(self) -> int:
        value, self.position = decode_unsigned_varint(self.buffer, self.position)
        return value

    def length(self, kind: str) -> int:
        """A length or a count; -1 means null."""
        if self.flexible:
            return self.varint() - 1
        return int(self.number("int16" if kind == "string" else "int32"))

    def fixed(self, name: str, kind: str) -> Node:
        start = self.position
        return Node(name, kind, self.number(kind), start, self.position, [])

    # Headers

    def request_header(self) -> Node:
        key, version = self.fixed("api_key", "int16"), self.fixed("api_version", "int16")
        children = [key, version, self.fixed("correlation_id", "int32")]
        children.append(self.sized("client_id", "string", nullable=True))
        api = APIS.get(key.value)
        if api is not None and api.is_flexible(version.value):
            children.append(self.tags([]))
        return Node("header", "RequestHeader", None, 0, self.position, children)

    def response_header(self) -> Node:
        children = [self.fixed("correlation_id", "int32")]
        if self.flexible:
            children.append(self.tags([]))
        return Node("header", "ResponseHeader", None, 0, self.position, children)

    # Structs

    def struct(self, name: str, cls: type[Struct]) -> Node:
        start = self.position
        children = [self.field(field) for field in cls.schema.fields_in(self.version)]
        if self.flexible:
            children.append(self.tags(cls.schema.tagged_in(self.version)))
        return Node(name, cls.__name__, None, start, self.position, children)

    def tags(self, known: list[Field]) -> Node:
        start = self.position
        count = self.varint()
        fields = {field.tag: field for field in known}
        children = [self.tag(fields) for _ in range(count)]
        return Node("tags", "tagged fields", count, start, self.position, children)

    def tag(self, known: Mapping[int | None, Field]) -> Node:
        start = self.position
        tag, size = self.varint(), self.varint()
        end = self.position + size
        if tag in known:
            value = self.field(known[tag])
        else:
            value = Node("unknown", "bytes", bytes(self.take(size)), end - size, end, [])
        if self.position != end:
            raise MalformedMessage(f"tag {tag} ends at position {self.position}, but its size demands position {end}")
        return Node(f"tag {tag}", counted_text(size, "byte"), None, start, end, [value])

    # Values

    def field(self, field: Field) -> Node:
        nullable = self.version in field.nullable
        if field.is_array:
            return self.array(field, nullable=nullable)
        if field.struct is not None:
            return self.inner(field, field.struct, nullable=nullable)
        if field.kind in FIXED_FORMATS:
            return self.fixed(field.name, field.kind)
        return self.sized(field.name, field.kind, nullable=nullable)

    def inner(self, field: Field, cls: type[Struct], *, nullable: bool) -> Node:
        start = self.position
        # A nullable struct is preceded by a byte that is negative for null.
        if nullable and self.number("int8") < 0:
            return Node(field.name, cls.__name__, None, start, self.position, [])
        return self.struct(field.name, cls)._replace(start=start)

    def sized(self, name: str, kind: str, *, nullable: bool) -> Node:
        start = self.position
        count = self.length(kind)
        if count < 0:
            return self.null(name, kind, start, nullable=nullable)
        inside = self.position
        taken = bytes(self.take(count))
        children = list(_batches(self.buffer, inside, self.position)) if kind == "records" else []
        return Node(name, kind, taken.decode() if kind == "string" else taken, start, self.position, children)

    def array(self, field: Field, *, nullable: bool) -> Node:
        start = self.position
        count = self.length("array")
        if count < 0:
            return self.null(field.name, field.type_text, start, nullable=nullable)
        if count > len(self.buffer) - self.position:
            raise MalformedMessage(f"{field.name} cannot have {count} elements at position {self.position}")
        element = field._replace(is_array=False, nullable=NEVER)
        children = [self.field(element._replace(name=f"[{index}]")) for index in range(count)]
        return Node(field.name, field.type_text, count, start, self.position, children)

    def null(self, name: str, kind: str, start: int, *, nullable: bool) -> Node:
        if not nullable:
            raise MalformedMessage(f"{name} at position {start} is null")
        return Node(name, kind, None, start, self.position, [])


# Record sets --------------------------------------------------------------------------------------------------------


def _batches(buffer: memoryview, start: int, end: int) -> Iterator[Node]:
    """The batches of a record set; a fetched set may end in the middle of a batch."""
    while end - start >= HEADER_SIZE:
        try:
            header = read_header(buffer[start:end])
        except CorruptBatch:
            break
        batch_end = min(start + header.size, end)
        fields = list(_batch_fields(buffer, header, start, batch_end))
        yield Node("batch", "RecordBatch", header, start, batch_end, fields)
        start = batch_end
    if start < end:
        yield Node("rest", "bytes", bytes(buffer[start:end]), start, end, [])


def _batch_fields(buffer: memoryview, header: BatchHeader, start: int, end: int) -> Iterator[Node]:
    for (name, size), value in zip(BATCH_FIELDS, header, strict=True):
        kind = "uint32" if name == "crc" else f"int{8 * size}"
        yield Node(name.replace(" ", "_"), kind, value, start, start + size, [])
        start += size
    if start < end:
        yield Node("records", "bytes", bytes(buffer[start:end]), start, end, [])


# Text ---------------------------------------------------------------------------------------------------------------


def render(node: Node, buffer: memoryview) -> list[str]:
    """One line for each node: its position, its bytes, and the field with its value, indented by depth."""
    return list(_lines(node, buffer, depth=0))


def _lines(node: Node, buffer: memoryview, depth: int) -> Iterator[str]:
    own_end = node.children[0].start if node.children else node.end
    value = value_text(node)
    what = f"{'  ' * depth}{node.name}: {node.type}" + (f" = {value}" if value else "")
    yield from _rows(node.start, bytes(buffer[node.start : own_end]), what)
    for child in node.children[:CHILDREN_MAX]:
        yield from _lines(child, buffer, depth + 1)
    if len(node.children) > CHILDREN_MAX:
        yield _row("", "", f"{'  ' * (depth + 1)}… {len(node.children) - CHILDREN_MAX} more")


def _rows(position: int, data: bytes, what: str) -> Iterator[str]:
    """The lines of one field: the first has its description, further lines only bytes; long fields are cut."""
    rows = range(0, len(data), BYTES_PER_LINE)
    for row in rows[:LINES_PER_FIELD_MAX] or [0]:
        shown = data[row : row + BYTES_PER_LINE].hex(" ")
        yield _row(str(position + row), shown, what if row == 0 else "")
    if len(rows) > LINES_PER_FIELD_MAX:
        yield _row("", f"… {len(data) - BYTES_PER_LINE * LINES_PER_FIELD_MAX} bytes more", "")


def _row(position: str, data: str, what: str) -> str:
    return f"{position:>6}  {data:<{3 * BYTES_PER_LINE}} {what}".rstrip()


def value_text(node: Node) -> str:
    """A value for people; empty for a node that only has children."""
    value = node.value
    if isinstance(value, BatchHeader):
        cut = ", cut off" if node.end - node.start < value.size else ""
        offsets = f"offsets {value.base_offset} to {value.last_offset}"
        return f"{counted_text(value.record_count, 'record')}, {offsets}, compression {compression_text(value)}{cut}"
    if value is None:
        return "null" if node.end > node.start and not node.children else ""
    if node.type == "tagged fields":
        return str(value or "none")
    if node.type.startswith("[]"):
        return counted_text(value, "element")
    if node.name in _MEANINGS:
        return f"{value} ({_MEANINGS[node.name](value)})"
    if node.type == "uuid":
        return uuid_text(value)
    if isinstance(value, str):
        return bytes_text(value.encode())
    if isinstance(value, bytes):
        return counted_text(len(value), "byte") if node.children else bytes_text(value)
    return str(value)


def _api_name(key: int) -> str:
    return APIS[key].name if key in APIS else ApiKey(key).name if key in set(ApiKey) else "unknown"


def _code_name(code: int) -> str:
    found = ErrorCode(code)
    return found.name if found == code else "unknown"


_MEANINGS: dict[str, Callable[[int], str]] = {
    "api_key": _api_name,
    "error_code": _code_name,
    "topic_config_error_code": _code_name,
    "base_timestamp": time_text,
    "max_timestamp": time_text,
    "crc": hex,
}
