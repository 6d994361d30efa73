"""An asyncio client for one address: one connection, any number of requests in flight.

Nodes use it to talk to each other. The first request opens the connection. If the connection is lost, the next request
opens another. A broker answers the requests of a connection in order, so a fetch that waits for records delays the
requests after it. So a node that fetches from a broker uses a second client for its other requests to that broker.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, cast

from minibroker.client.addresses import Address, parse_address
from minibroker.client.connection import Authenticator, Connection
from minibroker.client.errors import (
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectionLost,
    LoginFailed,
    RequestTimedOut,
    TurnedAway,
)
from minibroker.client.reasons import no_broker, unanswered, why
from minibroker.log.interfaces import FileSlice
from minibroker.wire.schema import Part, Request


class AsyncLink(asyncio.BufferedProtocol):
    """One connection. Bytes are received into its buffer, and each response wakes its caller."""

    def __init__(self, address: Address, client_id: str, authenticator: Authenticator | None = None) -> None:
        self.address = address
        self._connection = Connection(client_id=client_id, peer=str(address), authenticator=authenticator)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._deadlines: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        """One timer for all requests. Most are answered in time, so it is not set anew for each of them."""
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._error: ClientError | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None

    async def ready(self) -> None:
        """Wait until the login is complete and the versions are negotiated."""
        await self._ready

    async def send(
        self, message: Request, *, timeout_s: float, version_max: int | None = None, expects_response: bool = True
    ) -> Any:
        """Send a request and wait for its response. Other requests may be in flight at the same time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not self._may_write.is_set():
            await asyncio.wait_for(self._may_write.wait(), timeout_s)
        if self._error is not None:
            raise ConnectionLost(str(self._error)) from self._error
        sent = self._connection.request(message, version_max=version_max, expects_response=expects_response)
        if not expects_response:
            self._write(sent.parts)
            return None
        answer = self._waiting[sent.correlation_id] = loop.create_future()
        self._deadlines[sent.correlation_id] = deadline
        self._watch(deadline)
        self._write(sent.parts)
        try:
            return await answer
        finally:
            # If the caller has stopped waiting, its response is dropped when it arrives.
            self._waiting.pop(sent.correlation_id, None)
            self._deadlines.pop(sent.correlation_id, None)

    def _watch(self, deadline: float) -> None:
        """Set the timer to a deadline, unless it is set to an earlier one."""
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        """Fail the callers whose time is over."""
        self._timer, now = None, asyncio.get_running_loop().time()
        for correlation_id, deadline in self._deadlines.items():
            waiter = self._waiting[correlation_id]
            if deadline <= now and not waiter.done():
                waiter.set_exception(TimeoutError())
        later = [it for it in self._deadlines.values() if it > now]
        if later:
            self._watch(min(later))

    def close(self, error: ClientError | None = None) -> None:
        """End the connection. Every waiting caller gets the error."""
        self._fail(error or ClientClosed(f"the connection to {self.address} was closed"))

    def _write(self, parts: Iterable[Part]) -> None:
        assert self._transport is not None
        self._transport.writelines([part.read() if isinstance(part, FileSlice) else part for part in parts])

    def _fail(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        for waiter in [self._ready, *self._waiting.values()]:
            if not waiter.done():
                waiter.set_exception(error)
        # The caller of `ready` may have stopped waiting. An exception that is never retrieved would be logged.
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        self._may_write.set()

    # Called by asyncio ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to log in, or to negotiate versions."""
        self._transport = cast("asyncio.Transport", transport)
        self._write(self._connection.greeting())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """The buffer for the next bytes."""
        return self._connection.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Give each complete response to its caller."""
        try:
            responses = self._connection.received(nbytes)
            if greeting := self._connection.greeting():
                self._write(greeting)
        except ClientError as error:
            self._fail(error)
            return
        if self._connection.is_ready and not self._ready.done():
            self._ready.set_result(None)
        for correlation_id, response in responses:
            waiter = self._waiting.get(correlation_id)
            if waiter is not None and not waiter.done():
                waiter.set_result(response)

    def eof_received(self) -> bool:
        """The other side has closed the connection, so close this side, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every waiting caller."""
        reason = why(exc) if isinstance(exc, OSError) else "closed by the other side"
        self._fail(ConnectionLost(f"the connection to {self.address} was lost ({reason})"))

    def pause_writing(self) -> None:
        """Delay requests until the other side has read the pending bytes."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Send requests without delay again."""
        self._may_write.set()


class AsyncClient:
    """A client for one address, in one event loop."""

    def __init__(
        self,
        address: Address | str,
        *,
        client_id: str = "minibroker",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.address = parse_address(address) if isinstance(address, str) else address
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._connect_timeout_ms = min(connect_timeout_ms, timeout_ms)
        self._authenticator = authenticator
        self._link: AsyncLink | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Every waiting caller gets an error."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()
        # Wait for the next iteration of the event loop, which closes the socket.
        await asyncio.sleep(0)

    def hang_up(self) -> None:
        """End the connection and fail the waiting callers. The next request opens a new connection."""
        if self._link is not None:
            self._link.close(ConnectionLost(f"the connection to {self.address} was closed by this client"))

    async def send(
        self,
        message: Request,
        *,
        timeout_ms: float | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
    ) -> Any:
        """Send one request, in the highest version that both sides know, and wait for its response."""
        wait_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        link = await self._open()
        try:
            return await link.send(
                message, timeout_s=wait_ms / 1000, version_max=version_max, expects_response=expects_response
            )
        except TimeoutError:
            # A broker answers in order, so later requests on this connection would also wait for the missing answer.
            link.close(ConnectionLost(f"{self.address} did not answer an earlier request in time"))
            raise RequestTimedOut(unanswered(self.address, message, wait_ms)) from None

    async def _open(self) -> AsyncLink:
        if self._link is not None and self._link.is_open and not self._is_closed:
            return self._link
        # Concurrent requests share one connection, so only one of them opens it.
        async with self._opening:
            if self._is_closed:
                raise ClientClosed("this client is closed: make a new one")
            if self._link is None or not self._link.is_open:
                try:
                    self._link = await self._connect()
                except LoginFailed:
                    raise
                except BrokerUnavailable as error:
                    raise BrokerUnavailable(no_broker([error])) from error
            return self._link

    def _new_link(self) -> AsyncLink:
        return AsyncLink(self.address, self._client_id, self._authenticator)

    async def _connect(self) -> AsyncLink:
        loop = asyncio.get_running_loop()
        link: AsyncLink | None = None
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                _, link = await loop.create_connection(self._new_link, *self.address)
                await link.ready()
        except (OSError, ConnectionLost, asyncio.CancelledError) as error:
            if link is not None:
                link.close()
            if isinstance(error, ConnectionLost):
                raise TurnedAway(self.address) from error
            if isinstance(error, OSError):
                raise BrokerUnavailable(f"no broker answers at {self.address} ({why(error)})") from error
            raise
        return link
