"""Wakes a thread that waits in a selector. A selector waits only for file descriptors, so a `Waker` has two sockets."""

import contextlib
import socket


class Waker:
    """A selector that waits for this object is woken by `wake`."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def fileno(self) -> int:
        """The file descriptor that becomes readable."""
        return self._here.fileno()

    def wake(self) -> None:
        """Wake the thread that waits now, or else the next one that waits."""
        # If the buffer is full, the thread wakes anyway. If the waker is closed, no thread waits.
        with contextlib.suppress(OSError):
            self._there.send(b"!")

    def take(self) -> bool:
        """Whether `wake` was called since the last call of `take`."""
        try:
            return bool(self._here.recv(4096))
        except OSError:
            return False

    def close(self) -> None:
        """Release the sockets."""
        self._here.close()
        self._there.close()
