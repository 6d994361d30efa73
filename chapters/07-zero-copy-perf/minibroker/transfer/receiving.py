"""What a connection receives: whether it reads at all, and requests that are too long for the inbox."""

import asyncio
from collections.abc import Callable

from minibroker.partitions.server import Connection, Server
from minibroker.transfer.buffers import LongFrame


class Reading:
    """Whether the event loop reads from a socket."""

    __slots__ = ("_transport", "is_on")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_on = True

    def stop(self) -> None:
        """Leave further bytes in the buffers of the kernel. When they are full, the client cannot send any more."""
        if self.is_on:
            self.is_on = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.is_on:
            self.is_on = True
            self._transport.resume_reading()


class LongRequest:
    """A request whose bytes arrive one piece after the other. Each piece takes room in the budget."""

    def __init__(
        self,
        server: Server,
        connection: Connection,
        reading: Reading,
        frame: LongFrame,
        on_whole: Callable[[LongFrame], None],
    ) -> None:
        """`on_whole` is called when all bytes are here and there is room for them."""
        self.frame = frame
        self._budget = server.budget
        self._reading = reading
        self._on_whole = on_whole
        self._is_over = False
        self.is_waiting = False
        """Whether there is no room for the bytes that have arrived last. Until there is, nothing may be read."""

        def cut_off() -> None:
            server.warn(
                f"{connection.peer}: closed: only {share.bytes} of the {share.length} bytes of a request have arrived, "
                "and other clients wait for their memory (queued.max.request.bytes)"
            )
            connection.abort()

        self._share = share = server.budget.begin(connection.address, frame.length, cut_off)

    def pay(self, count: int) -> None:
        """Take room in the budget for bytes that have arrived. If there is none, read no more until there is."""
        if count and not self._budget.take(self._share, count, self._on_room):
            self.is_waiting = True
            self._reading.stop()
        elif self.frame.is_whole:
            self._complete()

    def _on_room(self) -> None:
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._is_over:
            return
        self.is_waiting = False
        self._reading.resume()
        if self.frame.is_whole:
            self._complete()

    def _complete(self) -> None:
        try:
            self._on_whole(self.frame)
        finally:
            self.end()

    def end(self) -> None:
        """End the share of a request that was dispatched, or whose client has gone. Its buffer may still be in use."""
        if not self._is_over:
            self._is_over = True
            self._budget.end(self._share)
