"""Frames: each message in a stream of bytes has its length before it. A pure module.

A length above a limit is refused. A reader allocates memory as the bytes of a frame arrive, not when the length
arrives.
"""

from struct import Struct as Packing

from minibroker.wire.errors import MalformedMessage

_LENGTH = Packing(">i")
LENGTH_SIZE = _LENGTH.size


def frame_length(prefix: bytes | bytearray | memoryview, bytes_max: int) -> int:
    """Decode the length of a frame, the four bytes before it."""
    (length,) = _LENGTH.unpack(prefix)
    if not 0 < length <= bytes_max:
        raise MalformedMessage(f"a frame has {length} bytes, but must have 1 to {bytes_max} (socket.request.max.bytes)")
    return int(length)
