"""NATS JetStream beside our node, where Debian's package nats-server is installed: 1 KB messages, each acknowledged.

JetStream has another protocol, so it has another client: a socket to which messages are sent that were built before. It
acknowledges every message; a Kafka client asks for one acknowledgement of a batch. Both keep the messages in files and
leave the flush to the operating system.
"""

import json
import os
import shutil
import socket
import subprocess
from contextlib import ExitStack

from minibroker.bench import Benchmark, Case, Context, Skipped, launcher, scaled
from minibroker.bench.watching import until
from peers.stage import Work, case, our_node

NAME = "NATS JetStream"
STREAM, SUBJECT, INBOX = "bench", "orders", "_INBOX.bench"
ACK = b'"seq":'
BLOCK, WINDOW = 64, 4096
RECORD_BYTES = 1000
TIMEOUT_S = 30
SETTINGS = ("acks=1", "queue.buffering.max.messages=1000000", "delivery.report.only.error=true")


def benchmark(context: Context) -> Benchmark:
    # Debian installs it where only root looks for programs.
    program = shutil.which("nats-server", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    if program is None:
        raise Skipped("it needs nats-server (Debian's package of that name)")
    work = Work(scaled(full=100_000, quick=1_000), RECORD_BYTES)
    theirs = JetStream(context, program).case(work)
    ours, _rounds = case(context, our_node(context), work, *SETTINGS)
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return Benchmark(
        "Produce 1 KB records to one node, beside NATS JetStream",
        [theirs, ours],
        columns=["cpu_us_per_op"],
        note=f"{told}: one stream, storage=file, {WINDOW} messages under way, a client of its own. "
        f"minibroker: defaults, one partition; client: {', '.join(SETTINGS)}. "
        "RabbitMQ's streams are not measured: they would need a third client.",
    )


class JetStream:
    """A server, one connection to it, and a stream."""

    def __init__(self, context: Context, program: str) -> None:
        port = launcher.reserve_port(context.cleanup.enter_context(ExitStack()))
        command = [program, "-js", "-sd", str(context.directory / "nats"), "-a", launcher.HOST, "-p", str(port)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        context.on_close(self._end)
        found = until(lambda: connected(port), "nats-server accepts connections")
        assert found is not None
        self._socket = found
        context.on_close(self._socket.close)
        self._socket.sendall(f'CONNECT {{"verbose":false}}\r\nSUB {INBOX} 1\r\n'.encode())
        self._tail = b""
        self._ask("CREATE", {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 1})

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, action: str, document: dict[str, object] | None = None) -> None:
        """Administer the stream, and wait for the answer."""
        body = json.dumps(document) if document else ""
        self._socket.sendall(f"PUB $JS.API.STREAM.{action}.{STREAM} {INBOX} {len(body)}\r\n{body}\r\n".encode())
        answer = b""
        while b"_response" not in answer:
            answer += self._socket.recv(65_536)
        assert b'"error"' not in answer, answer

    def case(self, work: Work) -> Case:
        """Send all messages, and wait for their acknowledgements."""
        return Case(
            NAME,
            lambda: self._publish(work.records),
            bytes_count=work.records * work.bytes,
            operations_count=work.records,
            series=NAME,
            before=lambda: self._ask("PURGE"),
            cpu_s=lambda: launcher.cpu_s(self._process.pid),
        )

    def _publish(self, count: int) -> None:
        message = f"PUB {SUBJECT} {INBOX} {RECORD_BYTES}\r\n{'x' * RECORD_BYTES}\r\n".encode()
        sent = acked = 0
        while acked < count:
            while sent < count and sent - acked < WINDOW:
                block = min(BLOCK, count - sent)
                self._socket.sendall(message * block)
                sent += block
            acked += self._acks()

    def _acks(self) -> int:
        """The acknowledgements among the next bytes; one may be cut in two."""
        data = self._tail + self._socket.recv(1_048_576)
        assert b'"error"' not in data, data[:500]
        self._tail = data[-len(ACK) + 1 :]
        return data.count(ACK)


def connected(port: int) -> socket.socket | None:
    """A connection, or None while the server does not listen yet."""
    try:
        return socket.create_connection((launcher.HOST, port), timeout=TIMEOUT_S)
    except ConnectionRefusedError:
        return None
