"""A TCP proxy between clients and a broker. It knows frames: it can record, withhold, tear and drop them.

A client that bootstraps through the proxy keeps using it: in every answer the broker's address is replaced by the
proxy's. Host and port follow each other in every API that names a node, and both addresses have the same length, so
bytes are exchanged in place and nothing has to be parsed.

    with Proxy(broker.address) as proxy:
        proxy.on_response = lambda exchange: Verdict.CUT if exchange.api_key == 0 else Verdict.PASS
"""

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HOST = "127.0.0.1"
LENGTH = struct.Struct(">i")
REQUEST_START = struct.Struct(">hhi")  # API key, API version, correlation id


def connections(listener: socket.socket) -> Iterator[socket.socket]:
    """Each client that comes, until the listener is closed."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        yield client


class Verdict(enum.Enum):
    """What happens to a frame."""

    PASS = enum.auto()
    DROP = enum.auto()  # it vanishes; the connection stays
    CUT = enum.auto()  # it vanishes, and the connection ends
    TEAR = enum.auto()  # half of it arrives, then the connection ends


@dataclass(frozen=True)
class Exchange:
    """A request, and its answer once there is one; both without their length field."""

    request: bytes
    response: bytes = b""
    link: "Link | None" = None

    @property
    def api_key(self) -> int:
        return int(REQUEST_START.unpack_from(self.request)[0])

    @property
    def api_version(self) -> int:
        return int(REQUEST_START.unpack_from(self.request)[1])

    @property
    def correlation_id(self) -> int:
        return int(REQUEST_START.unpack_from(self.request)[2])


def pass_all(exchange: Exchange) -> Verdict:
    return Verdict.PASS


@dataclass(eq=False)
class Link:
    """One client's connection, and the one to the broker that belongs to it."""

    client: socket.socket
    broker: socket.socket
    requests: dict[int, bytes] = field(default_factory=dict)

    def close(self) -> None:
        for end in (self.client, self.broker):
            # shutdown wakes the thread that reads; close alone would not.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Listens on a free port and forwards to one broker, frame by frame."""

    def __init__(self, broker_address: str, *, is_recording: bool = True) -> None:
        host, _, port = broker_address.rpartition(":")
        self.target = (host, int(port))
        self.on_request: Callable[[Exchange], Verdict] = pass_all
        self.on_response: Callable[[Exchange], Verdict] = pass_all
        self.requests: list[Exchange] = []
        self._is_recording = is_recording
        self.accepted = 0
        self._flows = threading.Event()
        self._flows.set()
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self._ours = HOST.encode() + LENGTH.pack(self._listener.getsockname()[1])
        self._theirs = host.encode() + LENGTH.pack(int(port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def withhold(self) -> None:
        """Hold back all answers from now on."""
        self._flows.clear()

    def release(self) -> None:
        """Send the answers that were held back."""
        self._flows.set()

    def answer(self, exchange: Exchange, *parts: bytes | bytearray | memoryview) -> None:
        """Answers a request that was dropped, in the broker's place; the parts begin with their length."""
        assert exchange.link is not None
        del exchange.link.requests[exchange.correlation_id]
        exchange.link.client.sendall(b"".join(parts))

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()

    def _accept(self) -> None:
        for client in connections(self._listener):
            self._open(client)

    def _open(self, client: socket.socket) -> None:
        try:
            link = Link(client, socket.create_connection(self.target, timeout=10))
        except OSError:
            client.close()
            return
        link.broker.settimeout(None)
        for end in (link.client, link.broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links.add(link)
            self.accepted += 1
        for pump in (self._pump_requests, self._pump_responses):
            threading.Thread(target=self._run, args=(pump, link), daemon=True).start()

    def _run(self, pump: Callable[[Link], None], link: Link) -> None:
        with contextlib.suppress(OSError):
            pump(link)
        link.close()
        with self._lock:
            self._links.discard(link)

    def _pump_requests(self, link: Link) -> None:
        while (frame := _frame(link.client)) is not None:
            exchange = Exchange(frame, link=link)
            if self._is_recording:
                self.requests.append(exchange)
            link.requests[exchange.correlation_id] = frame
            if not _obey(self.on_request(exchange), frame, link.broker):
                return

    def _pump_responses(self, link: Link) -> None:
        while (frame := _frame(link.broker)) is not None:
            request = link.requests.pop(LENGTH.unpack_from(frame)[0], bytes(REQUEST_START.size))
            self._flows.wait()
            frame = frame.replace(self._theirs, self._ours)
            if not _obey(self.on_response(Exchange(request, frame)), frame, link.client):
                return


def _obey(verdict: Verdict, frame: bytes, to: socket.socket) -> bool:
    """Carry out a verdict; true if the connection goes on."""
    if verdict is Verdict.PASS:
        to.sendall(LENGTH.pack(len(frame)) + frame)
    if verdict is Verdict.TEAR:
        to.sendall(LENGTH.pack(len(frame)) + frame[: len(frame) // 2])
    return verdict in (Verdict.PASS, Verdict.DROP)


def _frame(source: socket.socket) -> bytes | None:
    """The next frame without its length field; None if the connection ends first."""
    prefix = _exactly(source, LENGTH.size)
    return None if prefix is None else _exactly(source, LENGTH.unpack(prefix)[0])


def _exactly(source: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count > 0:
        part = source.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
