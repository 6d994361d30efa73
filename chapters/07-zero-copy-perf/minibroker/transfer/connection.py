"""A connection of the fast server: all frames of one readable event are answered with one send.

    socket ──▶ inbox ──▶ frame, frame, frame ──▶ handlers ──▶ answers ──▶ one send
                            └ too long for the inbox: received into its own buffer

A request that must wait is an entry in the table `Waiting`, not a task. Until its answer is sent, the connection parses
no further frame. The same holds while the client does not read its answers, while a large answer is sent, while the
budget has no room for a long request, and while a quota lets the client wait. What arrives meanwhile is kept, up to the
size of the inbox. Then the connection stops reading.

A client that sends many requests at once is served for a few milliseconds at a time, so that other clients have their
turn.
"""

import asyncio
import logging
from struct import Struct as Packing
from time import monotonic
from typing import NamedTuple, cast

from minibroker.log.clock import monotonic_ms
from minibroker.log.interfaces import FileSlice
from minibroker.partitions.budget import Share
from minibroker.partitions.errors import Disconnect, Overload
from minibroker.partitions.registry import Deferred, Reply, Session
from minibroker.partitions.server import Connect, NewSession, Server, host_of, name_of
from minibroker.partitions.waiting import Parked
from minibroker.transfer.arrivals import Arrival, Arrivals
from minibroker.transfer.buffers import INBOX_BYTES, Buffers, LongFrame
from minibroker.transfer.sending import PIECE_BYTES, SMALL_BYTES, Maps, Sending, Transfer, read_whole
from minibroker.wire.errors import MalformedMessage
from minibroker.wire.frames import LENGTH_SIZE, frame_length
from minibroker.wire.headers import part_bytes
from minibroker.wire.schema import Part, Response

log = logging.getLogger(__name__)

_LENGTH = Packing(">i")
_COPIED_BYTES_MAX = 8 * 1024
"""A frame of at most this size is copied out of the inbox, because a request that waits would keep the whole inbox."""
_KEPT_BYTES_MAX = INBOX_BYTES // 2
_TURN_S = 0.002
_TOGETHER_BYTES_MAX = 256 * 1024


class _Shared(NamedTuple):
    """What all connections of a server share."""

    buffers: Buffers
    maps: Maps
    transfer: Transfer
    arrivals: Arrivals | None


def fast_connection(transfer: Transfer, arrivals: Arrivals | None = None) -> Connect:
    """Make the protocols of a server's connections. `arrivals` limits how many come in a second."""
    shared = _Shared(Buffers(), Maps(), transfer, arrivals)
    return lambda server, new_session: FastConnection(server, new_session, shared)


