"""Owns the cheapest client there is: frames built before the clock starts, answers counted and not looked into.

So the server is measured, and not the client. Answers to the same request have the same length, and that is all that
is checked while the clock runs; `ask` gives the first answer to a caller that wants to look into one.
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
    """How long each operation took, round by round; the first round is the warm-up and does not count."""

    def __init__(self) -> None:
        self._rounds: list[array[int]] = []

    def begin_round(self) -> "array[int]":
        """A new list of nanoseconds, to be filled while the clock runs."""
        self._rounds.append(array("q"))
        return self._rounds[-1]

    def percentile_us(self, percent: float) -> float:
        """The microseconds within which so many per cent of the operations ended; the median over the rounds."""
        rounds = self._rounds[1:] or self._rounds
        return Spread.of([percentile(sorted(values), percent) / 1000 for values in rounds]).median


def start_echo(context: Context) -> Server:
    """Start the bare server of `echo.py`, which sends every frame back."""
    return children.start(context, lambda _listen: [sys.executable, str(Path(__file__).with_name("echo.py"))])


class Exchange:
    """One connection to a server, blocking."""

    def __init__(self, context: Context, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        context.on_close(self._socket.close)
        # With a timeout every call would be two system calls; the frames of a benchmark are answered.
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
                raise ConnectionError(f"the server has hung up, {count - len(received)} bytes before the end")
            received += piece
        return bytes(received)

    def pass_by(self, count: int) -> None:
        """Receive so many bytes and forget them."""
        receive_into, buffer = self._socket.recv_into, self._buffer
        while count > 0:
            received = receive_into(buffer, min(count, len(buffer)))
            if received == 0:
                raise ConnectionError(f"the server has hung up, {count} bytes before the end")
            count -= received

    def repeat(
        self, request: bytes, answer_bytes: int, *, count: int, in_flight: int = 1, latencies: Latencies | None = None
    ) -> None:
        """Send a request so many times, some at once, and take the answers, each of so many bytes."""
        clock, times = time.perf_counter_ns, latencies.begin_round() if latencies else None
        together = request * in_flight
        for _ in range(count // in_flight):
            begin = clock()
            self._socket.sendall(together)
            self.pass_by(answer_bytes * in_flight)
            if times is not None:
                times.append(clock() - begin)

    def each(self, requests: Sequence[bytes], answer_bytes: int, *, in_flight: int = 1) -> None:
        """Send different requests, so many ahead of the answers, each of which has so many bytes."""
        self._socket.sendall(b"".join(requests[:in_flight]))
        for request in requests[in_flight:]:
            self.pass_by(answer_bytes)
            self._socket.sendall(request)
        self.pass_by(answer_bytes * min(in_flight, len(requests)))
