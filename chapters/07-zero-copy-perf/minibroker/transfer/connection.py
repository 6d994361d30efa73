"""A connection of the fast server: all frames of one readable event are answered with one send.

    socket ──▶ inbox ──▶ frame, frame, frame ──▶ handlers ──▶ answers ──▶ one send
                            └ too long for the inbox: received into its own buffer

No further frame is parsed while a blocking request waits (`line`), while the client does not read its answers, while a
large answer is sent, while the budget has no room for a long request, and while a quota makes the client wait. What
arrives meanwhile is kept, up to the size of the inbox. Then the connection stops reading. A client that sends many
requests at once is served for a few milliseconds at a time, so that other clients have their turn.
"""

import asyncio
from struct import Struct as Packing
from time import monotonic
from typing import cast

from minibroker.log.clock import monotonic_ms
from minibroker.partitions.server import Connect, NewSession, Server, host_of, name_of
from minibroker.transfer.answers import Answers
from minibroker.transfer.arrivals import Arrivals
from minibroker.transfer.buffers import INBOX_BYTES, Buffers, LongFrame
from minibroker.transfer.outbox import Way
from minibroker.transfer.receiving import LongRequest, Reading
from minibroker.transfer.sending import PIECE_BYTES, Maps, Transfer
from minibroker.wire.frames import LENGTH_SIZE, frame_length

_LENGTH = Packing(">i")
_COPIED_BYTES_MAX = 8 * 1024  # up to this size, a frame is copied, so that a request that waits does not keep the inbox
_KEPT_BYTES_MAX = INBOX_BYTES // 2
_TURN_S = 0.002
_TOGETHER_BYTES_MAX = 256 * 1024


def fast_connection(transfer: Transfer, arrivals: Arrivals | None = None) -> Connect:
    """Make the protocols of a server's connections. `arrivals` limits how many come in a second."""
    buffers, way = Buffers(), Way(transfer, Maps())
    return lambda server, new_session: FastConnection(server, new_session, buffers, way, arrivals)


