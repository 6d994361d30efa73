"""The asyncio transport: one connection per node, any number of requests in flight on each.

It runs the same dialogues over the same connection core as the blocking one. Nodes talk to each other through it. A
broker answers the requests of a connection in order, so a fetch that waits for records holds up what is behind it: who
fetches from a node and has other things to ask of it takes a second client.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from minibroker.client.connection import Connection
from minibroker.client.core import CONTROLLER, Ask, ClientConfig, Core, Dialogue
from minibroker.client.errors import (
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    TurnedAway,
)
from minibroker.client.reasons import no_broker, why
from minibroker.client.retries import RetryPolicy
from minibroker.client.routing import Address, parse_addresses
from minibroker.log.clock import precise_ms
from minibroker.log.interfaces import FileSlice
from minibroker.wire.apis import APIS
from minibroker.wire.schema import Part, Request
from minibroker.wire.tables.metadata import MetadataResponse

__all__ = ["CONTROLLER", "AsyncClient", "AsyncLink"]

T = TypeVar("T")


class AsyncLink(asyncio.BufferedProtocol):
    """One connection: bytes are received where the core wants them, and each answer wakes who asked."""

    def __init__(self, address: Address, config: ClientConfig) -> None:
        self.address = address
        self._connection = Connection(
            client_id=config.client_id, peer=str(address), response_bytes_max=config.response_bytes_max
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._error: ClientError | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._error is None

    async def ready(self) -> None:
        """Return once the versions are agreed on."""
        await self._ready

    async def send(self, message: Request, *, version_max: int | None = None, expects_response: bool = True) -> Any:
        """Send a request and wait for its response; others may be in flight before and behind it."""
        await self._may_write.wait()
        if self._error is not None:
            raise ConnectionLost(str(self._error)) from self._error
        sent = self._connection.request(message, version_max=version_max, expects_response=expects_response)
        if not expects_response:
            self._write(sent.parts)
            return None
        answer = self._waiting[sent.correlation_id] = asyncio.get_running_loop().create_future()
        self._write(sent.parts)
        try:
            return await answer
        finally:
            # One who stopped waiting leaves no trace; an answer that comes later is dropped.
            self._waiting.pop(sent.correlation_id, None)

    def version_of(self, api_key: int) -> int:
        """The version of an API that requests on this link have."""
        return self._connection.version_of(api_key)

    def close(self, error: ClientError | None = None) -> None:
        """End the connection; who waits is told why."""
        self._fail(error or ClientClosed(f"the connection to {self.address} was closed"))

    def _write(self, parts: Iterable[Part]) -> None:
        assert self._transport is not None
        self._transport.writelines([part.read() if isinstance(part, FileSlice) else part for part in parts])

    def _fail(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
        for waiter in [self._ready, *self._waiting.values()]:
            if not waiter.done():
                waiter.set_exception(error)
        # Nobody may be waiting for this one any more.
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        self._may_write.set()

    # What asyncio calls ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to agree on versions."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._write(self._connection.greeting())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Lend the core's buffer."""
        return self._connection.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out the answers that are whole now."""
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
        """Close our side, too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        reason = why(exc) if isinstance(exc, OSError) else "closed by the other side"
        self._fail(ConnectionLost(f"the connection to {self.address} was lost ({reason})"))

    def pause_writing(self) -> None:
        """Let nobody send until the other side has read."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Undo `pause_writing`."""
        self._may_write.set()


