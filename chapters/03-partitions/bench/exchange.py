"""A client as cheap as possible: frames are built before the measurement, and the bytes of answers are only counted.

So the server is measured and not the client. Answers to the same request have the same length, and only that is checked
during the measurement. `ask` returns an answer to a caller that decodes it.
"""

import socket
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from minibroker.bench import children
from minibroker.bench.context import Context
from minibroker.bench.launcher import Server
from minibroker.bench.measure import Spread, percentile
from minibroker.bench.units import MIB

_PREFIX_BYTES = 4
_TIMEOUT_S = 30.0


class Latencies:
    """The time of each operation, by round. The first round is the warm-up and is ignored."""

    def __init__(self) -> None:
        self._rounds: list[array[int]] = []

    def begin_round(self) -> "array[int]":
        """A new list of nanoseconds, which the measurement fills."""
        self._rounds.append(array("q"))
        return self._rounds[-1]

    def percentile_us(self, percent: float) -> float:
        """A percentile of the times in microseconds; the median over the rounds."""
        rounds = self._rounds[1:] or self._rounds
        return Spread.of([percentile(sorted(values), percent) / 1000 for values in rounds]).median


def start_echo(context: Context) -> Server:
    """Start the bare server of `echo.py`, which sends every frame back."""
    return children.start(context, lambda _listen: [sys.executable, str(Path(__file__).with_name("echo.py"))])


class Exchange:
    """One blocking connection to a server."""

    def __init__(self, context: Context, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        context.on_close(self._socket.close)
        # A timeout would double the system calls, and a benchmark's frames are always answered.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(2 * MIB))

    def ask(self, request: bytes) -> bytes:
        """Send one request and return its answer, the length included."""
        self._socket.sendall(request)
        prefix = self._receive_exactly(_PREFIX_BYTES)
        return prefix + self._receive_exactly(int.from_bytes(prefix, "big"))

    def _receive_exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = self._socket.recv(count - len(received))
            if not piece:
                raise ConnectionError(f"the server closed the connection {count - len(received)} bytes before the end")
            received += piece
        return bytes(received)

    def discard(self, count: int) -> None:
        """Receive `count` bytes and drop them."""
        receive_into, buffer = self._socket.recv_into, self._buffer
        while count > 0:
            received = receive_into(buffer, min(count, len(buffer)))
            if received == 0:
                raise ConnectionError(f"the server closed the connection {count} bytes before the end")
            count -= received

    def repeat(
        self, request: bytes, answer_bytes: int, *, count: int, in_flight: int = 1, latencies: Latencies | None = None
    ) -> None:
        """Send a request `count` times, `in_flight` at once, and receive the answers of `answer_bytes` each."""
        clock, times = time.perf_counter_ns, latencies.begin_round() if latencies else None
        together = request * in_flight
        for _ in range(count // in_flight):
            begin = clock()
            self._socket.sendall(together)
            self.discard(answer_bytes * in_flight)
            if times is not None:
                times.append(clock() - begin)

    def each(self, requests: Sequence[bytes], answer_bytes: int, *, in_flight: int = 1) -> None:
        """Send different requests, `in_flight` ahead of the answers, which have `answer_bytes` each."""
        self._socket.sendall(b"".join(requests[:in_flight]))
        for request in requests[in_flight:]:
            self.discard(answer_bytes)
            self._socket.sendall(request)
        self.discard(answer_bytes * min(in_flight, len(requests)))
