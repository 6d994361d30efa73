"""The headers of requests and responses, and the length before them. A pure module.

    request     length int32 | api key int16 | api version int16 | correlation id int32 | client id | tags | message
    response    length int32 | correlation id int32 | tags | message

Two rules differ from the rest of the protocol, so that any two versions can talk to each other. The client id is never
a compact string, even before a flexible message. The header of an ApiVersions response never has tags.
"""

from struct import Struct as Packing
from struct import error as struct_error
from typing import NamedTuple

from minibroker.log.errors import InvalidVarint
from minibroker.log.interfaces import FileSlice
from minibroker.log.varint import decode_unsigned_varint
from minibroker.wire.apis import APIS
from minibroker.wire.errors import MalformedMessage, UnsupportedApi, WireError
from minibroker.wire.schema import Part, Request, Response

_REQUEST = Packing(">hhih")  # api key, api version, correlation id, length of the client id
_FRAMED_REQUEST = Packing(">ihhih")  # the same fields, with the length of the frame before them
_FRAMED_RESPONSE = Packing(">ii")
_FRAMED_RESPONSE_WITH_TAGS = Packing(">iix")  # x is a zero byte: no tagged fields
_LENGTH = Packing(">i")
_NO_TAGS = b"\0"
LENGTH_SIZE = _LENGTH.size
FRAME_BYTES_MAX = 2**31 - 1
_TAGS_MAX = 100  # in a header; Kafka has defined none yet


class RequestHeader(NamedTuple):
    """The header of a request. Its response carries the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Decode the header of a request, without its length. Return it and the position of the message after it."""
    # Bytes that end too early or are not UTF-8 raise only MalformedMessage (invariant 17 in the chapter's README).
    try:
        # These fields are the same in every version. The length of the client id has two bytes, and -1 is null.
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame)
        position = _REQUEST.size
        client_id = None
        if length >= 0:
            client_id = frame[position : position + length].tobytes().decode()
            position += length
            if position > len(frame):
                raise MalformedMessage(f"the client id ends at {position}, but the request has {len(frame)} bytes")
        # This is RequestHeader(…) without the call to its __new__, because every request comes through here.
        header = tuple.__new__(RequestHeader, (api_key, api_version, correlation_id, client_id))
        # Refuse an unknown API or version, because its message cannot be decoded. The error carries the header.
        api = APIS.get(api_key)
        if api is None or not api.min_version <= api_version <= api.max_version:
            raise UnsupportedApi(header)
        # A flexible request has tagged fields here. Kafka has defined none yet, so they are skipped.
        if api_version >= api.flexible_from:
            position = position + 1 if frame[position] == 0 else _skip_tags(frame, position)
    except (struct_error, IndexError, UnicodeDecodeError, InvalidVarint) as error:
        raise MalformedMessage(f"no header in a request of {len(frame)} bytes: {error}") from error
    return header, position


def read_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Decode the header of a response, without its length. Return the correlation id and the message's position."""
    try:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        position = _LENGTH.size
        if has_response_tags(api_key, version):
            position = position + 1 if frame[position] == 0 else _skip_tags(frame, position)
    except (struct_error, IndexError, InvalidVarint) as error:
        raise MalformedMessage(f"no header in a response of {len(frame)} bytes: {error}") from error
    return correlation_id, position


def has_response_tags(api_key: int, version: int) -> bool:
    """Whether a response's header ends with tagged fields."""
    return version >= APIS[api_key].response_tags_from


def frame_request(message: Request, *, version: int, correlation_id: int, client_id: str | None) -> list[Part]:
    """Encode a request with its header and its length."""
    assert message.schema.key is not None
    api = APIS[message.schema.key]
    try:
        name = b"" if client_id is None else client_id.encode()
        length = -1 if client_id is None else len(name)
        out = bytearray(_FRAMED_REQUEST.pack(0, api.key, version, correlation_id, length))
    except (struct_error, UnicodeEncodeError) as error:
        values = f"correlation id {correlation_id}, client id {(client_id or '')[:60]!r}"
        raise WireError(f"a header cannot be written: {error}: {values}") from error
    out += name
    if api.is_flexible(version):
        out += _NO_TAGS
    return _with_length(message.parts(version, out))


def frame_response(message: Response, *, version: int, correlation_id: int) -> list[Part]:
    """Encode a response with its header and its length."""
    key = message.schema.key
    assert key is not None
    header = _FRAMED_RESPONSE_WITH_TAGS if version >= APIS[key].response_tags_from else _FRAMED_RESPONSE
    return _with_length(message.parts(version, bytearray(header.pack(0, correlation_id))))


def part_bytes(parts: list[Part]) -> int:
    """The length of all parts together."""
    count = 0
    for part in parts:
        count += part.count if isinstance(part, FileSlice) else len(part)
    return count


def _with_length(parts: list[Part]) -> list[Part]:
    # The length is known only now that the message is encoded.
    first = parts[0]
    assert isinstance(first, bytearray)
    length = (len(first) if len(parts) == 1 else part_bytes(parts)) - LENGTH_SIZE
    if length > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {length} bytes is too long: at most {FRAME_BYTES_MAX} can be written")
    _LENGTH.pack_into(first, 0, length)
    return parts


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = decode_unsigned_varint(frame, position)
    if count > _TAGS_MAX:
        raise MalformedMessage(f"a header has {count} tagged fields, but may have {_TAGS_MAX} at most")
    for _ in range(count):
        _tag, position = decode_unsigned_varint(frame, position)
        length, position = decode_unsigned_varint(frame, position)
        position += length
    if position > len(frame):
        raise MalformedMessage(f"a tagged field of the header ends at {position}, but the frame has {len(frame)} bytes")
    return position
