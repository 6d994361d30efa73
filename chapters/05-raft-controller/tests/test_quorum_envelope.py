"""Envelopes (KIP-590): their bytes, the answers of the controller, and its refusals."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import case
from test_controller_answering import ThreeNodes, reassignment

from minibroker.client.errors import BrokerError, BrokerUnavailable, UnexpectedResponse
from minibroker.controller.tables.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from minibroker.controller.tables.envelope import EnvelopeRequest, EnvelopeResponse
from minibroker.controller.tables.list_partition_reassignments import ListPartitionReassignmentsRequest
from minibroker.metadata.errors import Refused
from minibroker.partitions.access import Access
from minibroker.partitions.registry import ANONYMOUS, Call, Principal, Registry, Session
from minibroker.quorum import access
from minibroker.quorum.envelope import Envelopes, read_principal, unwrap, wrap, write_principal
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import RequestHeader
from minibroker.wire.schema import Request
from minibroker.wire.tables.metadata import MetadataRequest

ROWS = {ApiKey.METADATA: Access(), **access.ROWS}
NODE_2 = Session("192.0.2.99:9092", principal=Principal("User", "__node-2"), node_id=2)
LIST = ListPartitionReassignmentsRequest(timeout_ms=258, topics=None)


def of_a_client(
    request: Request, *, peer: str = "192.0.2.7:50123", version: int = 0, number: int = 77
) -> Call[Request]:
    assert request.schema.key is not None
    header = RequestHeader(request.schema.key, version, number, "rdkafka")
    return Call(request, version, header, 5, Session(peer))


def three_nodes() -> ThreeNodes:
    made = ThreeNodes()
    made.topic((1, 2, 3))
    for registry in made.registries.values():
        registry.add(ApiKey.ENVELOPE, Envelopes(registry, ROWS))
    return made


def test_an_envelope_has_the_request_its_header_the_principal_and_the_address() -> None:
    assert wrap(of_a_client(LIST)).encode(0).hex(" ") == (
        # The request's length and one, its key and version, correlation id and client id: the client's.
        "19 00 2e 00 00 00 00 00 4d 00 07 72 64 6b 61 66 6b 61 00"
        # Its fields: the timeout, no topics, no tags.
        " 00 00 01 02 00 00"
        # The principal: the length and one, its version, User, ANONYMOUS, no token, no tags.
        " 14 00 00 05 55 73 65 72 0a 41 4e 4f 4e 59 4d 4f 55 53 00 00"
        # The address, and no tags of the envelope.
        " 05 c0 00 02 07 00"
    )


def test_an_address_may_have_16_bytes() -> None:
    assert wrap(of_a_client(LIST, peer="::1:50123")).client_host_address == bytes(15) + b"\x01"


def test_a_principal_is_written_as_in_kafka_and_read_back() -> None:
    for principal in (ANONYMOUS, Principal("User", "CN=älice")):
        assert read_principal(write_principal(principal)) == principal


def test_an_unreadable_principal_is_refused() -> None:
    for data in (None, b"", b"\0", b"\0\1" + bytes(4), b"\0\0\5User", write_principal(ANONYMOUS) + b"x"):
        with case(data):
            with pytest.raises(Refused) as refused:
                read_principal(data)
            assert refused.value.code is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


def test_the_controller_answers_as_if_the_client_had_asked_it() -> None:
    for version in (0, 1):
        with case(f"version {version}"):
            here = three_nodes()
            call = of_a_client(reassignment([2, 3]), version=version)
            # This response waits until its record is committed.
            answer = unwrap(call.header, here.ask(wrap(call)))
            other = three_nodes()
            assert answer == other.ask(reassignment([2, 3]), version)
            # This one does not.
            listed = of_a_client(ListPartitionReassignmentsRequest(topics=None))
            assert unwrap(listed.header, here.ask(wrap(listed))) == here.ask(
                ListPartitionReassignmentsRequest(topics=None)
            )


def test_the_handler_learns_the_client_and_the_node_that_forwarded_its_request() -> None:
    registry, calls = Registry(), list[Call[Any]]()
    answer = APIS[ApiKey.LIST_PARTITION_REASSIGNMENTS].response(topics=[])

    def handler(call: Call[Any]) -> Any:
        calls.append(call)
        return answer

    registry.add(ApiKey.LIST_PARTITION_REASSIGNMENTS, handler)
    client = of_a_client(LIST)
    envelope = Call(wrap(client), 0, RequestHeader(ApiKey.ENVELOPE, 0, 1, "node-2"), 9, NODE_2)
    response = Envelopes(registry, ROWS)(envelope)
    assert isinstance(response, EnvelopeResponse)
    assert unwrap(client.header, response) == answer
    (call,) = calls
    assert (call.request, call.version, call.header) == (client.request, client.version, client.header)
    assert (call.session.peer, call.via, call.now_ms) == ("192.0.2.7", "__node-2 for User:ANONYMOUS", 9)


def test_a_node_that_is_not_the_controller_refuses_the_envelope_itself() -> None:
    here = three_nodes()
    call = of_a_client(reassignment([2, 3]))
    envelope = here.ask(wrap(call), of=2)
    assert (envelope.error_code, envelope.response_data) == (ErrorCode.NOT_CONTROLLER, None)
    # Treated as unreachable, so that another node is asked.
    with pytest.raises(BrokerUnavailable):
        unwrap(call.header, envelope)


def changed(change: Callable[[EnvelopeRequest], None]) -> EnvelopeRequest:
    envelope = wrap(of_a_client(LIST))
    change(envelope)
    return envelope


def inside(data: bytes) -> EnvelopeRequest:
    return changed(lambda it: setattr(it, "request_data", data))


GOOD = wrap(of_a_client(LIST)).request_data


def test_an_envelope_that_cannot_be_opened_is_refused_and_does_nothing() -> None:
    cases: list[tuple[str, EnvelopeRequest, ErrorCode]] = [
        ("not forwardable", wrap(of_a_client(MetadataRequest(topics=[]), version=12)), ErrorCode.INVALID_REQUEST),
        ("an envelope", wrap(of_a_client(wrap(of_a_client(LIST)))), ErrorCode.INVALID_REQUEST),
        ("no address", changed(lambda it: setattr(it, "client_host_address", b"123")), ErrorCode.INVALID_REQUEST),
        (
            "no principal",
            changed(lambda it: setattr(it, "request_principal", None)),
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
        ),
        ("empty", inside(b""), ErrorCode.UNSUPPORTED_VERSION),
        ("cut", inside(GOOD[:-3]), ErrorCode.UNSUPPORTED_VERSION),
        ("no such API", inside(b"\x7f\xff" + GOOD[2:]), ErrorCode.UNSUPPORTED_VERSION),
        ("no such version", inside(GOOD[:2] + b"\x00\x63" + GOOD[4:]), ErrorCode.UNSUPPORTED_VERSION),
    ]
    for name, envelope, code in cases:
        with case(name):
            here = three_nodes()
            end_offset = here.trio.nodes[1].raft.log.log_end_offset
            answer = here.ask(envelope)
            assert (answer.error_code, answer.response_data) == (code, None)
            assert here.trio.nodes[1].raft.log.log_end_offset == end_offset
            with pytest.raises(BrokerError, match=code.name):
                unwrap(of_a_client(LIST).header, answer)


def test_a_version_that_is_not_served_here_is_refused() -> None:
    registry = Registry()
    registry.add(ApiKey.ALTER_PARTITION_REASSIGNMENTS, lambda _call: None, versions=(0, 0))
    registry.add(ApiKey.ENVELOPE, Envelopes(registry, ROWS))
    newer = AlterPartitionReassignmentsRequest(timeout_ms=1, topics=[])
    envelope = Call(wrap(of_a_client(newer, version=1)), 0, RequestHeader(ApiKey.ENVELOPE, 0, 1, "node-2"), 0, NODE_2)
    answer = Envelopes(registry, ROWS)(envelope)
    assert isinstance(answer, EnvelopeResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_answer_to_something_else_is_not_given_to_the_client() -> None:
    call = of_a_client(LIST)
    answer = three_nodes().ask(wrap(of_a_client(LIST, number=78)))
    with pytest.raises(UnexpectedResponse, match="78"):
        unwrap(call.header, answer)
    with pytest.raises(UnexpectedResponse):
        unwrap(call.header, EnvelopeResponse(response_data=b"\0\0\0\x4d\0", error_code=0))
