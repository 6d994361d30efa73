"""The answers of a connection on their way out: small ones together in one send, a large one in pieces."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from minibroker.log.interfaces import FileSlice
from minibroker.transfer.sending import SMALL_BYTES, Maps, Sending, Transfer, read_whole
from minibroker.wire.headers import part_bytes
from minibroker.wire.schema import Part


class Way(NamedTuple):
    """How slices of files are sent, and the maps that all connections share."""

    transfer: Transfer
    maps: Maps


class Outbox:
    """Collects the answers of one event."""

    __slots__ = ("_answers", "_on_failed", "_on_progress", "_on_sent", "_transport", "_way", "bytes", "sending")

    def __init__(
        self,
        transport: asyncio.Transport,
        way: Way,
        *,
        on_progress: Callable[[], None],
        on_sent: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """`on_sent` is called when a large answer was sent, `on_progress` when the client has read a part of it."""
        self._transport = transport
        self._way = way
        self._on_progress = on_progress
        self._on_sent = on_sent
        self._on_failed = on_failed
        self._answers: list[bytes | bytearray | memoryview] = []
        self.sending: Sending | None = None
        """The large answer that is being sent. Until it is sent, no other answer may follow."""
        self.bytes = 0
        """The size of the answers that were collected."""

    def take(self, parts: list[Part]) -> None:
        """Collect an answer. A large one is sent piece by piece, and the answers after it wait."""
        if len(parts) == 1 and not isinstance(parts[0], FileSlice):
            # The answer to most requests is small and in memory.
            self._answers.append(parts[0])
            self.bytes += len(parts[0])
            return
        count = part_bytes(parts)
        if count > SMALL_BYTES:
            self._begin_sending(parts)
            return
        for part in parts:
            self._answers.append(read_whole(part) if isinstance(part, FileSlice) else part)
        self.bytes += count

    def _begin_sending(self, parts: list[Part]) -> None:
        self.sending = Sending(
            self._transport,
            [*self._answers, *(it for it in parts if not isinstance(it, FileSlice) or it.count)],
            transfer=self._way.transfer,
            maps=self._way.maps,
            on_progress=self._on_progress,
            on_sent=self._end_sending,
            on_failed=self._on_failed,
        )
        self._answers, self.bytes = [], 0

    def _end_sending(self) -> None:
        self.sending = None
        self._on_sent()

    def flush(self) -> None:
        """Send the answers that were collected, together. If a large answer is being sent, send its next piece."""
        if self.sending is not None:
            self.sending.go_on()
            return
        answers = self._answers
        if answers:
            self._answers, self.bytes = [], 0
            self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))

    def stop(self) -> None:
        """Send nothing more, because the connection is closed."""
        if self.sending is not None:
            self.sending.stop()
