"""Owns the physical limits: what this machine does when nothing of ours stands in the way.

Each limit is a case like any other, made by a function, and runs in the same rounds as the code it is compared with.

A trap: the first touch of memory or of the page cache costs up to ten times the second, above all in a virtual
machine. So files and buffers are made and filled once, when the case is made, and only written over while the clock
runs. The one exception is `append`: a log grows, and flushing a file that grew costs more than flushing one written
over, because its new length must reach the disk too. It is cut to nothing, untimed, before each repeat.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from minibroker.bench.context import Context
from minibroker.bench.measure import Case
from minibroker.bench.plot import LIMIT
from minibroker.bench.units import MIB, bytes_text

# macOS has no fdatasync. Its fsync reaches the drive but not the platter; no more can be had without F_FULLFSYNC.
flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)

# Not on macOS: there, what is in the page cache stays there.
can_drop_cache = hasattr(os, "posix_fadvise")


def scratch_file(context: Context, name: str, bytes_count: int = 0) -> int:
    """Make a file of random bytes in the folder under test and return its descriptor, closed with the context."""
    descriptor = os.open(Path(context.directory, name), os.O_RDWR | os.O_CREAT, 0o600)
    context.on_close(os.close, descriptor)
    # Random, because some disks and file systems compress, or store nothing for zeros.
    block = random.Random(0).randbytes(min(bytes_count, MIB) or 1)
    for position in range(0, bytes_count, len(block)):
        os.pwrite(descriptor, block[: bytes_count - position], position)
    flush(descriptor)
    return descriptor


def drop_cache(descriptor: int) -> None:
    """Ask the kernel to forget the pages of a file, so that the next read goes to the device."""
    # Only clean pages can be dropped.
    flush(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def block_positions(bytes_count: int, block_bytes: int) -> range:
    """List where the whole blocks of a file begin."""
    if bytes_count < block_bytes:
        raise ValueError(f"{bytes_count} bytes hold no block of {block_bytes}")
    return range(0, bytes_count - block_bytes + 1, block_bytes)


def shuffled_positions(bytes_count: int, block_bytes: int, blocks_max: int | None = None) -> list[int]:
    """List where the blocks begin, in a random order that is the same in every run."""
    positions = block_positions(bytes_count, block_bytes)
    return random.Random(0).sample(positions, min(len(positions), blocks_max or len(positions)))


def memcpy(bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Copy one block over and over into a memory region of `bytes_count`, as a write copies into the page cache."""
    source = memoryview(random.Random(0).randbytes(block_bytes))
    target = memoryview(bytearray(bytes_count))
    positions = block_positions(bytes_count, block_bytes)

    def run() -> None:
        for position in positions:
            target[position : position + block_bytes] = source

    return _blocks_case(name or f"memcpy, {bytes_text(block_bytes)}", run, len(positions), block_bytes)


