"""Frames and headers: traps 1 to 5 of the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_messages import EVERY_MESSAGE, api_of, case, sample

from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import MalformedMessage, UnsupportedApi, WireError
from minibroker.wire.frames import LENGTH_SIZE, frame_length
from minibroker.wire.headers import (
    RequestHeader,
    frame_request,
    frame_response,
    part_bytes,
    read_request_header,
    read_response_header,
)
from minibroker.wire.schema import Part, Request, Response, decode_whole
from minibroker.wire.tables.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse

LIMIT = 100_000


def joined(parts: list[Part]) -> bytes:
    return b"".join(bytes(part) for part in parts if isinstance(part, bytes | bytearray | memoryview))


def frame_of(parts: list[Part]) -> memoryview:
    data = memoryview(joined(parts))
    assert frame_length(data[:LENGTH_SIZE], LIMIT) == len(data) - LENGTH_SIZE
    return data[LENGTH_SIZE:]


# Headers


def test_every_request_follows_its_header() -> None:
    for cls, version in EVERY_MESSAGE:
        message = sample(cls, version)
        if not isinstance(message, Request):
            continue
        for client_id in ("a client", "", None):
            with case(cls, version):
                frame = frame_of(frame_request(message, version=version, correlation_id=-7, client_id=client_id))
                header, position = read_request_header(frame)
                assert header == RequestHeader(api_of(cls).key, version, -7, client_id)
                assert header.client_id == client_id
                assert decode_whole(cls, frame, position, version) == message


def test_every_response_follows_its_header() -> None:
    for cls, version in EVERY_MESSAGE:
        message = sample(cls, version)
        if not isinstance(message, Response):
            continue
        with case(cls, version):
            frame = frame_of(frame_response(message, version=version, correlation_id=-7))
            correlation_id, position = read_response_header(api_of(cls).key, version, frame)
            assert correlation_id == -7
            assert decode_whole(cls, frame, position, version) == message


def test_an_apiversions_request_of_a_newer_version_is_recognised_by_its_header() -> None:
    # Trap 1: the body is not parsed; the answer is in version 0 and has the range of key 18.
    frame = memoryview(b"\x00\x12\x00\x63\x00\x00\x00\x05\x00\x02me" + b"what follows is not known")
    with pytest.raises(UnsupportedApi) as raised:
        read_request_header(frame)
    assert raised.value.header == RequestHeader(18, 99, 5, "me")
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
    )
    assert joined(frame_response(answer, version=0, correlation_id=5)) == bytes.fromhex(
        "00000010 00000005 0023 00000001 0012 0000 0004"
    )


def test_the_header_of_an_apiversions_response_has_no_tags_in_any_version() -> None:
    # Trap 2: the body of version 3 is flexible, the header before it is not.
    response = ApiVersionsResponse(error_code=0, api_keys=[])
    assert joined(frame_response(response, version=3, correlation_id=1)) == bytes.fromhex(
        "0000000c 00000001 0000 01 00000000 00"
    )
    assert read_response_header(ApiKey.API_VERSIONS, 3, memoryview(bytes(12)))[1] == 4
    other = MetadataResponse(brokers=[], topics=[])
    assert joined(frame_response(other, version=9, correlation_id=1))[4:9] == b"\0\0\0\x01" + b"\0"


def test_the_client_id_is_never_a_compact_string() -> None:
    # Trap 3: two bytes of length, even before a flexible message; then the tags of the header.
    request = ApiVersionsRequest(client_software_name="n", client_software_version="v")
    assert joined(frame_request(request, version=3, correlation_id=1, client_id="me")) == bytes.fromhex(
        "00000012 0012 0003 00000001 0002 6d65 00 02 6e 02 76 00"
    )


def test_an_unknown_key_or_version_is_refused_with_its_header() -> None:
    # Trap 4: close the connection.
    for key, version in ((99, 0), (-1, 0), (8, 0), (0, 2), (0, 13), (3, -1)):
        frame = key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + b"\0\0\0\x09" + b"\xff\xff"
        with pytest.raises(UnsupportedApi, match=f"key {key} version {version}") as raised:
            read_request_header(memoryview(frame))
        assert raised.value.header == RequestHeader(key, version, 9, None)


def test_unknown_tagged_fields_of_a_header_are_ignored() -> None:
    # Trap 5.
    head, tags = b"\x00\x03\x00\x09" + bytes(4) + b"\xff\xff", b"\x01\x63\x03abc"
    assert read_request_header(memoryview(head + tags + b"body"))[1] == len(head + tags)
    assert read_response_header(3, 9, memoryview(bytes(4) + tags + b"body"))[1] == 4 + len(tags)


def test_every_cut_off_header_is_refused() -> None:
    for version in (1, 9):
        request = MetadataRequest(topics=None)
        frame = frame_of(frame_request(request, version=version, correlation_id=1, client_id="client"))
        _header, position = read_request_header(frame)
        for size in range(position):
            with case(MetadataRequest, version), pytest.raises(MalformedMessage):
                read_request_header(frame[:size])
        for size in range(4):
            with case(MetadataResponse, version), pytest.raises(MalformedMessage):
                read_response_header(3, version, frame[:size])


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        header, position = read_request_header(memoryview(data))
    except (MalformedMessage, UnsupportedApi):
        return
    assert header.api_key in APIS
    assert position <= len(data)


def test_a_client_id_must_be_utf8_and_must_fit() -> None:
    with pytest.raises(MalformedMessage, match="no header"):
        read_request_header(memoryview(bytes(8) + b"\x00\x01\xff"))
    for client_id in ("x" * 40_000, "\ud800"):
        with pytest.raises(WireError, match=r"a header cannot be written: .* client id '"):
            frame_request(MetadataRequest(topics=None), version=1, correlation_id=1, client_id=client_id)


def test_the_length_counts_all_parts() -> None:
    parts = frame_request(MetadataRequest(topics=[]), version=1, correlation_id=1, client_id=None)
    assert part_bytes(parts) == len(joined(parts))
    assert int.from_bytes(joined(parts)[:4]) == part_bytes(parts) - 4


# Frames


def test_a_length_outside_of_the_limits_is_refused() -> None:
    for length in (-1, 0, LIMIT + 1, 2**31 - 1, -(2**31)):
        prefix = length.to_bytes(4, signed=True)
        with pytest.raises(MalformedMessage, match=f"a frame has {length} bytes, but must have 1 to {LIMIT}"):
            frame_length(prefix, LIMIT)