class FastConnection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(
        self, server: Server, new_session: NewSession, buffers: Buffers, way: Way, arrivals: Arrivals | None
    ) -> None:
        self._server, self._new_session = server, new_session
        self._buffers, self._way, self._arrivals = buffers, way, arrivals
        self.trial, self.served_count = "", 0
        self.begun_ms = self.since_ms = monotonic_ms()
        self._kept = b""
        """The bytes that arrived and were not parsed yet: a part of a frame, or whole frames while none is parsed."""
        self._long: LongRequest | None = None
        self._is_busy = False  # no frame may be parsed now
        self._is_full = False  # the socket takes no more bytes
        self._is_ended = False  # the client sends no more
        self._is_closing = False

    # Called by the event loop -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected."""
        # The transports of uvloop have the methods of asyncio's, but are no subclass.
        self.transport = transport = cast("asyncio.Transport", transport)
        self.session = self._new_session(name_of(transport.get_extra_info("peername")))
        self._reading = Reading(transport)
        self._answers = Answers(self._server, self.session, transport, self._way, self)
        self._outbox = self._answers.outbox
        self.peer, self.address = self.session.peer, host_of(self.session.peer)
        # With this limit, `pause_writing` is called as soon as the socket does not take all bytes.
        transport.set_write_buffer_limits(high=0)
        if not self._server.enter(self):
            self.abort()
        elif self._arrivals is not None:
            self._answers.arrive(self._arrivals.judge(self.address, monotonic_ms()))
            self._is_busy = self._answers.is_paused

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go: into the long frame, or into the inbox, after the bytes that were kept."""
        if self._long is not None:
            return self._long.frame.room(PIECE_BYTES)
        inbox, kept = self._buffers.inbox, len(self._kept)
        if not kept:
            return inbox
        inbox[:kept] = self._kept
        return inbox[kept:]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._long is not None:
            self._long.frame.arrived += nbytes
            self._long.pay(nbytes)
            return
        kept = len(self._kept)
        if not kept:
            self.on_progress()
        inbox = self._buffers.inbox[: kept + nbytes]
        if self._is_busy:
            self._keep(inbox)
            return
        self._kept = b""
        self._serve(inbox)

    def eof_received(self) -> bool:
        """The client sends no more. Drop a request that waits. Stay open (return True) for requests that were kept."""
        if self.is_parked or self._long is not None:
            self.abort()
        self._is_ended = True
        return self._is_busy and not (self._answers.is_paused and not self._kept and not self._outbox.sending)

    def pause_writing(self) -> None:
        """The socket takes no more bytes."""
        self._is_full = self._is_busy = True

    def resume_writing(self) -> None:
        """The socket has taken all bytes. A large answer goes on with `outbox.flush()`; otherwise parsing goes on."""
        self._is_full = False
        self.on_progress()
        if self._outbox.sending:
            self._outbox.flush()
        else:
            self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection was closed, by either side."""
        self._is_busy = self._is_closing = True
        self._answers.end()
        if self._long is not None:
            self._long.end()
        self._server.leave(self)

    # Parsing ----------------------------------------------------------------------------------------------------------

    def _serve(self, data: memoryview) -> None:
        """Answer the frames in `data`, which is the inbox or a buffer that nothing else uses."""
        try:
            position = self._answer_frames(data, 0)
            if position < len(data):
                self._begin_frame(data[position:])
            self._flush()
            self._server.settle()
        except Exception as error:
            self.fail(error)

    def _answer_frames(self, data: memoryview, position: int) -> int:
        """Answer whole frames, one after the other; return the position after them."""
        size, turn_end, bytes_max = len(data), monotonic() + _TURN_S, self._server.limits.request_bytes_max
        while size - position > LENGTH_SIZE:
            # Stop before a frame that is not whole, or whose length cannot be right: the caller judges it.
            start = position + LENGTH_SIZE
            stop = start + _LENGTH.unpack_from(data, position)[0]
            if not start < stop <= size or stop - start > bytes_max:
                break
            position = stop
            # The inbox is used again, so a short frame is copied, into memory that the log can stamp.
            is_copied = stop - start <= _COPIED_BYTES_MAX
            self._answer(memoryview(bytearray(data[start:stop])) if is_copied else data[start:stop])
            # No frame is parsed while a request waits. If its frame was not copied, the request keeps the inbox.
            if self._is_busy:
                if not is_copied:
                    self._buffers.renew()
                break
            # A long turn, or many bytes of answers, end with a break, so that other clients have their turn.
            if monotonic() > turn_end or self._outbox.bytes > _TOGETHER_BYTES_MAX:
                self._take_a_break()
                break
        return position

    def _answer(self, frame: memoryview, long: LongFrame | None = None) -> None:
        """Answer one request. `long` is its buffer, if it has its own."""
        outcome = self._server.dispatch(self, frame)
        self.served_count += 1
        self._answers.add(outcome, long)
        if self._answers.is_blocked or self.session.is_over:
            self._rest()

    def _begin_frame(self, data: memoryview) -> None:
        """Keep the rest of the data, or begin to receive a frame that is too long for the inbox."""
        if len(data) >= LENGTH_SIZE and not self._is_busy:
            length = frame_length(data[:LENGTH_SIZE], self._server.frame_bytes_max(self))
            if LENGTH_SIZE + length > INBOX_BYTES:
                frame = LongFrame(self._buffers, length, data[LENGTH_SIZE:])
                self._long = LongRequest(self._server, self, self._reading, frame, self._answer_long)
                self._long.pay(frame.arrived)
                return
        self._keep(data)

    def _answer_long(self, frame: LongFrame) -> None:
        self._long = None
        try:
            self._answer(frame.view(), frame)
            self._flush()
            self._server.settle()
        except Exception as error:
            self.fail(error)

    # Backpressure -----------------------------------------------------------------------------------------------------

    def _keep(self, data: memoryview) -> None:
        self._kept = bytes(data)
        if self._is_busy and len(data) > _KEPT_BYTES_MAX:
            self._reading.stop()

    def _rest(self) -> None:
        """Parse nothing now. A connection that pauses is not idle."""
        self._is_busy = True
        self.since_ms = max(self.since_ms, self._answers.paused_until_ms)

    def _take_a_break(self) -> None:
        """Let the event loop serve other clients, then go on."""
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Parse again. This is called when a reason for which the connection was busy is gone."""
        if self._is_closing or self._is_full or self._answers.is_blocked:
            return
        if self._server.is_stopping or self.session.is_over:
            if not self.is_parked:
                self._close()
            return
        self._is_busy = False
        if self._kept:
            data, self._kept = memoryview(bytearray(self._kept)), b""
            self._serve(data)
        if self._is_ended and not self._is_busy:
            self._close()
        if not self._is_busy and not (self._long is not None and self._long.is_waiting):
            self._reading.resume()

    # Answering --------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send the answers of this event together. Then close soon if the session is over, or the server stops."""
        self._outbox.flush()
        if self.session.is_over or self._server.is_stopping:
            self._take_a_break()

    def on_progress(self) -> None:
        """The client has begun a request, or has read a part of an answer. A connection that pauses is not idle."""
        self.since_ms = max(monotonic_ms(), self._answers.paused_until_ms)

    def on_advanced(self) -> None:
        """Answers that waited were sent. If nothing else keeps the connection busy, parse what was kept, soon."""
        self.on_progress()
        is_left = self._is_busy and (self._kept or self._is_ended or not self._reading.is_on)
        if self._answers.is_blocked:
            self._rest()
        elif is_left or self.session.is_over or self._server.is_stopping:
            self._take_a_break()
        else:
            self._is_busy = self._is_full

    # Ending -----------------------------------------------------------------------------------------------------------

    @property
    def is_parked(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._answers)

    @property
    def is_idle(self) -> bool:
        """Whether there is no request: none is received, kept, waiting or being answered."""
        return not (self._is_busy or self.is_parked or self._kept or self._long is not None)

    def close_if_idle(self) -> None:
        """Close, unless a request is being read or answered. Requests that only a quota holds back are dropped."""
        if self.is_idle or (self._answers.is_paused and not self._outbox.sending):
            self._close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = self._is_busy = True
        self._answers.end()
        self.transport.abort()

    def _close(self) -> None:
        """Close when the answers were sent."""
        self._is_closing = self._is_busy = True
        self._answers.end()
        self.transport.close()

    def fail(self, error: Exception) -> None:
        """Close the connection because of an error, after the answers to earlier requests that are ready."""
        self._server.report(self.peer, error)
        if self._outbox.sending:
            # Part of the answer in `sending` may already be on the wire, so no other bytes can follow it.
            self.abort()
        elif not self._is_closing:
            self._outbox.flush()
            self._close()
