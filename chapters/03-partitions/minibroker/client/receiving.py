"""Splits a stream of bytes into frames, without copying large ones. A pure module.

The transport receives into a buffer of this module. Small responses share one buffer. A larger response is received
into a buffer of exactly its size, so that its records are not copied afterwards.
"""

from minibroker.client.errors import UnexpectedResponse

LENGTH_BYTES = 4
SMALL_BYTES = 64 * 1024


class Receiver:
    """Splits a stream into frames of up to `bytes_max` bytes. Each frame has its length in four bytes before it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._small = memoryview(bytearray(SMALL_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    def buffer(self) -> memoryview:
        """The buffer for the next bytes. It is never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._small[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Process `count` new bytes in the buffer, and return the complete frames."""
        if self._large is None:
            self._filled += count
            return self._whole_frames()
        self._large_filled += count
        if self._large_filled < len(self._large):
            return []
        frame, self._large = self._large, None
        return [frame]

    def _whole_frames(self) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while self._filled - position >= LENGTH_BYTES:
            length = self._length(position)
            start = position + LENGTH_BYTES
            if self._filled - start < length:
                if length + LENGTH_BYTES > SMALL_BYTES:
                    self._begin_large(start, length)
                    return frames
                break
            # The buffer is reused, so a small frame is copied out of it.
            frames.append(memoryview(bytes(self._small[start : start + length])))
            position = start + length
        self._keep_from(position)
        return frames

    def _length(self, position: int) -> int:
        length = int.from_bytes(self._small[position : position + LENGTH_BYTES], "big", signed=True)
        if not 0 < length <= self._bytes_max:
            text = bytes(self._small[position : position + LENGTH_BYTES])
            raise UnexpectedResponse(
                f"a response of {length} bytes was announced (the bytes {text!r}; at most {self._bytes_max} are"
                " accepted): does this port speak the Kafka protocol, without TLS?"
            )
        return length

    def _begin_large(self, start: int, length: int) -> None:
        # Move the bytes that have arrived into a buffer for this frame. Its other bytes are received there directly.
        self._large = memoryview(bytearray(length))
        self._large_filled = self._filled - start
        self._large[: self._large_filled] = self._small[start : self._filled]
        self._filled = 0

    def _keep_from(self, position: int) -> None:
        left = self._filled - position
        if position and left:
            self._small[:left] = bytes(self._small[position : self._filled])
        self._filled = left
