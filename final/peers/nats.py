"""NATS JetStream, from Debian's package nats-server. It acknowledges every message."""

import json
import subprocess
from contextlib import ExitStack

from minibroker.bench import Context, launcher
from peers.streaming import BLOCK, WINDOW, Publisher, connect, find

NAME = "NATS JetStream"
PACKAGE = "nats-server"
STREAM, SUBJECT, INBOX = "bench", "orders", "_INBOX.bench"
ACK = b'"seq":'


def publisher(context: Context, record_bytes: int) -> Publisher | None:
    """Start a server with a stream in a file; None without the package."""
    program = find("nats-server", "/usr/sbin")
    return None if program is None else _started(context, program, record_bytes)


def _started(context: Context, program: str, record_bytes: int) -> Publisher:
    port = launcher.reserve_port(context.cleanup.enter_context(ExitStack()))
    command = [program, "-js", "-sd", str(context.directory / "nats"), "-a", launcher.HOST, "-p", str(port)]
    process = context.cleanup.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    context.on_close(process.kill)
    server = context.cleanup.enter_context(connect(port, program))
    server.sendall(f'CONNECT {{"verbose":false}}\r\nSUB {INBOX} 1\r\n'.encode())
    tail = b""

    def ask(action: str, document: dict[str, object] | None = None) -> None:
        """Administer the stream, and wait for the answer."""
        body = json.dumps(document) if document else ""
        server.sendall(f"PUB $JS.API.STREAM.{action}.{STREAM} {INBOX} {len(body)}\r\n{body}\r\n".encode())
        answer = b""
        while b"_response" not in answer:
            answer += server.recv(65_536)
        assert b'"error"' not in answer, answer

    def acks(arrived: bytes) -> int:
        """Count acknowledgements; one may be cut in two."""
        nonlocal tail
        data = tail + arrived
        assert b'"error"' not in data, data[:500]
        tail = data[-len(ACK) + 1 :]
        return data.count(ACK)

    ask("CREATE", {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 1})
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return Publisher(
        NAME,
        f"{told}: one stream, storage=file, {WINDOW} messages under way.",
        server,
        f"PUB {SUBJECT} {INBOX} {record_bytes}\r\n{'x' * record_bytes}\r\n".encode() * BLOCK,
        acks,
        lambda: ask("PURGE"),
        process.pid,
    )
