"""The server: frames in, frames out, on asyncio streams.

Each connection is a task that reads one frame, gets its answer, sends the answer, and only then reads the next frame.
So the answers of a connection come in the order of its requests. If a client does not read its answers, the server
reads no more of its requests. Backpressure needs no other code.

If there are too many connections, `places` decides which ones are served. The memory is bounded by their number. Each
has a read buffer, one request, and one answer, whose record sets are read from their files piece by piece. All
connections share a budget for large requests (`budget`). Memory is allocated as bytes arrive, not for the length that a
client announces.

Chapter 07 replaces this server by another, which also uses `Registry.dispatch` and `Waiting`.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from minibroker.log.clock import monotonic_ms, wall_clock_ms
from minibroker.log.interfaces import FileSlice
from minibroker.partitions.budget import Budget, Share
from minibroker.partitions.errors import Disconnect, Overload
from minibroker.partitions.places import LOGIN, Places, Verdict
from minibroker.partitions.rare_warning import RareWarning
from minibroker.partitions.registry import Deferred, Registry, Reply, Session
from minibroker.partitions.waiting import Parked, Turn, Waiting
from minibroker.wire.apis import ApiKey
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.frames import frame_length
from minibroker.wire.headers import part_bytes
from minibroker.wire.schema import Part, Response

log = logging.getLogger(__name__)

_PREFIX_BYTES = 4
_API_KEY_BYTES = 2
_BUFFER_BYTES = 256 * 1024
_PIECE_BYTES = 1024 * 1024
_TOGETHER_BYTES_MAX = 256 * 1024
_REQUESTS_IN_A_ROW = 8
_SMALL_FRAME_BYTES = 64 * 1024
_GRACE_S = 5.0
_SWEEP_MS = 500
_PAUSE_S = 0.005
_BETWEEN_SLICES_S = 0.001  # enough for a few turns of the event loop, which one request of another client needs
# A caller that must log in has not shown yet that it may use this node's memory (CVE-2022-34917).
_BEFORE_LOGIN_BYTES_MAX = 512 * 1024

NewSession = Callable[[str], Session]
"""Begins the session of a connection, given the address of the client."""


@dataclass(frozen=True)
class Limits:
    """The limits of the server, with Kafka's names."""

    request_bytes_max: int  # socket.request.max.bytes
    queued_bytes_max: int  # queued.max.request.bytes
    connections_max: int  # max.connections
    idle_ms_max: int  # connections.max.idle.ms
    connections_per_ip_max: int = 2**31 - 1  # max.connections.per.ip
    login_ms_max: int = 10_000  # after this time, a caller that must log in and has not done so is disconnected


class Tracer(Protocol):
    """Sees every frame. `minibroker serve --trace` prints them."""

    def on_request(self, peer: str, frame: memoryview) -> None:
        """A request has arrived. `frame` does not include the length."""

    def on_reply(self, peer: str, frame: memoryview, parts: list[Part]) -> None:
        """The answer to the request in `frame` is sent."""


