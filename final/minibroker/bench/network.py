"""The physical limits of a connection: the speed of TCP on this machine without a broker.

Each limit is a case, like those of `limits`.
"""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from minibroker.bench import limits
from minibroker.bench.context import Context
from minibroker.bench.measure import Case
from minibroker.bench.units import MIB, bytes_text


def loopback(context: Context, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Send blocks over a TCP connection on the loopback interface. The CPU time is that of both ends."""
    sender, receiver = _connected_pair(context)
    blocks_count = len(limits.block_positions(bytes_count, block_bytes))
    send = _sending(sender, blocks_count, block_bytes)

    def run() -> None:
        with _on_a_thread(send):
            _receive(receiver, blocks_count * block_bytes, bytearray(block_bytes))

    return limits.blocks_case(name or f"loopback TCP, {bytes_text(block_bytes)}", run, blocks_count, block_bytes)


def receive_append(context: Context, descriptor: int, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Do the least that any broker does with produced records: receive them over TCP, checksum them, append them.

    The CPU time is that of the receiving end only, as with a broker whose clients are other processes.
    """
    checksum = limits.crc32c_function()
    sender, receiver = _connected_pair(context)
    buffer = bytearray(block_bytes)
    blocks_count = len(limits.block_positions(bytes_count, block_bytes))
    send = _sending(sender, blocks_count, block_bytes)

    def run() -> None:
        with _on_a_thread(send):
            for _ in range(blocks_count):
                _receive_whole(receiver, buffer)
                checksum(buffer)
                os.write(descriptor, buffer)

    title = name or f"bare receive + crc32c + append, {bytes_text(block_bytes)}"
    case = limits.blocks_case(title, run, blocks_count, block_bytes, before=lambda: limits.empty(descriptor))
    return replace(case, cpu_s=time.thread_time)


def read_send(context: Context, descriptor: int, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Do the least that a broker with plain system calls does for a fetch: read from the page cache, send over TCP.

    The CPU time is that of the sending end only.
    """
    sender, receiver = _connected_pair(context)
    buffer, taken = bytearray(block_bytes), bytearray(block_bytes)
    positions = limits.block_positions(bytes_count, block_bytes)

    def run() -> None:
        with _on_a_thread(lambda: _receive(receiver, len(positions) * block_bytes, taken)):
            for position in positions:
                os.preadv(descriptor, [buffer], position)
                sender.sendall(buffer)

    title = name or f"bare read + send, {bytes_text(block_bytes)}"
    return replace(limits.blocks_case(title, run, len(positions), block_bytes), cpu_s=time.thread_time)


_CLIENT = """
import socket, sys
end, count, in_flight, block_bytes = socket.socket(fileno=int(sys.argv[1])), *map(int, sys.argv[2:])
sent = b"x" * block_bytes * in_flight
end.sendall(b"!")
end.recv(1)
for _ in range(count // in_flight):
    end.sendall(sent)
    missing = len(sent)
    while missing:
        missing -= len(end.recv(missing))
"""


def exchange(context: Context, descriptor: int, count: int, *, in_flight: int, block_bytes: int, name: str) -> Case:
    """Do the least that any broker does with small requests: receive them over TCP, append them, and send answers.

    The client sends `in_flight` requests and waits for their answers. The requests are appended with one write, and
    answered with one send of as many bytes. The client is another process, because two threads would wait for each
    other's interpreter. The CPU time is that of the answering end only.
    """
    asking, answering = _connected_pair(context)
    for end in (asking, answering):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(in_flight * block_bytes)
    numbers = map(str, (asking.fileno(), count, in_flight, block_bytes))
    command = [sys.executable, "-c", _CLIENT, *numbers]
    clients: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        limits.empty(descriptor)
        clients.append(subprocess.Popen(command, pass_fds=[asking.fileno()]))
        answering.recv(1)  # the client is ready

    def run() -> None:
        answering.sendall(b"!")
        for _ in range(count // in_flight):
            _receive_whole(answering, buffer)
            os.write(descriptor, buffer)
            answering.sendall(buffer)

    case = limits.blocks_case(name, run, count, block_bytes, before=begin)
    return replace(case, after=lambda: clients.pop().wait(), cpu_s=time.thread_time)


def _sending(sender: socket.socket, blocks_count: int, block_bytes: int) -> Callable[[], None]:
    block = random.Random(0).randbytes(block_bytes)

    def send() -> None:
        for _ in range(blocks_count):
            sender.sendall(block)

    return send


@contextmanager
def _on_a_thread(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join()


def _connected_pair(context: Context) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    for end in (sender, receiver):
        context.on_close(_hang_up, end)
    return sender, receiver


def _hang_up(end: socket.socket) -> None:
    # A shutdown wakes a thread that is blocked in send. Closing alone does not.
    with suppress(OSError):  # the other end may be closed already
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _receive_whole(receiver: socket.socket, buffer: bytearray) -> None:
    missing = memoryview(buffer)
    while missing:
        missing = missing[receiver.recv_into(missing) :]


def _receive(receiver: socket.socket, bytes_count: int, buffer: bytearray) -> None:
    missing_bytes = bytes_count
    while missing_bytes > 0:
        received_bytes = receiver.recv_into(buffer, min(len(buffer), missing_bytes))
        if received_bytes == 0:
            raise ConnectionError(f"the connection ended {missing_bytes} bytes early")
        missing_bytes -= received_bytes