class FastConnection(asyncio.BufferedProtocol):
    """One client."""

    transport: asyncio.Transport
    session: Session
    peer: str
    address: str

    def __init__(self, server: Server, new_session: NewSession, shared: _Shared) -> None:
        self._server = server
        self._new_session = new_session
        self._buffers, self._maps, self._transfer, self._arrivals = shared
        self.trial = ""
        self.served_count = 0
        self.begun_ms = self.since_ms = monotonic_ms()
        self._kept = b""
        """The bytes that arrived and were not parsed yet: a part of a frame, or whole frames while none is parsed."""
        self._long: LongFrame | None = None
        self._share: Share | None = None
        self._parked: Parked[Response] | None = None
        self.is_parked = False
        self._sending: Sending | None = None
        self._answers: list[bytes | bytearray | memoryview] = []
        """The answers that are sent together at the end of this event."""
        self._answers_bytes = 0
        self._is_busy = False
        """Whether no frame may be parsed now."""
        self._is_paused = False
        """Whether no frame may be parsed for a while, because of a quota."""
        self._pause_end_ms = 0
        self._is_reading = True
        self._is_full = False
        """Whether the socket takes no more bytes."""
        self._is_ended = False
        """Whether the client sends no more."""
        self._is_closing = False

    # Called by the event loop -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client has connected."""
        # The transports of uvloop have the methods of asyncio's, but are no subclass.
        self.transport = transport = cast("asyncio.Transport", transport)
        self.session = self._new_session(name_of(transport.get_extra_info("peername")))
        self.peer = self.session.peer
        self.address = host_of(self.peer)
        # The server parses nothing while the transport has bytes that the socket did not take.
        transport.set_write_buffer_limits(high=0)
        if not self._server.enter(self):
            self.abort()
        elif self._arrivals is not None:
            self._arrive(self._arrivals.judge(self.address, monotonic_ms()))

    def _arrive(self, arrival: Arrival) -> None:
        """Serve the client, now or later, or close the connection later."""
        if arrival.delay_ms:
            self.session.pause_ms = arrival.delay_ms
            self._pause()
            if arrival.is_refused:
                asyncio.get_running_loop().call_later(arrival.delay_ms / 1000, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next bytes go: into the long frame, or into the inbox, after the bytes that were kept."""
        if self._long is not None:
            return self._long.room(PIECE_BYTES)
        kept = len(self._kept)
        if not kept:
            return self._buffers.inbox
        inbox = self._buffers.inbox
        inbox[:kept] = self._kept
        return inbox[kept:]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._long is not None:
            self._on_long(self._long, nbytes)
            return
        kept = len(self._kept)
        if not kept:
            self.since_ms = monotonic_ms()
        inbox = self._buffers.inbox[: kept + nbytes]
        if self._is_busy:
            self._keep(inbox)
            return
        self._kept = b""
        self._serve(inbox)

    def eof_received(self) -> bool:
        """The client sends no more. A request that waits is dropped, and requests that were kept are answered first."""
        if self.is_parked or self._long is not None:
            self.abort()
        self._is_ended = True
        return self._is_busy and not (self._is_paused and not self._kept and self._sending is None)

    def pause_writing(self) -> None:
        """The socket takes no more bytes."""
        self._is_full = self._is_busy = True

    def resume_writing(self) -> None:
        """The socket has taken all bytes."""
        self._is_full = False
        self.since_ms = monotonic_ms()
        if self._sending is not None:
            self._sending.go_on()
        else:
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The connection was closed, by either side."""
        self._is_busy = self._is_closing = True
        if self._parked is not None:
            self._server.forget(self._parked)
        if self._sending is not None:
            self._sending.stop()
        self._end_share()
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
            self._fail(error)

    def _answer_frames(self, data: memoryview, position: int) -> int:
        """Answer whole frames, one after the other; return the position after them."""
        size, turn_end, bytes_max = len(data), monotonic() + _TURN_S, self._server.limits.request_bytes_max
        while size - position > LENGTH_SIZE:
            start = position + LENGTH_SIZE
            stop = start + _LENGTH.unpack_from(data, position)[0]
            if not start < stop <= size or stop - start > bytes_max:
                break
            position = stop
            self._answer(data[start:stop])
            if self._is_busy:
                break
            if monotonic() > turn_end or self._answers_bytes > _TOGETHER_BYTES_MAX:
                self._take_a_break()
                break
        return position

    def _answer(self, frame: memoryview) -> None:
        if len(frame) <= _COPIED_BYTES_MAX:
            frame = memoryview(bytearray(frame))
        outcome = self._server.dispatch(self, frame)
        self.served_count += 1
        if isinstance(outcome, Reply):
            self._take(outcome)
        else:
            if len(frame) > _COPIED_BYTES_MAX:
                self._buffers.renew()
            self._park(outcome)

    def _take_a_break(self) -> None:
        """Let the event loop serve other clients, then go on."""
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Parse again. This is called when the reason for which the connection was busy is gone."""
        if self._is_closing or self._is_full or self._is_paused or self.is_parked or self._sending is not None:
            return
        self._is_busy = False
        if self._server.is_stopping or self.session.is_over:
            self._close()
            return
        if self._kept:
            data, self._kept = memoryview(bytearray(self._kept)), b""
            self._serve(data)
        if self._is_ended and not self._is_busy:
            self._close()
        self._read_on()

    def _read_on(self) -> None:
        if not (self._is_reading or self._is_busy):
            self._is_reading = True
            self.transport.resume_reading()

    def _begin_frame(self, data: memoryview) -> None:
        """Keep the rest of the data, or begin to receive a frame that is too long for the inbox."""
        if len(data) >= LENGTH_SIZE and not self._is_busy:
            length = frame_length(data[:LENGTH_SIZE], self._server.frame_bytes_max(self))
            if LENGTH_SIZE + length > INBOX_BYTES:
                self._begin_long(length, data[LENGTH_SIZE:])
                return
        self._keep(data)

    def _keep(self, data: memoryview) -> None:
        self._kept = bytes(data)
        if self._is_busy and self._is_reading and len(data) > _KEPT_BYTES_MAX:
            self._is_reading = False
            self.transport.pause_reading()

    # Long frames ------------------------------------------------------------------------------------------------------

    def _begin_long(self, length: int, first: memoryview) -> None:
        self._share = share = self._server.budget.begin(self.address, length, lambda: self._cut_off(share))
        self._long = LongFrame(self._buffers, length, first)
        if first:
            self._pay(len(first))

    def _on_long(self, long: LongFrame, count: int) -> None:
        long.arrived += count
        self._pay(count)

    def _pay(self, count: int) -> None:
        """Take room in the budget for bytes that have arrived. If there is none, read no more until there is."""
        assert self._share is not None
        if self._server.budget.take(self._share, count, self._on_room):
            self._answer_long()
        elif self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def _on_room(self) -> None:
        asyncio.get_running_loop().call_soon(self._on_paid)

    def _on_paid(self) -> None:
        if self._is_closing:
            return
        self._answer_long()
        self._read_on()

    def _answer_long(self) -> None:
        long = self._long
        if long is None or not long.is_whole:
            return
        self._long = None
        try:
            outcome = self._server.dispatch(self, long.view())
            self.served_count += 1
            if isinstance(outcome, Reply):
                self._take(outcome)
                long.give_back()
            else:
                self._park(outcome, long)
            self._end_share()
            self._flush()
            self._server.settle()
        except Exception as error:
            self._fail(error)

    def _end_share(self) -> None:
        if self._share is not None:
            share, self._share = self._share, None
            self._server.budget.end(share)

    def _cut_off(self, share: Share) -> None:
        self._server.warn(
            f"{self.peer}: closed: only {share.bytes} of the {share.length} bytes of a request have arrived, and other "
            "clients wait for their memory (queued.max.request.bytes)"
        )
        self.abort()

    # Answering --------------------------------------------------------------------------------------------------------

    def _take(self, reply: Reply) -> None:
        """Collect an answer. A large one ends the event: it is sent piece by piece."""
        count = part_bytes(reply.parts)
        if count > SMALL_BYTES and len(reply.parts) > 1:
            self._send_in_pieces(reply.parts)
        else:
            self._answers += [read_whole(it) if isinstance(it, FileSlice) else it for it in reply.parts]
            self._answers_bytes += count
        if self.session.is_over:
            self._is_busy = True
        if self.session.pause_ms:
            self._pause()

    def _send_in_pieces(self, parts: list[Part]) -> None:
        self._is_busy = True
        self._sending = Sending(
            self.transport,
            [*self._answers, *(it for it in parts if not isinstance(it, FileSlice) or it.count)],
            transfer=self._transfer,
            maps=self._maps,
            on_progress=self._on_progress,
            on_sent=self._on_sent,
            on_failed=self._fail,
        )
        self._answers, self._answers_bytes = [], 0

    def _flush(self) -> None:
        """Send the answers of this event together."""
        if self._sending is not None:
            self._sending.go_on()
            return
        answers = self._answers
        if answers:
            self._answers, self._answers_bytes = [], 0
            self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        if self.session.is_over or self._server.is_stopping:
            self._take_a_break()

    def _on_progress(self) -> None:
        self.since_ms = monotonic_ms()

    def _on_sent(self) -> None:
        """A large answer was sent."""
        self._sending = None
        self._on_answered()

    def _on_answered(self) -> None:
        """The answer for which the connection was busy is sent. Parse what was kept, soon."""
        if self._kept or not self._is_reading or self._is_ended or self.session.is_over or self._server.is_stopping:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._is_busy = self._is_full or self._is_paused

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _park(self, deferred: Deferred, long: LongFrame | None = None) -> None:
        """Let a request wait for its answer."""
        self._is_busy = self.is_parked = True

        def complete(response: Response) -> None:
            if long is not None:
                long.give_back()
            if deferred.wait.turn is None:
                self._on_answer(deferred, response)
            else:
                self._encode(deferred, response)

        self._parked = self._server.park(deferred, complete, self._fail)

    def _on_answer(self, deferred: Deferred, response: Response) -> None:
        """The wait is over. This is called while another request is answered, so it parses no frame."""
        try:
            self._on_reply(deferred.reply(response))
        except Exception as error:
            self._fail(error)

    def _encode(self, deferred: Deferred, response: Response) -> None:
        """Encode the answer of a request in slices on a thread, because it is large. The loop serves other clients."""

        def on_encoded(encoded: asyncio.Future[Reply]) -> None:
            try:
                self._on_reply(encoded.result())
            except Exception as error:
                self._fail(error)

        asyncio.get_running_loop().run_in_executor(None, deferred.reply, response).add_done_callback(on_encoded)

    def _on_reply(self, reply: Reply) -> None:
        self.is_parked, self._parked = False, None
        if self._is_closing:
            return
        self.since_ms = monotonic_ms()
        self._take(reply)
        self._flush()
        if self._sending is None:
            self._on_answered()

    # Pausing ----------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Parse nothing for the time that a quota has set. Another answer may make the pause longer."""
        pause_ms, self.session.pause_ms = self.session.pause_ms, 0
        self._pause_end_ms = max(self._pause_end_ms, monotonic_ms() + pause_ms)
        # A connection that pauses is not idle.
        self.since_ms = self._pause_end_ms
        if not self._is_paused:
            self._is_busy = self._is_paused = True
            self._resume_later()

    def _resume_later(self) -> None:
        left_ms = self._pause_end_ms - monotonic_ms()
        if left_ms > 0:
            asyncio.get_running_loop().call_later(left_ms / 1000, self._resume_later)
            return
        self._is_paused = False
        self._go_on()

    # Ending -----------------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether there is no request."""
        return not (self._is_busy or self._kept or self._long is not None)

    def close_if_idle(self) -> None:
        """Close, unless a request is being read or answered."""
        if self.is_idle or (self._is_paused and self._sending is None):
            self._close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = self._is_busy = True
        self.transport.abort()

    def _close(self) -> None:
        """Close when the answers were sent."""
        self._is_closing = self._is_busy = True
        self.transport.close()

    def _fail(self, error: Exception) -> None:
        """Close the connection because of an error, after the answers to earlier requests."""
        if isinstance(error, Overload):
            self._server.warn(f"{self.peer}: {error}")
        elif isinstance(error, MemoryError):
            self._server.warn(f"{self.peer}: closed: its request needs more memory than there is")
        elif isinstance(error, MalformedMessage | Disconnect | OSError):
            log.info("%s: closed: %s", self.peer, error)
        else:
            log.error("%s: closed because of a bug", self.peer, exc_info=error)
        if self._sending is not None:
            # A part of this answer may be sent, so nothing else may follow.
            self.abort()
            return
        if self._answers and not self._is_closing:
            self.transport.write(b"".join(self._answers))
        self._close()
