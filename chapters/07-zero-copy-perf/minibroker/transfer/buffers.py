"""The buffers into which the server receives requests. A pure module.

All connections share one small buffer, the inbox. The event loop receives into it and hands the bytes to the connection
at once, so no two connections use it at the same time. An idle connection has no buffer of its own.

A request that is too long for the inbox gets its own buffer, which grows as its bytes arrive. A client cannot make the
server allocate memory by announcing a length. Fresh memory is slow, because the kernel must clear it page by page. So a
few of these buffers are kept and used again.
"""

INBOX_BYTES = 64 * 1024
_FIRST_BYTES = 256 * 1024
_SPARE_BYTES = 1024 * 1024 + INBOX_BYTES  # the largest batch (default max.message.bytes) and the rest of its request
_SPARES_MAX = 4


class Buffers:
    """The inbox, and spare buffers for long requests."""

    __slots__ = ("_spares", "inbox")

    def __init__(self) -> None:
        self._spares: list[bytearray] = []
        self.renew()

    def renew(self) -> None:
        """Replace the inbox, because a request that waits still needs its bytes."""
        self.inbox = memoryview(bytearray(INBOX_BYTES))

    def take(self, length: int, arrived: int) -> bytearray:
        """A buffer for a request of `length` bytes, of which `arrived` are there."""
        if self._spares and length <= _SPARE_BYTES:
            return self._spares.pop()
        return bytearray(min(length, max(2 * arrived, _FIRST_BYTES)))

    def give_back(self, buffer: bytearray) -> None:
        """Nothing refers to this buffer any more."""
        if _SPARE_BYTES // 2 <= len(buffer) <= _SPARE_BYTES and len(self._spares) < _SPARES_MAX:
            self._spares.append(buffer)


class LongFrame:
    """A request in its own buffer."""

    __slots__ = ("_buffers", "arrived", "buffer", "length")

    def __init__(self, buffers: Buffers, length: int, first: memoryview) -> None:
        self._buffers = buffers
        self.length = length
        self.arrived = len(first)
        self.buffer = buffers.take(length, self.arrived)
        self.buffer[: self.arrived] = first

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived."""
        return self.arrived == self.length

    def room(self, bytes_max: int) -> memoryview:
        """Where the next bytes go, at most `bytes_max` of them."""
        # A full buffer grows with the bytes that have arrived, and keeps them; it is never longer than the frame.
        if self.arrived == len(self.buffer):
            grown = bytearray(min(self.length, 2 * self.arrived))
            grown[: self.arrived] = self.buffer
            self.buffer = grown
        stop = min(self.arrived + bytes_max, self.length, len(self.buffer))
        return memoryview(self.buffer)[self.arrived : stop]

    def view(self) -> memoryview:
        """The whole request."""
        return memoryview(self.buffer)[: self.length]

    def give_back(self) -> None:
        """The request was answered, so its buffer can be used again."""
        self._buffers.give_back(self.buffer)
