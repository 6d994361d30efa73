"""Frames: messages cut out of a stream of bytes by the length before each. A pure module.

A length is believed only up to a limit, and memory is taken as bytes arrive, not as a length promises them.
"""

from struct import Struct as Packing

from minibroker.wire.errors import MalformedMessage

_LENGTH = Packing(">i")
LENGTH_SIZE = _LENGTH.size


def frame_length(prefix: bytes | bytearray | memoryview, bytes_max: int) -> int:
    """Read the four bytes before a frame."""
    (length,) = _LENGTH.unpack(prefix)
    if not 0 < length <= bytes_max:
        raise MalformedMessage(f"a frame of {length} bytes, a frame has 1 to {bytes_max} (socket.request.max.bytes)")
    return int(length)


class FrameReader:
    """Is fed what a connection receives, in any pieces; gives back whole frames.

    A frame is a view of memory of its own, which may be written to: the log stamps a batch where it lies.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._prefix = bytearray()
        self._frame = bytearray()
        self._missing = 0  # of the frame that is being read; 0 while its length is

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not self._prefix and not self._missing

    def feed(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """Take the next bytes; return the frames that they complete, without their lengths."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while view:
            if self._missing:
                view = self._take(view, frames)
            else:
                view = self._take_length(view)
        return frames

    def _take_length(self, view: memoryview) -> memoryview:
        wanted = LENGTH_SIZE - len(self._prefix)
        self._prefix += view[:wanted]
        if len(self._prefix) == LENGTH_SIZE:
            self._missing = frame_length(self._prefix, self.bytes_max)
            self._prefix = bytearray()
        return view[wanted:]

    def _take(self, view: memoryview, frames: list[memoryview]) -> memoryview:
        taken = view[: self._missing]
        self._frame += taken
        self._missing -= len(taken)
        if not self._missing:
            frames.append(memoryview(self._frame))
            self._frame = bytearray()
        return view[len(taken) :]
