"""Envelopes: a node forwards a client's request in one, and the controller opens it (KIP-590). A pure module.

    request     the client's request with its header │ the client's principal │ the client's address
    response    the response for the client with its header │ or the error code of the envelope

The controller answers as if the client had asked it, with the version and the correlation id of the inner header. It
needs the principal and the address to check the rights and quotas of the client. Only a node may send an envelope, and
the request inside is the client's: it never acts for a node, whatever principal it names. In this chapter no client
logs in, so every client is Kafka's `User:ANONYMOUS`.
"""

import ipaddress
from collections.abc import Mapping
from struct import Struct as Packing
from struct import error as struct_error
from typing import Any

from minibroker.client.errors import BrokerError, BrokerUnavailable, UnexpectedResponse
from minibroker.controller.tables.envelope import EnvelopeRequest, EnvelopeResponse
from minibroker.log.interfaces import FileSlice
from minibroker.metadata.errors import Refused
from minibroker.partitions.access import Access, Place
from minibroker.partitions.registry import Answer, Call, Principal, Registry, Session
from minibroker.partitions.waiting import Wait
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import WireError
from minibroker.wire.headers import (
    LENGTH_SIZE,
    RequestHeader,
    frame_request,
    frame_response,
    read_request_header,
    read_response_header,
)
from minibroker.wire.schema import Message, Part, Request, Response, boolean, codes_in, decode_whole, string

_PRINCIPAL_VERSION = 0
_VERSION = Packing(">h")


class PrincipalData(Message, versions="0", flexible="0+"):
    """The principal of a client: Kafka's `DefaultPrincipalData`, preceded by its version in two bytes."""

    type: str = string(about="the kind of principal")
    name: str = string(about="the name of the principal")
    token_authenticated: bool = boolean(about="whether the client has authenticated with a delegation token")


def write_principal(principal: Principal) -> bytes:
    """Serialize a principal as Kafka's default builder does."""
    data = PrincipalData(type=principal.type, name=principal.name, token_authenticated=False)
    return _VERSION.pack(_PRINCIPAL_VERSION) + data.encode(_PRINCIPAL_VERSION)


def read_principal(data: bytes | None) -> Principal:
    """Read a principal back; raises `Refused` if it cannot be read."""
    try:
        (version,) = _VERSION.unpack_from(data or b"")
        if version != _PRINCIPAL_VERSION:
            message = f"a principal has version {version}; only version {_PRINCIPAL_VERSION} is known"
            raise Refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, message)
        found = decode_whole(PrincipalData, memoryview(data or b""), _VERSION.size, version)
        return Principal(found.type, found.name)
    except (struct_error, WireError) as error:
        raise Refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"the principal cannot be read: {error}") from error


# At the node that the client has asked --------------------------------------------------------------------------------


def wrap(call: Call[Request]) -> EnvelopeRequest:
    """Wrap a client's request, to be forwarded."""
    header = call.header
    framed = frame_request(
        call.request, version=call.version, correlation_id=header.correlation_id, client_id=header.client_id
    )
    return EnvelopeRequest(
        request_data=_without_length(framed),
        request_principal=write_principal(call.session.principal),
        client_host_address=ipaddress.ip_address(call.session.peer.rpartition(":")[0]).packed,
    )


def unwrap(header: RequestHeader, envelope: EnvelopeResponse) -> Response:
    """The response to the client's request with this header. Raises a `ClientError` if there is none."""
    code = envelope.error_code
    if code == ErrorCode.NOT_CONTROLLER:
        # The node counts as unavailable, so that the caller asks the current controller.
        raise BrokerUnavailable("the node that was asked is not the controller")
    if code != ErrorCode.NONE or envelope.response_data is None:
        raise BrokerError(code, about="the controller did not open the envelope")
    frame = memoryview(envelope.response_data)
    try:
        correlation_id, position = read_response_header(header.api_key, header.api_version, frame)
        response = decode_whole(APIS[header.api_key].response, frame, position, header.api_version)
    except WireError as error:
        raise UnexpectedResponse(f"the response in the envelope cannot be read: {error}") from error
    if correlation_id != header.correlation_id:
        raise UnexpectedResponse(f"the envelope answers request {correlation_id}, not request {header.correlation_id}")
    return response


# At the controller ----------------------------------------------------------------------------------------------------


class Envelopes:
    """The handler of Envelope: it opens the envelope, and calls the handler of the request inside."""

    def __init__(self, registry: Registry, rows: Mapping[ApiKey, Access]) -> None:
        """`rows` say which APIs the controller answers. Only their requests may be in an envelope."""
        self._registry = registry
        for_controller = {Place.CONTROLLER, Place.CONTROLLER_IF_ANY}
        self._forwardable = {key for key, row in rows.items() if for_controller & set(row.places)}

    def __call__(self, call: Call[EnvelopeRequest]) -> Answer:
        """Answer the request in the envelope, now or later."""
        try:
            inner = self._opened(call)
        except Refused as refused:
            return EnvelopeResponse(error_code=refused.code)
        answer = self._registry.answer(inner)
        assert answer is not None, "every administrative request has an answer"
        if isinstance(answer, Wait):
            return answer.then(lambda response: _sealed(inner.header, response))
        return _sealed(inner.header, answer)

    def _opened(self, call: Call[EnvelopeRequest]) -> Call[Any]:
        """The call of the client: its request, header, principal and address."""
        envelope = call.request
        principal = read_principal(envelope.request_principal)
        peer = _address(envelope.client_host_address)
        header, request = self._request(memoryview(envelope.request_data))
        via = f"{call.session.principal.name} for {principal.type}:{principal.name}"
        return Call(request, header.api_version, header, call.now_ms, Session(peer, principal=principal), via)

    def _request(self, frame: memoryview) -> tuple[RequestHeader, Request]:
        # As in Kafka, a request that cannot be read gets UNSUPPORTED_VERSION; INVALID_REQUEST is for a wrong envelope.
        try:
            header, position = read_request_header(frame)
            if header.api_key not in self._forwardable:
                name = ApiKey(header.api_key).name
                raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is not forwarded: each node answers it")
            if not self._registry.serves(header.api_key, header.api_version):
                message = f"version {header.api_version} of API {header.api_key} is not served here"
                raise Refused(ErrorCode.UNSUPPORTED_VERSION, message)
            request, _end = APIS[header.api_key].request.decode(frame, position, header.api_version)
        except WireError as error:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION, f"the request in the envelope cannot be read: {error}"
            ) from error
        return header, request


def _address(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(data))
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, f"an address has 4 or 16 bytes, not {len(data)}") from error


def _sealed(header: RequestHeader, response: Response) -> EnvelopeResponse:
    # NOT_CONTROLLER is for the node that forwarded the request, which looks for the controller. No client sees it.
    if ErrorCode.NOT_CONTROLLER in codes_in(response):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    framed = frame_response(response, version=header.api_version, correlation_id=header.correlation_id)
    return EnvelopeResponse(response_data=_without_length(framed), error_code=ErrorCode.NONE)


def _without_length(parts: list[Part]) -> bytes:
    """A framed message without its length, because the envelope has its own length field."""
    (part,) = parts
    assert not isinstance(part, FileSlice), "a forwarded response has no records"
    return bytes(part[LENGTH_SIZE:])
