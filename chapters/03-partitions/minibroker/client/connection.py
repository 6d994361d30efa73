"""One connection to one broker, with correlation ids and version negotiation. A pure module.

The module does not use a socket. A transport sends the bytes that `greeting` and `request` return, receives into
`buffer`, and gets responses from `received`:

1. Send `greeting()`, receive, and repeat until the greeting is empty. This logs in, and negotiates the versions.
2. Afterwards `request(message)` returns a correlation id and the bytes to send.
3. `received(count)` returns each response with the correlation id of its request.

The versions are negotiated by ApiVersions, in the newest version that this client knows. A broker that does not know
this version answers in version 0, with error 35 and its own versions (KIP-511). Then the request is sent again in a
version that both know.

A connection with an `Authenticator` logs in first. A node that has not joined its cluster yet answers ApiVersions only
to other nodes. The login proves that this client is a node.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from minibroker.client.errors import BrokerError, UnexpectedResponse, UnsupportedByBroker
from minibroker.client.receiving import Receiver
from minibroker.wire.apis import APIS, Api, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import WireError
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Part, Request, decode_whole
from minibroker.wire.tables.api_versions import ApiVersionsRequest, ApiVersionsResponse

RESPONSE_BYTES_MAX = 256 * 1024 * 1024  # larger than any fetch, smaller than "HTTP" decoded as a length
SOFTWARE_NAME = "minibroker"
SOFTWARE_VERSION = "0.1.0"

_CORRELATION_BYTES = 4
_CORRELATION_MASK = 0x7FFFFFFF
_ERROR_CODE_BYTES = 2
_NEWEST_GREETING = APIS[ApiKey.API_VERSIONS].max_version


class Sent(NamedTuple):
    """A request to send: its bytes, and the correlation id of its response."""

    correlation_id: int
    parts: list[Part]


class Step(NamedTuple):
    """A request of a login. Its version is fixed, because the versions are negotiated later."""

    message: Request
    version: int


Authenticator = Callable[[], Generator[Step, Any, None]]
"""Begins a login, and returns a generator. The generator yields each request and is sent the response to it.

