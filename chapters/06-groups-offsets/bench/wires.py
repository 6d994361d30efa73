"""Raw connections of many members in one program: each sends a frame and waits for its answer, and bytes are counted.

So a thousand members cost little here, and the coordinator is measured and not its clients.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any, TypeVar

from minibroker.bench import Context
from minibroker.bench.watching import WAIT_S_MAX
from minibroker.wire.apis import APIS
from minibroker.wire.codes import ErrorCode
from minibroker.wire.headers import frame_request, read_response_header
from minibroker.wire.schema import Request, codes_in, decode_whole
from minibroker.wire.tables.find_coordinator import FindCoordinatorRequest

T = TypeVar("T")

_LENGTH = Struct(">i")
_RETRY_S = 0.02
_NOT_YET = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


@dataclass
class Traffic:
    """The requests of some connections, and the bytes of requests and answers."""

    requests: int = 0
    bytes_count: int = 0


class Wire(asyncio.Protocol):
    """One connection. A broker answers the requests of a connection in their order."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str, traffic: Traffic | None = None) -> "Wire":
        """Connect to a broker."""
        host, _colon, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _transport, wire = await loop.create_connection(lambda: cls(traffic or Traffic()), host, int(port))
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """No further answer comes."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error or ConnectionError("the broker has closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Hand each answer to the one that waits for it."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame, self._received = bytes(self._received[_LENGTH.size : end]), self._received[end:]
            self._traffic.bytes_count += end
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(memoryview(frame))

    def send(self, frame: bytes) -> "asyncio.Future[memoryview]":
        """Send a frame, and return the answer that comes for it, without its length."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the broker has closed the connection")
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._traffic.requests += 1
        self._traffic.bytes_count += len(frame)
        self._transport.write(frame)
        return future

    async def ask(self, request: Request, version: int) -> Any:
        """Send a request, and decode its answer."""
        return decoded(request, version, await self.send(framed(request, version)))

    async def insist(self, request: Request, version: int) -> Any:
        """Ask until the coordinator is ready."""
        until_s = asyncio.get_running_loop().time() + WAIT_S_MAX
        while True:
            answer = await self.ask(request, version)
            code = next((ErrorCode(it) for it in codes_in(answer) if it), ErrorCode.NONE)
            if code not in _NOT_YET:
                return answer
            if asyncio.get_running_loop().time() > until_s:
                raise TimeoutError(f"{type(request).__name__}: {code.name} for {WAIT_S_MAX:g} s")
            await asyncio.sleep(_RETRY_S)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


def framed(request: Request, version: int) -> bytes:
    """The bytes of a request, with its length."""
    parts = frame_request(request, version=version, correlation_id=7, client_id="bench")
    return b"".join(bytes(part) for part in parts if isinstance(part, bytes | bytearray | memoryview))


def decoded(request: Request, version: int, frame: memoryview) -> Any:
    """Decode the answer to a request."""
    key = request.schema.key
    assert key is not None
    _correlation_id, position = read_response_header(key, version, frame)
    return decode_whole(APIS[key].response, frame, position, version)


async def find_coordinator(address: str, key: str, key_type: int = 0) -> str:
    """The address of the coordinator of a group (0) or of a transactional id (1), as soon as there is one."""
    until_s = asyncio.get_running_loop().time() + WAIT_S_MAX
    while True:
        wire = await Wire.connect(address)
        try:
            answer = await wire.insist(FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), 4)
        except ConnectionError:
            # A node that knows no controller closes the connection, so that a client asks another node.
            if asyncio.get_running_loop().time() > until_s:
                raise
            await asyncio.sleep(_RETRY_S)
        else:
            (found,) = answer.coordinators
            return f"{found.host}:{found.port}"
        finally:
            wire.close()


class Crowd:
    """Many connections, and the event loop on which they live between two measurements."""

    def __init__(self, context: Context) -> None:
        self.traffic = Traffic()
        self.wires: list[Wire] = []
        self._loop = asyncio.new_event_loop()
        context.on_close(self._close)

    def run(self, work: Awaitable[T]) -> T:
        """Let the event loop run until this is done."""

        async def all_of_it() -> T:
            return await work

        return self._loop.run_until_complete(all_of_it())

    def connect(self, address: str, count: int) -> None:
        """Open more connections to a broker."""

        async def open_them() -> None:
            for _number in range(count):
                self.wires.append(await Wire.connect(address, self.traffic))

        self.run(open_them())

    def each(self, work: Callable[[int, Wire], Awaitable[T]]) -> list[T]:
        """Let every connection do its work at the same time."""

        async def all_of_it() -> list[T]:
            return list(await asyncio.gather(*(work(*it) for it in enumerate(self.wires))))

        return self.run(all_of_it())

    def _close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.run(asyncio.sleep(0))
        self._loop.close()


def no_errors(answers: Iterable[Any]) -> None:
    """Fail if one of the answers has an error."""
    bad = {ErrorCode(code).name for answer in answers for code in codes_in(answer) if code}
    if bad:
        raise AssertionError(f"a coordinator answered {', '.join(sorted(bad))}")
