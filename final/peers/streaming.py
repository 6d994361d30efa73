"""The client of brokers that do not speak Kafka's protocol: it sends messages that were built before to a socket."""

import contextlib
import os
import shutil
import socket
from collections.abc import Callable
from typing import NamedTuple

from minibroker.bench import Case, launcher
from minibroker.bench.watching import until
from peers.stage import Work

BLOCK = 50
"""How many messages are sent at once. The number of messages of a round can be divided by it."""
WINDOW = 4_000
"""The most messages without an acknowledgement."""
_TIMEOUT_S = 30
_RECEIVED_BYTES_MAX = 1_048_576


class Publisher(NamedTuple):
    """A connection to a broker, with all that a round needs."""

    name: str
    about: str
    """What was measured: the version and the settings."""
    connection: socket.socket
    block: bytes
    """The bytes of `BLOCK` messages."""
    acks: Callable[[bytes], int]
    """Count the acknowledgements in the bytes that have arrived."""
    empty: Callable[[], None]
    """Remove all messages before a round."""
    pid: int
    """The process of the broker."""

    def case(self, work: Work) -> Case:
        """Send all messages, and wait for their acknowledgements."""
        return Case(
            self.name,
            lambda: self.publish(work.records),
            bytes_count=work.records * work.bytes,
            operations_count=work.records,
            series=self.name,
            before=self.empty,
            cpu_s=lambda: launcher.cpu_s(self.pid),
        )

    def publish(self, count: int) -> None:
        """Send messages, with a bounded number under way, until all are acknowledged."""
        sent = acked = 0
        while acked < count:
            while sent < count and sent - acked < WINDOW:
                self.connection.sendall(self.block)
                sent += BLOCK
            acked += self.acks(self.connection.recv(_RECEIVED_BYTES_MAX))


def find(program: str, folder: str) -> str | None:
    """A program, which Debian installs in a folder that not every PATH has."""
    return shutil.which(program, path=f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}")


def connect(port: int, name: str, *, seconds: float = _TIMEOUT_S) -> socket.socket:
    """Connect as soon as the server listens."""

    def attempt() -> socket.socket | None:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((launcher.HOST, port), timeout=_TIMEOUT_S)
        return None

    found = until(attempt, f"{name} accepts connections", seconds=seconds)
    assert found is not None
    return found