class AsyncClient:
    """A cluster seen from one event loop."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "minibroker",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        retry: RetryPolicy | None = None,
    ) -> None:
        config = ClientConfig(
            client_id=client_id,
            timeout_ms=timeout_ms,
            connect_timeout_ms=min(connect_timeout_ms, timeout_ms),
            retry=retry or RetryPolicy(),
        )
        self.core = Core(parse_addresses(bootstrap_servers), config, clock=precise_ms, chance=random.random)
        self._links: dict[Address, AsyncLink] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._is_closed = False

    @property
    def config(self) -> ClientConfig:
        """The settings it was made with."""
        return self.core.config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; who waits for an answer is told."""
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()
        # The loop closes sockets in its next round.
        await asyncio.sleep(0)

    def hang_up(self) -> None:
        """End what is under way: who waits for an answer is told, and the next request opens a new connection."""
        for link in self._links.values():
            link.close(ConnectionLost(f"the connection to {link.address} was given up"))

    async def send(
        self,
        message: Request,
        *,
        node_id: int | None = None,
        timeout_ms: float | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
    ) -> Any:
        """Send one request, in the highest version that both sides know, and wait for its response."""
        wait_ms = self.config.timeout_ms if timeout_ms is None else timeout_ms
        link = await (self.any_link() if node_id is None else self.link(node_id))
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await link.send(message, version_max=version_max, expects_response=expects_response)
        except TimeoutError:
            # A broker answers in order: what is behind it on this connection would wait for it, too.
            link.close(ConnectionLost(f"{link.address} did not answer an earlier request in time"))
            name = APIS[message.schema.key or 0].name
            raise RequestTimedOut(
                f"{link.address} did not answer {name} within {wait_ms:.0f} ms: it may be overloaded or cut off, and"
                " may or may not have done what was asked"
            ) from None

    async def run(self, dialogue: Dialogue[T]) -> T:
        """Have a conversation of several requests."""
        try:
            order = next(dialogue)
            while True:
                try:
                    response = await self._obey(order)
                except ClientError as error:
                    order = dialogue.throw(error)
                else:
                    order = dialogue.send(response)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _obey(self, order: Any) -> Any:
        if isinstance(order, Ask):
            return await self.send(order.message, node_id=order.node_id, version_max=order.version_max)
        await asyncio.sleep(order.ms / 1000)
        return None

    async def metadata(
        self, topics: Iterable[str] | None = None, *, allow_auto_topic_creation: bool = False
    ) -> MetadataResponse:
        """What any node says of the cluster and of some topics, all if none are named."""
        return await self.run(self.core.metadata(topics, allow_auto_topic_creation=allow_auto_topic_creation))

    async def leader(self, topic: str, partition: int) -> int:
        """The id of the node that leads a partition."""
        return await self.run(self.core.leader(topic, partition))

    async def link(self, node_id: int) -> AsyncLink:
        """The connection to a node, made now if there is none."""
        found = await self.run(self.core.node(node_id))
        return await self._open(self.core.routes.nodes[found].address)

    async def any_link(self) -> AsyncLink:
        """A connection to any node: one that is there, or to the first that answers."""
        reasons: list[BrokerUnavailable] = []
        places = [address for _node_id, address in self.core.routes.addresses()]
        for address in sorted(places, key=lambda it: it not in self._links):
            try:
                return await self._open(address)
            except BrokerUnavailable as error:
                reasons.append(error)
        raise BrokerUnavailable(no_broker(reasons))

    async def _open(self, address: Address) -> AsyncLink:
        # Two that want the same node at the same time get the same connection.
        async with self._opening.setdefault(address, asyncio.Lock()):
            if self._is_closed:
                raise ClientClosed("this client is closed: make a new one")
            link = self._links.get(address)
            if link is None or not link.is_open:
                link = self._links[address] = await self._connect(address)
            return link

    async def _connect(self, address: Address) -> AsyncLink:
        loop = asyncio.get_running_loop()
        link: AsyncLink | None = None
        try:
            async with asyncio.timeout(self.config.connect_timeout_ms / 1000):
                _, link = await loop.create_connection(lambda: AsyncLink(address, self.config), *address)
                await link.ready()
        except (OSError, ConnectionLost) as error:
            if link is not None:
                link.close()
            if isinstance(error, ConnectionLost):
                raise TurnedAway(address) from error
            raise BrokerUnavailable(f"no broker answers at {address} ({why(error)})") from error
        except asyncio.CancelledError:
            # Who wanted it does not any more.
            if link is not None:
                link.close()
            raise
        return link