The generator ends when the login is complete. It raises a `ClientError` if the login fails."""


class _Pending(NamedTuple):
    """A request without a response yet."""

    api: Api
    version: int


class Connection:
    """The client's side of a connection. `peer` is the broker's name in messages."""

    def __init__(
        self,
        *,
        client_id: str | None,
        peer: str = "the broker",
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._client_id = client_id
        self._peer = peer
        self._receiver = Receiver(response_bytes_max)
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0
        self._ranges: dict[int, tuple[int, int]] = {}
        self._login = None if authenticator is None else authenticator()
        self._login_step = None if self._login is None else next(self._login)
        self._greeting_version: int | None = None if self._login else _NEWEST_GREETING
        self._greeted_with: set[int] = set()
        self.features: dict[str, int] = {}  # the finalized features of the cluster and their levels
        self.is_ready = False

    # Requests ---------------------------------------------------------------------------------------------------------

    def greeting(self) -> list[Part]:
        """The next request of the login or of the version negotiation, or an empty list if none is due."""
        if self._login_step is not None:
            (message, version), self._login_step = self._login_step, None
            return self._frame(message, APIS[_key_of(message)], version).parts
        if self._greeting_version is None:
            return []
        version, self._greeting_version = self._greeting_version, None
        self._greeted_with.add(version)
        greeting = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        return self._frame(greeting, APIS[ApiKey.API_VERSIONS], version).parts

    def request(self, message: Request, *, version_max: int | None = None, expects_response: bool = True) -> Sent:
        """Encode a request in the highest version that both sides know, at most `version_max`."""
        assert self.is_ready, "the versions are not negotiated yet"
        api = APIS[_key_of(message)]
        version = self.version_of(api.key, version_max=version_max)
        return self._frame(message, api, version, expects_response=expects_response)

    def version_of(self, api_key: int, *, version_max: int | None = None) -> int:
        """The highest version of an API that both sides know."""
        api = APIS[api_key]
        most = api.max_version if version_max is None else min(api.max_version, version_max)
        if api_key not in self._ranges:
            raise UnsupportedByBroker(f"{self._peer} does not serve {api.name}: it is an older or a different broker")
        low, high = self._ranges[api_key]
        version = min(most, high)
        if version < max(api.min_version, low):
            raise UnsupportedByBroker(
                f"{self._peer} serves {api.name} in versions {low} to {high}, but this client has {api.min_version} to"
                f" {most}: update the older of the two"
            )
        return version

    def _frame(self, message: Request, api: Api, version: int, *, expects_response: bool = True) -> Sent:
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & _CORRELATION_MASK
        try:
            parts = frame_request(message, version=version, correlation_id=correlation_id, client_id=self._client_id)
        except WireError as error:
            reason = f"{api.name} cannot be sent to {self._peer} in version {version}: {error}"
            raise UnsupportedByBroker(reason) from error
        if expects_response:
            self._pending[correlation_id] = _Pending(api, version)
        return Sent(correlation_id, parts)

    # Responses --------------------------------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """How many requests have no response yet."""
        return len(self._pending)

    def buffer(self) -> memoryview:
        """The buffer for the next bytes. It is never empty."""
        return self._receiver.buffer()

    def received(self, count: int) -> list[tuple[int, Any]]:
        """Process `count` new bytes in the buffer. Return the complete responses with their correlation ids."""
        responses = []
        for frame in self._receiver.received(count):
            response = self._on_frame(frame)
            if response is not None:
                responses.append(response)
        return responses

    def _on_frame(self, frame: memoryview) -> tuple[int, Any] | None:
        if len(frame) < _CORRELATION_BYTES:
            raise UnexpectedResponse(
                f"{self._peer} sent a response of {len(frame)} bytes, which is too short for a correlation id"
            )
        correlation_id = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        pending = self._pending.pop(correlation_id, None)
        if pending is None:
            raise UnexpectedResponse(
                f"{self._peer} sent a response with correlation id {correlation_id}, but none of the"
                f" {len(self._pending)} pending requests has this id"
            )
        if self._login is not None:
            self._on_login(self._login, self._decode(frame, pending))
            return None
        if not self.is_ready:
            self._on_versions(frame, pending)
            return None
        return correlation_id, self._decode(frame, pending)

    def _decode(self, frame: memoryview, pending: _Pending) -> Any:
        api, version = pending
        try:
            _correlation_id, position = read_response_header(api.key, version, frame)
            return decode_whole(api.response, frame, position, version)
        except WireError as error:
            raise UnexpectedResponse(
                f"{self._peer} sent an invalid response to {api.name} version {version}: {error}"
            ) from error

    def _on_login(self, login: Generator[Step, Any, None], response: Any) -> None:
        try:
            self._login_step = login.send(response)
        except StopIteration:
            self._login, self._greeting_version = None, _NEWEST_GREETING

    def _on_versions(self, frame: memoryview, pending: _Pending) -> None:
        code = _first_error_code(frame)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            # A response with this error is always in version 0.
            self._greet_again(self._decode(frame, _Pending(pending.api, 0)))
            return
        response: ApiVersionsResponse = self._decode(frame, pending)
        if code:
            raise BrokerError(code, about=f"{self._peer} answered ApiVersions with an error")
        self._ranges = {offered.api_key: (offered.min_version, offered.max_version) for offered in response.api_keys}
        self.features = {it.name: it.max_version_level for it in response.finalized_features}
        self.is_ready = True

    def _greet_again(self, response: ApiVersionsResponse) -> None:
        ranges = {offered.api_key: offered.max_version for offered in response.api_keys}
        version = min(ranges.get(ApiKey.API_VERSIONS, 0), APIS[ApiKey.API_VERSIONS].max_version)
        if version in self._greeted_with:
            raise UnsupportedByBroker(
                f"{self._peer} refuses ApiVersions in versions {sorted(self._greeted_with)}: no common version"
            )
        self._greeting_version = version


def _first_error_code(frame: memoryview) -> int:
    # In every version, the header of this response is only the correlation id. The error code follows it.
    code = frame[_CORRELATION_BYTES : _CORRELATION_BYTES + _ERROR_CODE_BYTES]
    return int.from_bytes(code, "big", signed=True)


def _key_of(message: Request) -> int:
    key = message.schema.key
    assert key is not None, f"{type(message).__name__} has no API key, so it cannot be sent"
    return key
