"""The answers of a connection, in the order of its requests.

    Reply    ──▶ outbox, or the end of the line if others wait
    Deferred ──▶ the table `Waiting`, and a place in line ──▶ outbox, when it is ready and the first in line

An answer may tell the client to wait, because of a quota. Then the next requests are not served for that time.
"""

import asyncio
from typing import Protocol

from minibroker.log.clock import monotonic_ms
from minibroker.partitions.registry import Deferred, Reply, Session
from minibroker.partitions.server import Server
from minibroker.transfer.arrivals import Arrival
from minibroker.transfer.buffers import LongFrame
from minibroker.transfer.line import Line, Place
from minibroker.transfer.outbox import Outbox, Way
from minibroker.wire.schema import Response


class Owner(Protocol):
    """The connection, as its answers see it."""

    def on_progress(self) -> None:
        """The client has read a part of an answer."""

    def on_advanced(self) -> None:
        """Answers that waited were sent."""

    def go_on(self) -> None:
        """The pause that a quota has set is over: serve requests again."""

    def abort(self) -> None:
        """Close the connection, because the client is refused."""

    def fail(self, error: Exception) -> None:
        """An answer could not be made or sent."""


class Answers:
    """The answers that wait, and those that are on their way."""

    def __init__(
        self,
        server: Server,
        session: Session,
        transport: asyncio.Transport,
        way: Way,
        owner: Owner,
    ) -> None:
        self._server = server
        self._session = session
        self._owner = owner
        self.outbox = self._outbox = Outbox(
            transport, way, on_progress=owner.on_progress, on_sent=self._on_sent, on_failed=owner.fail
        )
        self._line = Line()
        self._is_flush_due = False
        self._is_over = False
        self.is_paused = False
        """Whether the client must wait for a while, because of a quota."""
        self.paused_until_ms = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def is_blocked(self) -> bool:
        """Whether no request is served: a blocking one waits, a large answer is being sent, or a quota demands it."""
        return self._outbox.sending is not None or self.is_paused or (bool(self._line) and self._line.is_blocked)

    def add(self, outcome: Reply | Deferred, frame: LongFrame | None = None) -> None:
        """Add the answer to the next request. `frame` is the buffer of a long request, which can be used again."""
        is_held = isinstance(outcome, Deferred) and outcome.wait.is_blocking
        if isinstance(outcome, Deferred):
            self._park(outcome, frame if is_held else None)
        elif self._line:
            self._line.add().put(outcome)
        else:
            self._take(outcome)
        if frame is not None and not is_held:
            frame.give_back()

    def _take(self, reply: Reply) -> None:
        self._outbox.take(reply.parts)
        session = self._session
        if session.pause_ms:
            pause_ms, session.pause_ms = session.pause_ms, 0
            self._pause(pause_ms)

    def arrive(self, arrival: Arrival) -> None:
        """Serve a new client now or later, or close its connection later."""
        if arrival.is_refused:
            # No request of this client is served: the connection is closed at the end of the pause.
            self.is_paused = True
            asyncio.get_running_loop().call_later(arrival.delay_ms / 1000, self._owner.abort)
        elif arrival.delay_ms:
            self._pause(arrival.delay_ms)

    def _pause(self, pause_ms: int) -> None:
        """Serve no request for the time that a quota has set. Another answer may make the pause longer."""
        self.paused_until_ms = max(self.paused_until_ms, monotonic_ms() + pause_ms)
        if not self.is_paused:
            self.is_paused = True
            self._end_pause_later()

    def _end_pause_later(self) -> None:
        # The owner goes on in a turn of its own: a frame may be parsed now.
        left_ms = max(self.paused_until_ms - monotonic_ms(), 0)
        asyncio.get_running_loop().call_later(left_ms / 1000, self._end_pause)

    def _end_pause(self) -> None:
        if monotonic_ms() < self.paused_until_ms:
            self._end_pause_later()
            return
        self.is_paused = False
        self._owner.go_on()

    def _park(self, deferred: Deferred, frame: LongFrame | None) -> None:
        """Let a request wait for its answer. `frame` is used until then."""
        wait = deferred.wait
        place = self._line.add(is_blocking=wait.is_blocking)
        finish = self._on_answer if wait.turn is None else self._encode

        def complete(response: Response) -> None:
            if frame is not None:
                frame.give_back()
            finish(place, deferred, response)

        place.parked = self._server.park(deferred, complete, self._owner.fail)

    def _on_answer(self, place: Place, deferred: Deferred, response: Response) -> None:
        """The wait has ended. This is called while some other request is answered, so it must not parse a frame."""
        try:
            self._on_reply(place, deferred.reply(response))
        except Exception as error:
            self._owner.fail(error)

    def _encode(self, place: Place, deferred: Deferred, response: Response) -> None:
        """Encode a large answer on a thread, in slices, so that the event loop serves other clients meanwhile."""

        def on_encoded(encoded: asyncio.Future[Reply]) -> None:
            try:
                self._on_reply(place, encoded.result())
            except Exception as error:
                self._owner.fail(error)

        asyncio.get_running_loop().run_in_executor(None, deferred.reply, response).add_done_callback(on_encoded)

    def _on_reply(self, place: Place, reply: Reply) -> None:
        place.put(reply)
        if not self._is_over:
            self._advance()

    def _on_sent(self) -> None:
        """A large answer was sent, so the answers behind it may leave."""
        try:
            self._advance()
        except Exception as error:
            self._owner.fail(error)

    def _advance(self) -> None:
        """Send the answers at the head of the line that are ready. Answers that come together are sent together."""
        outbox, line = self._outbox, self._line
        # Answers leave in the order of their requests, and none may follow a large answer that is being sent.
        while line and outbox.sending is None and (reply := line.take()) is not None:
            self._take(reply)
        # While others wait in line, more may become ready in this turn of the event loop. Send them together, soon.
        if not line or outbox.sending is not None:
            outbox.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_late)
        self._owner.on_advanced()

    def _flush_late(self) -> None:
        self._is_flush_due = False
        if not self._is_over:
            self._outbox.flush()

    def end(self) -> None:
        """The connection is closed, so no more answers are sent, and requests that wait are forgotten."""
        self._is_over = True
        for parked in self._line.waits():
            self._server.forget(parked)
        self._line = Line()
        self._outbox.stop()
