"""One connection: version negotiation, responses matched to requests, and invalid responses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.connection import Connection
from minibroker.client.errors import BrokerError, UnexpectedResponse, UnsupportedByBroker
from minibroker.client.receiving import SMALL_BYTES, Receiver
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_response, read_request_header
from minibroker.wire.schema import Part, Response
from minibroker.wire.tables.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from minibroker.wire.tables.fetch import FetchRequest
from minibroker.wire.tables.metadata import MetadataRequest, MetadataResponse


def feed(connection: Connection, data: bytes | bytearray | memoryview) -> list[tuple[int, Any]]:
    """Receive bytes, in pieces of any size."""
    responses = []
    view = memoryview(data)
    while view:
        buffer = connection.buffer()
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        responses += connection.received(count)
        view = view[count:]
    return responses


def joined(parts: list[Part]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


def header_of(parts: list[Part]) -> tuple[int, int, int]:
    header, _position = read_request_header(memoryview(joined(parts))[4:])
    return header.api_key, header.api_version, header.correlation_id


def response(message: Response, *, version: int, correlation_id: int) -> bytes:
    return joined(frame_response(message, version=version, correlation_id=correlation_id))


def versions(code: int, **ranges: tuple[int, int]) -> ApiVersionsResponse:
    offered = [
        ApiVersion(api_key=ApiKey[name.upper()], min_version=low, max_version=high)
        for name, (low, high) in ranges.items()
    ]
    return ApiVersionsResponse(error_code=code, api_keys=offered)


def ready(**ranges: tuple[int, int]) -> Connection:
    connection = Connection(client_id="test", peer="there:9092")
    _key, version, number = header_of(connection.greeting())
    feed(connection, response(versions(0, **ranges), version=version, correlation_id=number))
    assert connection.is_ready
    return connection


def test_the_first_request_is_the_newest_apiversions_with_the_clients_name() -> None:
    connection = Connection(client_id="test")
    parts = connection.greeting()
    assert header_of(parts) == (ApiKey.API_VERSIONS, APIS[ApiKey.API_VERSIONS].max_version, 0)
    header, position = read_request_header(memoryview(joined(parts))[4:])
    request, _end = ApiVersionsRequest.decode(memoryview(joined(parts))[4:], position, header.api_version)
    assert request.client_software_name == "minibroker"
    assert connection.greeting() == []


@pytest.mark.parametrize(("offered", "second"), [({}, 0), ({"api_versions": (0, 2)}, 2)])
def test_an_older_broker_is_asked_again_in_a_version_it_knows(offered: dict[str, tuple[int, int]], second: int) -> None:
    connection = Connection(client_id="test")
    _key, _version, number = header_of(connection.greeting())
    refusal = versions(ErrorCode.UNSUPPORTED_VERSION, **offered)
    assert feed(connection, response(refusal, version=0, correlation_id=number)) == []
    key, version, number = header_of(connection.greeting())
    assert (key, version) == (ApiKey.API_VERSIONS, second)
    feed(connection, response(versions(0, metadata=(0, 5)), version=second, correlation_id=number))
    assert connection.is_ready
    assert connection.version_of(ApiKey.METADATA) == 5


def test_a_broker_that_refuses_every_version_is_an_error() -> None:
    connection = Connection(client_id="test", peer="there:9092")
    for _ in range(2):
        _key, _version, number = header_of(connection.greeting())
        answer = response(versions(ErrorCode.UNSUPPORTED_VERSION), version=0, correlation_id=number)
        if number == 0:
            feed(connection, answer)
    with pytest.raises(UnsupportedByBroker, match=r"there:9092 refuses ApiVersions in versions \[0, 4\]"):
        feed(connection, answer)


def test_another_error_in_the_greeting_is_reported_by_name() -> None:
    connection = Connection(client_id="test", peer="there:9092")
    _key, version, number = header_of(connection.greeting())
    with pytest.raises(BrokerError, match=r"there:9092.*CLUSTER_AUTHORIZATION_FAILED \(31\)"):
        feed(connection, response(versions(31), version=version, correlation_id=number))


@given(
    ours=st.just((APIS[ApiKey.METADATA].min_version, APIS[ApiKey.METADATA].max_version)),
    low=st.integers(0, 20),
    more=st.integers(0, 20),
)
def test_the_highest_common_version_is_chosen(ours: tuple[int, int], low: int, more: int) -> None:
    connection = ready(metadata=(low, low + more))
    common = set(range(ours[0], ours[1] + 1)) & set(range(low, low + more + 1))
    if common:
        assert connection.version_of(ApiKey.METADATA) == max(common)
    else:
        with pytest.raises(UnsupportedByBroker, match=f"versions {low} to {low + more}, but this client has"):
            connection.version_of(ApiKey.METADATA)


def test_a_request_the_broker_does_not_have_is_refused_with_its_name() -> None:
    connection = ready(metadata=(0, 12))
    with pytest.raises(UnsupportedByBroker, match="there:9092 does not serve Fetch"):
        connection.request(FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]))


def test_a_value_that_the_brokers_version_cannot_carry_is_refused() -> None:
    connection = ready(metadata=(0, 3))
    with pytest.raises(UnsupportedByBroker, match="version 3"):
        connection.request(MetadataRequest(topics=None, allow_auto_topic_creation=False))


def metadata(number: int) -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[], cluster_id=f"cluster-{number}", controller_id=number)


@given(order=st.permutations(range(4)), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_responses_are_matched_to_requests_however_the_bytes_are_split(order: list[int], cuts: list[int]) -> None:
    connection = ready(metadata=(0, 12))
    numbers = [connection.request(MetadataRequest(topics=None)).correlation_id for _ in range(4)]
    stream = b"".join(response(metadata(i), version=12, correlation_id=numbers[i]) for i in order)
    answers: list[tuple[int, Any]] = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        answers += feed(connection, stream[position : position + size])
        position, turn = position + size, turn + 1
    assert [(number, answer.controller_id) for number, answer in answers] == [(numbers[i], i) for i in order]
    assert connection.pending_count == 0


def test_a_request_without_a_response_is_not_awaited() -> None:
    connection = ready(metadata=(0, 12))
    connection.request(MetadataRequest(topics=None), expects_response=False)
    assert connection.pending_count == 0


def test_a_response_without_a_request_is_refused() -> None:
    connection = ready(metadata=(0, 12))
    with pytest.raises(UnexpectedResponse, match="sent a response with correlation id 99, but none of the"):
        feed(connection, response(metadata(1), version=12, correlation_id=99))


@pytest.mark.parametrize("text", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50", bytes(8)])
def test_another_server_is_recognised_before_memory_is_allocated(text: bytes) -> None:
    connection = Connection(client_id="test")
    connection.greeting()
    with pytest.raises(UnexpectedResponse, match="does this port speak the Kafka protocol"):
        feed(connection, text)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_client_error(garbage: bytes) -> None:
    connection = ready(metadata=(0, 12))
    number = connection.request(MetadataRequest(topics=None)).correlation_id
    body = number.to_bytes(4, "big") + garbage
    try:
        feed(connection, len(body).to_bytes(4, "big") + body)
    except UnexpectedResponse as error:
        assert "Metadata" in str(error)


# Frames -------------------------------------------------------------------------------------------------------------

frames = st.lists(
    st.one_of(st.integers(1, 300), st.integers(SMALL_BYTES - 10, SMALL_BYTES * 2)), min_size=1, max_size=6
)


@given(sizes=frames, piece=st.one_of(st.integers(1, 70), st.integers(1000, 200_000)))
def test_frames_of_any_size_are_complete_and_do_not_change_later(sizes: list[int], piece: int) -> None:
    contents = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    stream = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
    piece = max(piece, len(stream) // 500)
    receiver = Receiver(bytes_max=10**6)
    found: list[memoryview] = []
    while stream:
        buffer = receiver.buffer()
        count = min(len(buffer), piece, len(stream))
        buffer[:count] = stream[:count]
        stream = stream[count:]
        found += receiver.received(count)
    assert [bytes(frame) for frame in found] == contents
    assert len(receiver.buffer()) == SMALL_BYTES, "nothing is left"
