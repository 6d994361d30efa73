"""A connection on asyncio's streams: frames in, frames out.

Each connection is a task that reads one frame, gets its answer, sends the answer, and only then reads the next frame.
So the answers of a connection come in the order of its requests. If a client does not read its answers, the server
reads no more of its requests. Backpressure needs no other code.

A connection has a read buffer, one request, and one answer, whose record sets are read from their files piece by piece.
Memory is allocated as bytes arrive, not for the length that a client announces.

Chapter 07 has another connection, which also uses `Server`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from minibroker.log.clock import monotonic_ms
from minibroker.log.interfaces import FileSlice
from minibroker.partitions.budget import Share
from minibroker.partitions.errors import Disconnect
from minibroker.partitions.registry import Deferred, Reply, Session
from minibroker.partitions.server import NewSession, Server, host_of, name_of
from minibroker.wire.frames import frame_length
from minibroker.wire.headers import part_bytes
from minibroker.wire.schema import Part, Response

log = logging.getLogger(__name__)

_PREFIX_BYTES = 4
_BUFFER_BYTES = 256 * 1024
_PIECE_BYTES = 1024 * 1024
_TOGETHER_BYTES_MAX = 256 * 1024
_REQUESTS_IN_A_ROW = 8
_SMALL_FRAME_BYTES = 64 * 1024
_PAUSE_STEP_MS = 100


def stream_connection(server: Server, new_session: NewSession) -> asyncio.BaseProtocol:
    """The protocol of a new connection."""

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = StreamConnection(server, reader, writer, new_session(name_of(writer.get_extra_info("peername"))))
        if server.enter(connection):
            protocol.on_gone = connection.on_gone
            connection.begin()
        else:
            connection.abort()

    protocol = _Protocol(asyncio.StreamReader(limit=_BUFFER_BYTES), begin)
    return protocol


class _Protocol(asyncio.StreamReaderProtocol):
    """asyncio's stream protocol, which also reports a client that disconnects while its request waits."""

    def __init__(
        self, reader: asyncio.StreamReader, begin: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
    ) -> None:
        super().__init__(reader, begin)
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


class StreamConnection:
    """The connection of one client."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: Session
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self.transport = writer.transport
        self.served_count = 0
        self.peer = session.peer
        self.address = host_of(self.peer)
        self.session = session
        self.trial = ""
        self.is_idle = True
        self.begun_ms = self.since_ms = monotonic_ms()
        self._answered: asyncio.Future[Response] | None = None
        """The answer of a request that waits, or None."""

    @property
    def is_parked(self) -> bool:
        """Whether a request waits for its answer."""
        return self._answered is not None

    def begin(self) -> None:
        """Serve the client in a task."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _task: self._server.leave(self))

    async def _run(self) -> None:
        """Serve one request after the other until either side closes the connection."""
        try:
            while not (self._server.is_stopping or self.session.is_over):
                await self._serve_one()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self._server.report(self.peer, error)
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
        length = frame_length(prefix, self._server.frame_bytes_max(self))
        outcome = await self._outcome(length)
        reply = outcome if isinstance(outcome, Reply) else await self._deferred(outcome)
        self.since_ms = monotonic_ms()
        await self._send(reply.parts)
        if self.session.pause_ms:
            await self._pause()
        # If all requests and answers fit into buffers, the code above never yields to the event loop. So yield now and
        # then, and after each long request or answer.
        self.served_count += 1
        if self.served_count % _REQUESTS_IN_A_ROW == 0 or max(length, part_bytes(reply.parts)) > _SMALL_FRAME_BYTES:
            await asyncio.sleep(0)

    async def _pause(self) -> None:
        """Read nothing for the time that a handler has set, unless the connection is closed meanwhile."""
        # The connection counts as idle, so that a server that stops can close it. Its idle time begins after the pause.
        self.is_idle, self.since_ms = True, monotonic_ms() + self.session.pause_ms
        end_ms, self.session.pause_ms = self.since_ms, 0
        while (left_ms := end_ms - monotonic_ms()) > 0 and not self.transport.is_closing():
            await asyncio.sleep(min(left_ms, _PAUSE_STEP_MS) / 1000)

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
        outcome = self._server.dispatch(self, frame)
        if isinstance(outcome, Reply):
            self._server.settle()
        return outcome

    async def _deferred(self, deferred: Deferred) -> Reply:
        """The answer to a request that must wait."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def complete(response: Response) -> None:
            if not answered.done():
                answered.set_result(response)

        def fail(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        self._answered = answered
        parked = self._server.park(deferred, complete, fail)
        self._server.settle()
        try:
            response = await answered
        finally:
            self._answered = None
            self._server.forget(parked)
        if deferred.wait.turn is None:
            return deferred.reply(response)
        # The answer of a request in slices is large. A thread encodes it, so that the loop can serve other clients.
        return await asyncio.get_running_loop().run_in_executor(None, deferred.reply, response)

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
            "clients wait for the memory that they take (queued.max.request.bytes)"
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
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionResetError("the client has disconnected"))

    def close_if_idle(self) -> None:
        """Close, unless a request is being read or answered."""
        if self.is_idle:
            self._writer.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()


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
