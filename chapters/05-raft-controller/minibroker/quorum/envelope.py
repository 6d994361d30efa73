"""A client's request in an envelope: how a node passes it on, and how the controller opens it (KIP-590). A pure module.

    Envelope    the request as the client sent it, with its header │ who the client is │ where it is
    answer      the response as the client is to have it, with its header │ or why the envelope was not opened

The controller answers as if the client had asked it: in the version, and to the correlation id, that are in the inner
header. What it must know of the client beyond that stands beside the request, so that the rights of a client, and its
quotas, need not be checked where it happened to connect. No client logs in yet: all are Kafka's `User:ANONYMOUS`.
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
from minibroker.partitions.registry import Answer, Call, Principal, Registry
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
    """On whose behalf a request is made: Kafka's `DefaultPrincipalData`, sent after two bytes of its version."""

    type: str = string(about="the kind of principal")
    name: str = string(about="its name")
    token_authenticated: bool = boolean(about="whether it has shown a delegation token")


def write_principal(principal: Principal) -> bytes:
    """A principal as Kafka's default builder writes it."""
    data = PrincipalData(type=principal.type, name=principal.name, token_authenticated=False)
    return _VERSION.pack(_PRINCIPAL_VERSION) + data.encode(_PRINCIPAL_VERSION)


def read_principal(data: bytes | None) -> Principal:
    """The same back; what is none is refused."""
    try:
        (version,) = _VERSION.unpack_from(data or b"")
        if version != _PRINCIPAL_VERSION:
            message = f"a principal of version {version}, known is {_PRINCIPAL_VERSION}"
            raise Refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, message)
        found = decode_whole(PrincipalData, memoryview(data or b""), _VERSION.size, version)
        return Principal(found.type, found.name)
    except (struct_error, WireError) as error:
        raise Refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"no principal: {error}") from error


# At the node that the client has asked --------------------------------------------------------------------------------


def wrap(call: Call[Request]) -> EnvelopeRequest:
    """A client's request, to be passed on."""
    header = call.header
    framed = frame_request(
        call.request, version=call.version, correlation_id=header.correlation_id, client_id=header.client_id
    )
    return EnvelopeRequest(
        request_data=_without_length(framed),
        request_principal=write_principal(call.principal),
        client_host_address=ipaddress.ip_address(call.peer.rpartition(":")[0]).packed,
    )


def unwrap(header: RequestHeader, envelope: EnvelopeResponse) -> Response:
    """The answer for the client that sent a request with this header; raises a `ClientError` if there is none."""
    code = envelope.error_code
    if code == ErrorCode.NOT_CONTROLLER:
        # As if it had not been reached: whoever decides by now is to be asked.
        raise BrokerUnavailable("the node that was asked does not decide")
    if code != ErrorCode.NONE or envelope.response_data is None:
        raise BrokerError(code, about="the controller did not open the envelope")
    frame = memoryview(envelope.response_data)
    try:
        correlation_id, position = read_response_header(header.api_key, header.api_version, frame)
        response = decode_whole(APIS[header.api_key].response, frame, position, header.api_version)
    except WireError as error:
        raise UnexpectedResponse(f"no response in the envelope: {error}") from error
    if correlation_id != header.correlation_id:
        raise UnexpectedResponse(f"the envelope answers request {correlation_id}, not {header.correlation_id}")
    return response


# At the controller ----------------------------------------------------------------------------------------------------


class Envelopes:
    """The handler of Envelope: opens it, and lets the handler of what is in it answer."""

    def __init__(self, registry: Registry, rows: Mapping[ApiKey, Access]) -> None:
        """`rows` say which APIs are for the controller: only these may be in an envelope."""
        self._registry = registry
        for_controller = {Place.CONTROLLER, Place.CONTROLLER_IF_ANY}
        self._forwardable = {key for key, row in rows.items() if for_controller & set(row.places)}

    def __call__(self, call: Call[EnvelopeRequest]) -> Answer:
        """Answer the request inside, now or later."""
        try:
            inner = self._opened(call)
        except Refused as refused:
            return EnvelopeResponse(error_code=refused.code)
        answer = self._registry.answer(inner)
        assert answer is not None, "every administrative request has an answer"
        if isinstance(answer, Wait):
            return _sealed_later(inner.header, answer)
        return _sealed(inner.header, answer)

    def _opened(self, call: Call[EnvelopeRequest]) -> Call[Any]:
        """The call as the client has made it."""
        envelope = call.request
        principal = read_principal(envelope.request_principal)
        peer = _address(envelope.client_host_address)
        header, request = self._request(memoryview(envelope.request_data))
        via = f"{call.header.client_id} for {principal.type}:{principal.name}"
        return Call(request, header.api_version, header, call.now_ms, peer, principal, via)

    def _request(self, frame: memoryview) -> tuple[RequestHeader, Request]:
        # What cannot be read has Kafka's code for that, UNSUPPORTED_VERSION: INVALID_REQUEST is for what is wrong with
        # the envelope itself.
        try:
            header, position = read_request_header(frame)
            if header.api_key not in self._forwardable:
                name = ApiKey(header.api_key).name
                raise Refused(ErrorCode.INVALID_REQUEST, f"{name} is not passed on: the node that is asked answers it")
            if not self._registry.serves(header.api_key, header.api_version):
                message = f"version {header.api_version} of API {header.api_key} is not served here"
                raise Refused(ErrorCode.UNSUPPORTED_VERSION, message)
            request, _end = APIS[header.api_key].request.decode(frame, position, header.api_version)
        except WireError as error:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"no request in the envelope: {error}") from error
        return header, request


def _address(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(data))
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{len(data)} bytes are no address: 4 or 16 are") from error


def _sealed_later(header: RequestHeader, wait: Wait[Response]) -> Wait[Response]:
    def attempt() -> Response | None:
        response = wait.attempt()
        return None if response is None else _sealed(header, response)

    return Wait(wait.keys, wait.timeout_ms, attempt, lambda: _sealed(header, wait.expire()))


def _sealed(header: RequestHeader, response: Response) -> EnvelopeResponse:
    # That another node decides is for the node that has asked: it asks that one, and the client never hears of it.
    if ErrorCode.NOT_CONTROLLER in codes_in(response):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    framed = frame_response(response, version=header.api_version, correlation_id=header.correlation_id)
    return EnvelopeResponse(response_data=_without_length(framed), error_code=ErrorCode.NONE)


def _without_length(parts: list[Part]) -> bytes:
    """A framed message that stands inside another one, which says its length."""
    (part,) = parts
    assert not isinstance(part, FileSlice), "no records are passed on"
    return bytes(part[LENGTH_SIZE:])
