"""One handler for each API, found by the key of a request. A pure module.

A handler is a plain function of a `Call`. It returns the response, or a `Wait` if the answer must wait, or None if the
client wants no answer. A handler never blocks. So a broker is a loop that calls one function after the other, and needs
no lock.

    frame ──▶ dispatch: header, fields ──▶ handler ──▶ response ──▶ Reply(parts)
                                              └──────▶ Wait ──────▶ Deferred, until it has a response

A package that serves an API adds its handler, and has a row for it in its access table (`access`). A second handler for
a key is refused, unless the first one was a stand-in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from minibroker.metadata.authority import Authority
from minibroker.metadata.decision import Command
from minibroker.partitions.errors import Disconnect, Overload
from minibroker.partitions.waiting import Wait
from minibroker.wire.apis import APIS, ApiKey
from minibroker.wire.codes import ErrorCode
from minibroker.wire.errors import TooManyElements, UnsupportedApi
from minibroker.wire.headers import RequestHeader, frame_response, read_request_header
from minibroker.wire.schema import Part, Request, Response
from minibroker.wire.tables.api_versions import ApiVersion, ApiVersionsResponse

M = TypeVar("M", bound=Request)
T = TypeVar("T")

_NODES_FACTOR = 5  # a node may send more elements, because it fetches all its partitions in one request

Answer = Response | Wait[Response] | None


class Principal(NamedTuple):
    """The user that makes a request, in Kafka's terms."""

    type: str
    name: str


ANONYMOUS = Principal("User", "ANONYMOUS")
"""A user that has not logged in. In this chapter there is no login, so every caller is anonymous."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One connection and its caller. A login (chapter 04) sets the principal."""

    peer: str
    """The address of the client."""
    listener: str = "PLAINTEXT"
    """The name of the listener by which the client has come."""
    needs_login: bool = False
    """Whether the caller must log in before anything else, because the listener demands it."""
    principal: Principal = ANONYMOUS
    node_id: int | None = None
    """The node that the caller has proved to be; None for a client. The client id of a request proves nothing."""
    is_over: bool = False
    """Whether the connection is closed after the next answer, because a login has failed."""
    pause_ms: int = 0
    """How long the connection reads no request after the next answer. A quota (chapter 07) sets it."""


@dataclass(slots=True)
class Call(Generic[M]):
    """One request and its version, header, time and caller."""

    request: M
    version: int
    header: RequestHeader
    now_ms: int
    session: Session
    via: str | None = None
    """The node that forwarded the request, or None. `session` is the client's in both cases."""
    size: int = 0
    """The bytes of the request, with its header."""

    def about(self, request: M) -> "Call[M]":
        """The same call with another request."""
        return Call(request, self.version, self.header, self.now_ms, self.session, self.via, self.size)


Handler = Callable[[Call[Any]], Answer]


@dataclass(slots=True)
class Reply:
    """The bytes of an answer, in parts. Record sets are slices of files, not read yet. With acks=0 there is no part."""

    parts: list[Part]


@dataclass(slots=True)
class Deferred:
    """An answer that must wait. Later, `reply` turns the response into bytes."""

    wait: Wait[Response]
    reply: Callable[[Response], Reply]


@dataclass(slots=True)
class _Entry:
    handler: Handler
    request: type[Request]
    min_version: int
    max_version: int
    advertised_from: int
    is_stand_in: bool


