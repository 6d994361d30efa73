"""A stream of RabbitMQ, from Debian's package rabbitmq-server. Its confirmations name every message.

A frame of the stream protocol is a length in four bytes, a key, a version and the fields. The answer to a request
repeats the request's key with the highest bit set, and has a correlation id and a code.
"""

import os
import socket
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

from minibroker.bench import Context, launcher
from peers.streaming import BLOCK, WINDOW, Publisher, connect, find

NAME = "RabbitMQ stream"
PACKAGE = "rabbitmq-server"
STREAM = "bench"
OK = 1
DECLARE_PUBLISHER, PUBLISH, CONFIRM = 1, 2, 3
CREATE, DELETE, PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN = 13, 14, 17, 18, 19, 20, 21
_ANSWER = 0x8000
_PUBLISHER = 0
_START_S = 90
_HEADER = struct.Struct(">IHH")  # length, key, version


def publisher(context: Context, record_bytes: int) -> Publisher | None:
    """Start a server with a stream; None without the package."""
    program, mapper = find("rabbitmq-server", "/usr/lib/rabbitmq/bin"), find("epmd", "/usr/bin")
    return None if program is None or mapper is None else _started(context, program, mapper, record_bytes)


def _started(context: Context, program: str, mapper: str, record_bytes: int) -> Publisher:
    reserved = context.cleanup.enter_context(ExitStack())
    amqp, distribution, names, port = (launcher.reserve_port(reserved) for _listener in range(4))
    folder = context.directory / "rabbitmq"
    folder.mkdir()
    environment = _environment(folder, amqp=amqp, distribution=distribution, names=names, port=port)
    # Erlang would start this service of names in the background, and leave it running.
    _child(context, [mapper, "-address", launcher.HOST, "-port", str(names)], environment)
    process = _child(context, [program], environment)
    connection = _Connection(context.cleanup.enter_context(connect(port, program, seconds=_START_S)))
    version = connection.log_in()
    connection.make_stream()
    return Publisher(
        NAME,
        f"RabbitMQ {version}: one stream, {WINDOW} messages under way.",
        connection.socket,
        publishframe(record_bytes),
        Confirmations().count,
        connection.empty,
        process.pid,
    )


def _child(context: Context, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that ends with the context. Its input stays open, because Erlang ends with its input."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    context.cleanup.enter_context(process)
    context.on_close(process.kill)
    return process


def _environment(folder: Path, *, amqp: int, distribution: int, names: int, port: int) -> dict[str, str]:
    """All that the server would otherwise keep in folders of the system, and its ports."""
    plugins, config = folder / "enabled_plugins", folder / "rabbitmq.conf"
    plugins.write_text("[rabbitmq_stream].")
    config.write_text(f"stream.listeners.tcp.1 = {launcher.HOST}:{port}\n")
    return os.environ | {
        "HOME": str(folder),
        "RABBITMQ_ALLOW_INPUT": "1",  # the server is then the process that was started, and no child of it
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": launcher.HOST,
        "RABBITMQ_NODE_PORT": str(amqp),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_ADDRESS": launcher.HOST,
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
    }


class Confirmations:
    """Counts the messages that the server confirms."""

    def __init__(self) -> None:
        self._tail = b""

    def count(self, arrived: bytes) -> int:
        """How many messages the frames confirm. The last frame may be cut: the rest of it comes with the next call."""
        data, position, count = self._tail + arrived, 0, 0
        while len(data) - position >= _HEADER.size:
            size, key, _version = _HEADER.unpack_from(data, position)
            assert key == CONFIRM, f"a frame with key {key:#x} instead of a confirmation"
            end = position + 4 + size
            if end > len(data):
                break
            count += struct.unpack_from(">BI", data, position + _HEADER.size)[1]
            position = end
        self._tail = data[position:]
        return count


class _Connection:
    """A client of the stream protocol."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def log_in(self) -> str:
        """Log in as the user that only local clients may use; return the version of the server."""
        properties = self._ask(PROPERTIES, struct.pack(">I", 0))
        self._ask(HANDSHAKE, b"")
        self._ask(AUTHENTICATE, _string("PLAIN") + _bytes(b"\0guest\0guest"))
        key, limits = self._receive()
        assert key == TUNE, key
        self.socket.sendall(frame(TUNE, limits))
        self._ask(OPEN, _string("/"))
        after = properties[properties.index(b"version") + len(b"version") :]
        (size,) = struct.unpack_from(">H", after)
        return after[2 : 2 + size].decode()

    def make_stream(self) -> None:
        """Create the stream, and begin to publish to it."""
        self._ask(CREATE, _string(STREAM) + struct.pack(">I", 0))
        self._ask(DECLARE_PUBLISHER, struct.pack(">B", _PUBLISHER) + _string("") + _string(STREAM))

    def empty(self) -> None:
        """Replace the stream by an empty one."""
        self._ask(DELETE, _string(STREAM))
        self.make_stream()

    def _ask(self, key: int, fields: bytes) -> bytes:
        """Send a request, and return the fields of its answer after the code."""
        self.socket.sendall(frame(key, struct.pack(">I", 0) + fields))
        found = 0
        while found != key | _ANSWER:
            # The server also tells of a stream that was deleted; that needs no answer.
            found, answer = self._receive()
        (code,) = struct.unpack_from(">H", answer, 4)
        assert code == OK, f"request {key} was answered with code {code:#x}"
        return answer[6:]

    def _receive(self) -> tuple[int, bytes]:
        """The key and the fields of one frame."""
        size, key, _version = _HEADER.unpack(self._exactly(_HEADER.size))
        return key, self._exactly(size - 4)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data


def publishframe(record_bytes: int) -> bytes:
    """A block of messages. Their numbers repeat, because they only tell the client which message is confirmed."""
    messages = b"".join(struct.pack(">Q", number) + _bytes(b"x" * record_bytes) for number in range(BLOCK))
    return frame(PUBLISH, struct.pack(">BI", _PUBLISHER, BLOCK) + messages)


def frame(key: int, fields: bytes) -> bytes:
    """A frame of the protocol."""
    return _HEADER.pack(4 + len(fields), key, 1) + fields


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _bytes(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
