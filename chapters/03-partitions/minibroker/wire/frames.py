"""Frames: messages cut out of a stream of bytes by the length before each. A pure module.

A length is believed only up to a limit. Whoever reads a frame takes memory as its bytes arrive, not as the length
promises them.
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
