r"""The formats of `minibroker consume -f`, which write a record as bytes, as kcat and rpk do.

| verb | meaning | verb | meaning |
|---|---|---|---|
| `%t` | topic | `%v` `%s` | value |
| `%p` | partition | `%V` `%S` | length of the value; -1 if it is null |
| `%o` | offset | `%k` | key |
| `%T` | timestamp, milliseconds since 1970 | `%K` | length of the key; -1 if it is null |
| `%h` | headers, `name=value,name=value` | `%%` | a percent sign |

Escapes: `\n`, `\t`, `\r`, `\0`, `\\`, `\xHH`. Keys and values are written byte for byte; a null is written as nothing.
The format `json` writes one object per line.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.log.record import Record

JSON = "json"
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<verb>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL)


class InvalidFormat(ValueError):
    """A format that cannot be parsed; the message says why."""


Piece = Callable[[str, int, "Record"], bytes]
"""Writes a part of a record, or the whole record, given its topic and its partition."""


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(_topic: str, _partition: int, record: "Record") -> bytes:
    return b",".join(b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers)


VERBS: dict[str, Piece] = {
    "t": lambda topic, _partition, _record: topic.encode(),
    "p": lambda _topic, partition, _record: b"%d" % partition,
    "o": lambda _topic, _partition, record: b"%d" % record.offset,
    "T": lambda _topic, _partition, record: b"%d" % record.timestamp,
    "h": _headers,
    "k": lambda _topic, _partition, record: record.key or b"",
    "K": lambda _topic, _partition, record: _length(record.key),
    "v": lambda _topic, _partition, record: record.value or b"",
    "V": lambda _topic, _partition, record: _length(record.value),
    "%": lambda _topic, _partition, _record: b"%",
}
VERBS["s"], VERBS["S"] = VERBS["v"], VERBS["V"]


def compile_format(text: str) -> Piece:
    """Compile a format into a function that writes a record."""
    if text == JSON:
        return json_line
    pieces = [_piece(match) for match in _TOKEN.finditer(text)]
    return lambda topic, partition, record: b"".join([piece(topic, partition, record) for piece in pieces])


def _piece(match: re.Match[str]) -> Piece:
    found = match.groupdict()
    if found["verb"] is not None:
        return _verb(found["verb"])
    literal = _literal(found)
    return lambda _topic, _partition, _record: literal


def _verb(name: str) -> Piece:
    if name not in VERBS:
        known = " ".join(f"%{verb}" for verb in VERBS)
        raise InvalidFormat(f"%{name} is not a verb of the format: the verbs are {known}")
    return VERBS[name]


def _literal(found: dict[str, str | None]) -> bytes:
    if found["hex"] is not None:
        return bytes.fromhex(found["hex"])
    escape = found["escape"]
    if escape is None:
        return (found["text"] or "").encode()
    if escape not in ESCAPES:
        raise InvalidFormat(f"\\{escape} is not an escape of the format: the escapes are \\n \\t \\r \\0 \\\\ \\xHH")
    return ESCAPES[escape]


def json_line(topic: str, partition: int, record: "Record") -> bytes:
    """A record as a JSON object; bytes that are not UTF-8 are in base64, under a name such as key_base64."""
    document: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_json_bytes("key", record.key),
        **_json_bytes("value", record.value),
        "headers": [{"name": name, **_json_bytes("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
