"""Three ways to send a slice of a file: copy, sendfile and mmap.

    copy       file ──pread──▶ Python's memory ──write──▶ socket      two copies, by the kernel
    sendfile   file ─────────────────────────────────────▶ socket      no copy; the socket refers to the page cache
    mmap       file ──(pages of the file in our memory)──▶ socket      one copy, by the kernel

The bytes are sent around the transport of asyncio, directly to the descriptor of the socket. That is allowed only while
the transport itself has nothing to send. A transport would copy the bytes that the socket does not take at once.

A segment may be deleted, compacted or truncated while it is sent. A file that was deleted or replaced stays readable as
long as a slice refers to it. After a truncation, other records may be at the same position, so the connection is
closed. A mapped page beyond the end of a file is not there. The signal SIGBUS would end a process that reads such a
page. Here only the kernel reads mapped pages, on behalf of `write`, and then `write` fails.
"""

import asyncio
import enum
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, cast, runtime_checkable

from minibroker.log.interfaces import File, FileSlice
from minibroker.partitions.errors import Disconnect
from minibroker.transfer.cuts import check_cuts, cuts_of
from minibroker.wire.schema import Part

PIECE_BYTES = 1024 * 1024
SMALL_BYTES = 64 * 1024
"""Up to this size of an answer, a copy is the fastest way: its slices are read, and it is sent with one call."""
_WINDOW_BYTES = 16 * 1024 * 1024
_WINDOWS_MAX = 8
_NOTHING = memoryview(b"")


class Transfer(enum.Enum):
    """How the bytes of a slice reach the socket."""

    COPY = "copy"
    SENDFILE = "sendfile"
    MMAP = "mmap"


@runtime_checkable
class Handle(Protocol):
    """An open file of the operating system. Its descriptor is valid as long as the handle is referenced."""

    def fileno(self) -> int:
        """The descriptor."""


def _handle_of(file: File) -> Handle | None:
    """The handle of a file on a real disk; None for a file in memory."""
    opened = file.handle() if hasattr(file, "handle") else file
    # This is isinstance(opened, Handle), which costs ten times as much for a protocol.
    return cast("Handle", opened) if hasattr(opened, "fileno") else None


def read_whole(part: FileSlice) -> bytes:
    """The bytes of a slice. The length of the answer is already sent, so fewer bytes would confuse the client."""
    data = part.read()
    if len(data) != part.count:
        raise Disconnect(f"only {len(data)} of {part.count} bytes of a record set could be read")
    return data


class Maps:
    """The windows of files that were read last, mapped into memory.

    A window that was mapped before the file grew is mapped again. The pages of a window count as memory of this
    process, so there are only a few windows.
    """

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[Handle, int], memoryview] = OrderedDict()

    def view(self, handle: Handle, position: int, count: int) -> memoryview:
        """A view of `count` bytes of a file, or of fewer: it ends where the window or the file ends."""
        begin = position - position % _WINDOW_BYTES
        stop = min(position - begin + count, _WINDOW_BYTES)
        window = self._windows.get((handle, begin), _NOTHING)
        if len(window) < stop:
            size = min(os.fstat(handle.fileno()).st_size - begin, _WINDOW_BYTES)
            if size <= position - begin:
                return _NOTHING
            window = memoryview(mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_READ, offset=begin))
            self._windows[handle, begin] = window
        self._windows.move_to_end((handle, begin))
        if len(self._windows) > _WINDOWS_MAX:
            self._windows.popitem(last=False)
        return window[position - begin : stop]


class Sending:
    """An answer that is sent piece by piece, as the client reads it."""

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        parts: Sequence[Part],
        *,
        transfer: Transfer,
        maps: Maps,
        on_progress: Callable[[], None],
        on_sent: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._transport = transport
        # The list is in reverse order, so that the part to send next is at its end. Each slice is stored with the
        # number of truncations of its file so far: if that number changes, the slice must not be sent.
        self._left = [(it, cuts_of(it.file) if isinstance(it, FileSlice) else 0) for it in reversed(parts)]
        self.transfer = transfer
        self._maps = maps
        self._on_progress = on_progress
        self._on_sent = on_sent
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._is_watched = False

    def go_on(self) -> None:
        """Send the next piece, unless the transport has something to send. Called again when the socket takes more."""
        if self._transport.get_write_buffer_size():
            return
        try:
            self._send()
        except BlockingIOError:
            pass  # the socket is full; this is called again when it takes more
        except (OSError, ValueError, Disconnect) as error:
            self.stop()
            self._on_failed(error if isinstance(error, Disconnect) else Disconnect(str(error)))
            return
        self._on_progress()
        if not self._left:
            self.stop()
            self._on_sent()
        elif not self._is_watched:
            # The event loop watches the socket's own descriptor for the transport. So a duplicate is watched here.
            self._is_watched = True
            self._descriptor = os.dup(self._descriptor)
            self._loop.add_writer(self._descriptor, self.go_on)

    def stop(self) -> None:
        """Send nothing more."""
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
        self._left = []

    def _send(self) -> None:
        """Send bytes in memory, and one piece of a slice."""
        is_slice = False
        while self._left and not is_slice:
            part, cuts = self._left[-1]
            is_slice = isinstance(part, FileSlice)
            if isinstance(part, FileSlice):
                check_cuts(cuts_of(part.file), cuts)
                self._send_slice(part)
            else:
                self._left.pop()
                self._send_bytes(part)

    def _send_bytes(self, part: bytes | bytearray | memoryview) -> None:
        try:
            sent = os.write(self._descriptor, part)
        except BlockingIOError:
            sent = 0
        if sent < len(part):
            self._left.append((memoryview(part)[sent:], 0))
            raise BlockingIOError

    def _send_slice(self, part: FileSlice) -> None:
        # A large slice is sent in pieces. A file that has no descriptor is copied, like every file with Transfer.COPY.
        count = min(part.count, PIECE_BYTES)
        handle = None if self.transfer is Transfer.COPY else _handle_of(part.file)
        if handle is None:
            # These bytes have left the file, even if the socket does not take them all: the slice moves on first.
            data = read_whole(FileSlice(part.file, part.position, count))
            self._on_taken(part, count)
            self._send_bytes(data)
        # In the two other ways the slice moves on by as many bytes as the socket has taken.
        elif self.transfer is Transfer.SENDFILE:
            self._on_taken(part, os.sendfile(self._descriptor, handle.fileno(), part.position, count))
        else:
            mapped = self._maps.view(handle, part.position, count)
            self._on_taken(part, os.write(self._descriptor, mapped) if mapped else 0)

    def _on_taken(self, part: FileSlice, count: int) -> None:
        if count == 0:
            raise Disconnect(f"{part.count} bytes of a record set could not be read")
        part.position += count
        part.count -= count
        if part.count == 0:
            self._left.pop()