class Server:
    """Accepts connections and serves each until it ends."""

    def __init__(
        self, registry: Registry, waiting: Waiting[Response], limits: Limits, *, tracer: Tracer | None = None
    ) -> None:
        self._registry = registry
        self._waiting = waiting
        self.limits = limits
        self._tracer = tracer
        self.budget = Budget(limits.queued_bytes_max)
        self._connections: set[_Connection] = set()
        self.places: Places[_Connection] = Places(lambda: registry.serves(ApiKey.SASL_HANDSHAKE, 1))
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.is_stopping = False
        waiting.on_turn = self._take_turns
        self._warning = RareWarning(log)

    async def start(self, bound: socket.socket, new_session: NewSession = Session, *, backlog: int = 50) -> None:
        """Accept connections on a bound socket. Called once for each listener."""
        loop, protocol = asyncio.get_running_loop(), partial(self._protocol, new_session)
        self._servers.append(await loop.create_server(protocol, sock=bound, backlog=backlog))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop accepting connections and requests, finish the requests in progress, then close all connections.

        A client that does not read its answer is disconnected after a few seconds.
        """
        self.is_stopping = True
        self.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        # Waiting requests are answered now, and idle connections are closed.
        self._waiting.end()
        for connection in list(self._connections):
            connection.close_if_idle()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE_S)
        for connection in list(self._connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Stop accepting connections. Connections that are open stay so."""
        for server in self._servers:
            server.close()

    # Connections ------------------------------------------------------------------------------------------------------

    def _protocol(self, new_session: NewSession) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
        return _Protocol(reader, partial(self._begin, new_session))

    def _begin(
        self,
        new_session: NewSession,
        protocol: "_Protocol",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        connection = _Connection(self, reader, writer, new_session(_name(writer.get_extra_info("peername"))))
        if not self._enter(connection):
            writer.transport.abort()
            return
        protocol.on_gone = connection.on_gone
        self._connections.add(connection)
        task = asyncio.create_task(connection.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _task: self._end(connection))

    def _enter(self, connection: "_Connection") -> bool:
        """Whether there is a place for a new connection. Another one may have to leave for it."""
        limits = self.limits
        entry = self.places.enter(
            connection,
            total_max=limits.connections_max,
            per_address_max=limits.connections_per_ip_max,
            now_ms=monotonic_ms(),
        )
        if entry.leaving is not None:
            self.warn(f"{entry.leaving.peer}: closed to make room for {connection.peer}: {entry.reason}")
            entry.leaving.abort()
            self.places.leave(entry.leaving)
        if entry.verdict is Verdict.ON_TRIAL:
            connection.trial = f"refused: {entry.reason}"
        elif entry.verdict is Verdict.CLOSED:
            self.warn(f"{connection.peer}: refused: {entry.reason}")
        return entry.verdict is not Verdict.CLOSED

    def _end(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self.places.leave(connection)

    async def _sweep(self) -> None:
        """Close connections without progress, again and again."""
        while True:
            shortest_ms = min(self.limits.idle_ms_max, self.limits.login_ms_max)
            await asyncio.sleep(min(max(shortest_ms / 4, 10), _SWEEP_MS) / 1000)
            now_ms = monotonic_ms()
            self._close_idle(now_ms)
            for connection in self.places.overdue(now_ms):
                self.warn(f"{connection.peer}: {connection.trial}")
                connection.abort()
            for share in self.budget.laggards(now_ms):
                share.close()

    def _close_idle(self, now_ms: int) -> None:
        """Close connections without a whole request, without a login, or whose client does not read its answer."""
        idle_ms_max, login_ms_max = self.limits.idle_ms_max, self.limits.login_ms_max
        for connection in list(self._connections):
            if connection.answered is None and now_ms - connection.since_ms > idle_ms_max:
                log.info(
                    "%s: closed after %d ms without a whole request or a read of its answer",
                    connection.peer,
                    idle_ms_max,
                )
                connection.abort()
            elif connection.session.needs_login and now_ms - connection.begun_ms > login_ms_max:
                log.info("%s: closed after %d ms without a login", connection.peer, login_ms_max)
                connection.abort()

    def warn(self, line: str) -> None:
        """Log a warning that clients can cause. Most are left out if there are many."""
        self._warning.say(monotonic_ms(), line)

    # Requests ---------------------------------------------------------------------------------------------------------

    def dispatch(self, session: Session, frame: memoryview) -> Reply | Deferred:
        """Answer a request, now or later, and then the waiting requests that it has woken.

        If the request itself must wait, `deferred` answers those, after it has parked the request.
        """
        if self._tracer is not None:
            self._tracer.on_request(session.peer, frame)
        outcome = self._registry.dispatch(frame, now_ms=wall_clock_ms(), session=session)
        if isinstance(outcome, Reply):
            self._waiting.settle()
        if self._tracer is not None:
            return self._traced(self._tracer, session.peer, frame, outcome)
        return outcome

    def _traced(self, tracer: Tracer, peer: str, frame: memoryview, outcome: Reply | Deferred) -> Reply | Deferred:
        def traced(reply: Reply) -> Reply:
            tracer.on_reply(peer, frame, reply.parts)
            return reply

        if isinstance(outcome, Reply):
            return traced(outcome)
        return Deferred(outcome.wait, lambda response: traced(outcome.reply(response)))

    async def deferred(self, connection: "_Connection", deferred: Deferred) -> Reply:
        """The answer to a request that must wait."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def complete(response: Response) -> None:
            if not answered.done():
                answered.set_result(response)

        def fail(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        parked = self._waiting.park(deferred.wait, complete, now_ms=monotonic_ms(), fail=fail)
        # This request is settled only now. A request that it has woken may append, and wake this one in turn: a fetch
        # that completes a write to one partition waits for another partition, too.
        self._waiting.settle()
        if self.is_stopping:
            self._waiting.end()
        self._arm()
        connection.answered = answered
        try:
            response = await answered
        finally:
            connection.answered = None
            self._waiting.forget(parked)
        if deferred.wait.turn is None:
            return deferred.reply(response)
        # The answer of a request in slices is large. A thread encodes it, so that the loop can serve other clients.
        return await asyncio.get_running_loop().run_in_executor(None, deferred.reply, response)

    def _take_turns(self, parked: Parked[Response], turn: Turn) -> None:
        """Wake a request in slices in turn after turn, until it is done. Other clients are served in between."""
        loop = asyncio.get_running_loop()

        def take_turn() -> None:
            if not (parked.is_over or turn.is_over):
                turn.is_due = True
                self._waiting.wake(turn)
                self._waiting.settle()
                again()

        def again() -> None:
            loop.call_later(_PAUSE_S if turn.is_pausing else _BETWEEN_SLICES_S, take_turn)

        again()

    def _arm(self) -> None:
        """Set the timer to the earliest deadline."""
        deadline_ms = self._waiting.next_deadline_ms
        if deadline_ms is None or (self._timer_ms is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - monotonic_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer_ms = None
        self._waiting.expire(monotonic_ms())
        self._waiting.settle()
        self._arm()


class _Protocol(asyncio.StreamReaderProtocol):
    """asyncio's stream protocol, which also reports a client that disconnects while its request waits."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        begin: Callable[["_Protocol", asyncio.StreamReader, asyncio.StreamWriter], None],
    ) -> None:
        super().__init__(reader, lambda reader, writer: begin(self, reader, writer))
        self.on_gone: Callable[[], None] = lambda: None

    def eof_received(self) -> bool:
        """The client sends no more, so it has disconnected."""
        super().eof_received()
        self.on_gone()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed, by either side."""
        super().connection_lost(exc)
        self.on_gone()


class _Connection:
    """One client."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._served = 0
        self.peer = session.peer
        self.address = _host(self.peer)
        self.session = session
        self.trial = ""
        """Why this connection may only log in as a node, or empty."""
        self.is_idle = True
        self.begun_ms = self.since_ms = monotonic_ms()
        self.answered: asyncio.Future[Response] | None = None
        """The answer of a request that waits, or None."""

    async def run(self) -> None:
        """Serve one request after the other until either side closes the connection."""
        try:
            while not (self._server.is_stopping or self.session.is_over):
                await self._serve_one()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Overload as error:
            self._server.warn(f"{self.peer}: {error}")
        except MemoryError:
            self._server.warn(f"{self.peer}: closed: its request needs more memory than there is")
        except (MalformedMessage, Disconnect) as error:
            log.info("%s: closed: %s", self.peer, error)
        except Exception:
            log.exception("%s: closed because of a bug", self.peer)
        finally:
            self._writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await self._writer.wait_closed()

    async def _serve_one(self) -> None:
        self.is_idle, self.since_ms = True, monotonic_ms()
        prefix = await self._reader.readexactly(_PREFIX_BYTES)
        # A request must be complete within the idle limit after its first bytes. So a client that sends one byte a
        # second does not keep its connection for ever.
        self.is_idle, self.since_ms = False, monotonic_ms()
        length = frame_length(prefix, self._frame_bytes_max)
        outcome = await self._outcome(length)
        reply = outcome if isinstance(outcome, Reply) else await self._server.deferred(self, outcome)
        self.since_ms = monotonic_ms()
        await self._send(reply.parts)
        # If all requests and answers fit into buffers, the code above never yields to the event loop. So yield now and
        # then, and after each long request or answer.
        self._served += 1
        if self._served % _REQUESTS_IN_A_ROW == 0 or max(length, part_bytes(reply.parts)) > _SMALL_FRAME_BYTES:
            await asyncio.sleep(0)

    @property
    def _frame_bytes_max(self) -> int:
        bytes_max = self._server.limits.request_bytes_max
        return min(bytes_max, _BEFORE_LOGIN_BYTES_MAX) if self.session.needs_login or self.trial else bytes_max

    async def _outcome(self, length: int) -> Reply | Deferred:
        """Read a frame and dispatch it. Its bytes count in the budget until its answer is ready or must wait."""
        if length <= _SMALL_FRAME_BYTES:
            return self._dispatch(await self._frame(length, None))
        budget = self._server.budget
        share = budget.begin(self.address, length, lambda: self._cut_off(share))
        try:
            return self._dispatch(await self._frame(length, share))
        finally:
            budget.end(share)

    def _dispatch(self, frame: memoryview) -> Reply | Deferred:
        if self.trial:
            if not self._server.places.is_on_trial(self):
                self.trial = ""
            elif int.from_bytes(frame[:_API_KEY_BYTES], "big") not in LOGIN:
                raise Overload(self.trial)
        return self._server.dispatch(self.session, frame)

    async def _frame(self, length: int, share: Share | None) -> memoryview:
        """The bytes of a frame. The buffer grows as they arrive. It is writable, so that batches can be stamped."""
        frame = bytearray()
        while len(frame) < length:
            piece = await self._reader.read(min(length - len(frame), _PIECE_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", length)
            if share is not None:
                await self._take(share, len(piece))
            frame += piece
        return memoryview(frame)

    def _cut_off(self, share: Share) -> None:
        self._server.warn(
            f"{self.peer}: closed: only {share.bytes} of the {share.length} bytes of a request have arrived, and other "
            "clients wait for their memory (queued.max.request.bytes)"
        )
        self.abort()

    async def _take(self, share: Share, count: int) -> None:
        """Wait until the budget has room for `count` more bytes."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resume() -> None:
            if not turn.done():
                turn.set_result(None)

        if not self._server.budget.take(share, count, resume):
            await turn

    async def _send(self, parts: list[Part]) -> None:
        """Send an answer: small parts together, slices of files piece by piece as the client reads them."""
        together: list[bytes | bytearray | memoryview] = []
        size = 0
        for part in parts:
            for piece in _pieces(part):
                if size + len(piece) > _TOGETHER_BYTES_MAX:
                    await self._write(together)
                    together, size = [], 0
                together.append(piece)
                size += len(piece)
        await self._write(together)

    async def _write(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        if pieces:
            self._writer.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            await self._writer.drain()
            self.since_ms = monotonic_ms()

    # Called by the server ---------------------------------------------------------------------------------------------

    def on_gone(self) -> None:
        """The client has disconnected. Drop its waiting request."""
        if self.answered is not None and not self.answered.done():
            self.answered.set_exception(ConnectionResetError("the client has disconnected"))

    def close_if_idle(self) -> None:
        """Close, unless a request is being read or answered."""
        if self.is_idle:
            self._writer.close()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()


def _pieces(part: Part) -> Iterator[bytes | bytearray | memoryview]:
    if not isinstance(part, FileSlice):
        yield part
        return
    sent = 0
    for piece in part.chunks(_PIECE_BYTES):
        sent += len(piece)
        yield piece
    if sent != part.count:
        # The length of the answer was sent already, so a client would misread a shorter answer.
        raise Disconnect(f"only {sent} of {part.count} bytes of a record set could be read")


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _name(address: object) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