def crc32c(bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Check-sum one block over and over."""
    checksum = _crc32c_function()
    block = random.Random(0).randbytes(block_bytes)
    positions = block_positions(bytes_count, block_bytes)

    def run() -> None:
        for _ in positions:
            checksum(block)

    return _blocks_case(name or f"crc32c, {bytes_text(block_bytes)}", run, len(positions), block_bytes)


def write(
    descriptor: int,
    bytes_count: int,
    block_bytes: int,
    name: str = "",
    *,
    with_crc32c: bool = False,
    block: bytes | bytearray | None = None,
) -> Case:
    """Write blocks one after the other over a file in the page cache, each check-summed first if asked.

    A block of one's own makes a fair comparison: how a buffer lies in memory is worth some per cent.
    """
    checksum = _crc32c_function() if with_crc32c else None
    block = block or random.Random(0).randbytes(block_bytes)
    positions = block_positions(bytes_count, block_bytes)

    def run() -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        for _ in positions:
            if checksum:
                checksum(block)
            os.write(descriptor, block)

    title = f"bare {'crc32c + ' if with_crc32c else ''}write, {bytes_text(block_bytes)}"
    return _blocks_case(name or title, run, len(positions), block_bytes)


def append(
    descriptor: int,
    bytes_count: int,
    block_bytes: int,
    name: str = "",
    *,
    flush_every_bytes: int | None = None,
    with_crc32c: bool = False,
) -> Case:
    """Append blocks to a file of its own, emptied before; flush each time so many bytes were written, or never."""
    checksum = _crc32c_function() if with_crc32c else None
    block = random.Random(0).randbytes(block_bytes)
    blocks_count = len(block_positions(bytes_count, block_bytes))
    blocks_per_flush = max(1, flush_every_bytes // block_bytes) if flush_every_bytes else blocks_count + 1

    def run() -> None:
        for number in range(1, blocks_count + 1):
            if checksum:
                checksum(block)
            os.write(descriptor, block)
            if number % blocks_per_flush == 0:
                flush(descriptor)

    every = f" + flush per {bytes_text(flush_every_bytes)}" if flush_every_bytes else ""
    title = f"bare {'crc32c + ' if with_crc32c else ''}append{every}, {bytes_text(block_bytes)}"
    return _blocks_case(name or title, run, blocks_count, block_bytes, before=lambda: _empty(descriptor))


def write_flush(descriptor: int, bytes_count: int, block_bytes: int, name: str = "") -> Case:
    """Append blocks to an empty file and flush after each: what flushing before every acknowledgement costs."""
    title = name or f"bare write + flush, {bytes_text(block_bytes)}"
    return append(descriptor, bytes_count, block_bytes, title, flush_every_bytes=block_bytes)


def read(
    descriptor: int, positions: Sequence[int], block_bytes: int, name: str = "", *, from_device: bool = False
) -> Case:
    """Read blocks at the given positions into one buffer, from the page cache or with that dropped first."""
    buffer = [bytearray(block_bytes)]

    def run() -> None:
        for position in positions:
            if os.preadv(descriptor, buffer, position) != block_bytes:
                raise EOFError(f"no whole block of {block_bytes} bytes at position {position}")

    before = (lambda: drop_cache(descriptor)) if from_device else None
    return _blocks_case(name or f"read, {bytes_text(block_bytes)}", run, len(positions), block_bytes, before=before)


def overwrite(
    descriptor: int, positions: Sequence[int], block_bytes: int, name: str = "", *, to_device: bool = False
) -> Case:
    """Write blocks at the given positions of a file, into the page cache or with one flush at the end."""
    block = random.Random(0).randbytes(block_bytes)

    def run() -> None:
        for position in positions:
            os.pwrite(descriptor, block, position)
        if to_device:
            flush(descriptor)

    # What another case left unwritten must not be flushed on this one's time.
    before = (lambda: flush(descriptor)) if to_device else None
    return _blocks_case(
        name or f"overwrite, {bytes_text(block_bytes)}", run, len(positions), block_bytes, before=before
    )


def sequential_read(descriptor: int, bytes_count: int, block_bytes: int, name: str = "") -> Case:
    """Read the blocks of a file in the page cache one after the other."""
    title = name or f"sequential read, {bytes_text(block_bytes)}"
    return read(descriptor, block_positions(bytes_count, block_bytes), block_bytes, title)


def random_read(descriptor: int, bytes_count: int, block_bytes: int, name: str = "") -> Case:
    """Read the blocks of a file in the page cache, each once, in a random order."""
    title = name or f"random read, {bytes_text(block_bytes)}"
    return read(descriptor, shuffled_positions(bytes_count, block_bytes), block_bytes, title)


def loopback(context: Context, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Send blocks over a TCP connection of this machine with itself; the CPU time is that of both ends."""
    sender, receiver = _connected_pair(context)
    blocks_count = len(block_positions(bytes_count, block_bytes))
    send = _sending(sender, blocks_count, block_bytes)

    def run() -> None:
        with _on_a_thread(send):
            _receive(receiver, blocks_count * block_bytes, bytearray(block_bytes))

    return _blocks_case(name or f"loopback TCP, {bytes_text(block_bytes)}", run, blocks_count, block_bytes)


def receive_append(context: Context, descriptor: int, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Do what no broker can leave out to take records in: receive them over TCP, check-sum them, append them.

    The CPU time is that of the receiving end alone, as it is with a broker whose clients are other processes.
    """
    checksum = _crc32c_function()
    sender, receiver = _connected_pair(context)
    buffer = bytearray(block_bytes)
    blocks_count = len(block_positions(bytes_count, block_bytes))
    send = _sending(sender, blocks_count, block_bytes)

    def run() -> None:
        with _on_a_thread(send):
            for _ in range(blocks_count):
                received = memoryview(buffer)
                while received:
                    received = received[receiver.recv_into(received) :]
                checksum(buffer)
                os.write(descriptor, buffer)

    title = name or f"bare receive + crc32c + append, {bytes_text(block_bytes)}"
    case = _blocks_case(title, run, blocks_count, block_bytes, before=lambda: _empty(descriptor))
    return replace(case, cpu_s=time.thread_time)


def read_send(context: Context, descriptor: int, bytes_count: int, block_bytes: int = MIB, name: str = "") -> Case:
    """Do what a broker does to hand records out by plain calls: read them from the page cache, send them over TCP.

    The CPU time is that of the sending end alone.
    """
    sender, receiver = _connected_pair(context)
    buffer, taken = bytearray(block_bytes), bytearray(block_bytes)
    positions = block_positions(bytes_count, block_bytes)

    def run() -> None:
        with _on_a_thread(lambda: _receive(receiver, len(positions) * block_bytes, taken)):
            for position in positions:
                os.preadv(descriptor, [buffer], position)
                sender.sendall(buffer)

    title = name or f"bare read + send, {bytes_text(block_bytes)}"
    return replace(_blocks_case(title, run, len(positions), block_bytes), cpu_s=time.thread_time)


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


def _blocks_case(
    name: str,
    run: Callable[[], None],
    blocks_count: int,
    block_bytes: int,
    before: Callable[[], object] | None = None,
) -> Case:
    bytes_count = blocks_count * block_bytes
    return Case(name, run, bytes_count=bytes_count, operations_count=blocks_count, series=LIMIT, before=before)


def _crc32c_function() -> Callable[[bytes | bytearray], int]:
    # Imported here, so that the harness itself runs where the package is missing.
    from crc32c import crc32c as checksum  # noqa: PLC0415

    return checksum


def _empty(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    # Cutting the file is work for the disk too, and is not what is timed.
    flush(descriptor)


def _connected_pair(context: Context) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    for end in (sender, receiver):
        context.on_close(_hang_up, end)
    return sender, receiver


def _hang_up(end: socket.socket) -> None:
    # Closing alone would leave a thread that is blocked in send where it is; shutting down wakes it.
    with suppress(OSError):  # the other end may have gone first
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _receive(receiver: socket.socket, bytes_count: int, buffer: bytearray) -> None:
    missing_bytes = bytes_count
    while missing_bytes > 0:
        received_bytes = receiver.recv_into(buffer, min(len(buffer), missing_bytes))
        if received_bytes == 0:
            raise ConnectionError(f"the connection ended {missing_bytes} bytes early")
        missing_bytes -= received_bytes