class Registry:
    """The handlers of a broker. ApiVersions announces their APIs and versions."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self.elements_max = 20_000
        """How many elements all arrays of a request may have together, minibroker.request.elements.max."""

    def add(
        self,
        key: ApiKey,
        handler: Handler,
        *,
        versions: tuple[int, int] | None = None,
        advertised_from: int | None = None,
        stand_in: bool = False,
    ) -> None:
        """Set the handler of an API, for all versions of its table or for some.

        A stand-in answers an API that some clients cannot do without, until a later chapter serves it fully.

        `advertised_from` announces a lower minimum version than is served. Some clients compress only if an old version
        of Produce is announced, although they never send it.
        """
        known = self._entries.get(key)
        assert known is None or known.is_stand_in, f"{key.name} has a handler already"
        api = APIS[key]
        least, most = versions or (api.min_version, api.max_version)
        assert api.min_version <= least <= most <= api.max_version, (
            f"{key.name} has no table for versions {least} to {most}"
        )
        advertised = least if advertised_from is None else advertised_from
        self._entries[key] = _Entry(handler, api.request, least, most, advertised, stand_in)

    def guard(self, guard: Callable[[ApiKey, Handler], Handler]) -> None:
        """Wrap every handler that was added so far. The guard of the last call sees a request first."""
        for key, entry in self._entries.items():
            entry.handler = guard(ApiKey(key), entry.handler)

    def known(self) -> list[ApiKey]:
        """The APIs that have a handler."""
        return [ApiKey(key) for key in self._entries]

    def ranges(self) -> list[ApiVersion]:
        """The versions that ApiVersions announces."""
        return [
            ApiVersion(api_key=key, min_version=entry.advertised_from, max_version=entry.max_version)
            for key, entry in sorted(self._entries.items())
        ]

    def serves(self, key: int, version: int) -> bool:
        """Whether a version of an API has a handler."""
        entry = self._entries.get(key)
        return entry is not None and entry.min_version <= version <= entry.max_version

    def answer(self, call: Call[Any]) -> Answer:
        """The handler's answer to a request that was forwarded in an envelope. Its API must have a handler."""
        return self._entries[call.header.api_key].handler(call)

    def dispatch(self, frame: memoryview, *, now_ms: int, session: Session) -> Reply | Deferred:
        """Answer one request, now or later. The error of a request that cannot be decoded closes the connection."""
        try:
            header, position = read_request_header(frame)
        except UnsupportedApi as error:
            return self._unsupported(error.header)
        entry = self._entries.get(header.api_key)
        version = header.api_version
        if entry is None or not entry.min_version <= version <= entry.max_version:
            return self._unsupported(header)
        # Bytes after the request are ignored, as in Kafka: librdkafka sends some.
        elements_max = self.elements_max if session.node_id is None else _NODES_FACTOR * self.elements_max
        try:
            request, _end = entry.request.decode_at_most(frame, position, version, elements_max=elements_max)
        except TooManyElements as error:
            raise Overload(
                f"closed: {entry.request.__name__} v{version} of {len(frame)} bytes: {error} "
                f"(minibroker.request.elements.max={self.elements_max})"
            ) from error
        answer = entry.handler(Call(request, version, header, now_ms, session, None, len(frame)))
        correlation_id = header.correlation_id
        if answer is None:
            return Reply([])
        if isinstance(answer, Wait):
            return Deferred(answer, partial(_reply, version, correlation_id))
        return Reply(frame_response(answer, version=version, correlation_id=correlation_id))

    def _unsupported(self, header: RequestHeader) -> Reply:
        """If the version of ApiVersions is too new, answer with the known versions. Other APIs have no such answer."""
        if header.api_key != ApiKey.API_VERSIONS or ApiKey.API_VERSIONS not in self._entries:
            raise Disconnect(f"no handler for API {header.api_key} version {header.api_version}")
        known = [it for it in self.ranges() if it.api_key == ApiKey.API_VERSIONS]
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=known)
        return _reply(0, header.correlation_id, response)


def _reply(version: int, correlation_id: int, response: Response) -> Reply:
    return Reply(frame_response(response, version=version, correlation_id=correlation_id))


def propose(
    authority: Authority,
    command: Command[T],
    respond: Callable[[T], Response],
    *,
    timeout_ms: int,
    expire: Callable[[], Response] | None = None,
) -> Answer:
    """Propose a change of the metadata, and answer when it is committed, which may be immediately.

    A change that times out may still be committed. The answer says so, unless `expire` gives another answer.
    """
    proposal = authority.propose(command)
    if proposal.is_done:
        return respond(proposal.result)

    def too_late() -> Response:
        return respond(
            command.refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the change was not committed within {timeout_ms} ms, but may still be committed",
            )
        )

    return Wait(
        keys=(proposal,),
        timeout_ms=timeout_ms,
        attempt=lambda: respond(proposal.result) if proposal.is_done else None,
        expire=expire or too_late,
    )
