"""A disk in memory that can lose power, fill up and fail. A pure module: the random source is an argument.

Each file has two contents: one in the page cache, one on the disk. A write changes the page cache and is added to a
list of pending operations. `fsync` applies the pending operations to the disk. `crash` is a power failure. A random
prefix of each file's pending operations reaches the disk, and a part of the next one. In one crash of four, a random
subset reaches it instead. The names in a directory become durable with `fsync_directory`.
"""

import errno
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from minibroker.log.compression import Bytes
from minibroker.log.interfaces import directory_of

if TYPE_CHECKING:
    from random import Random

_SCATTERED = 0.25  # the share of crashes that keep a random subset of the operations
# A simulation flushes directories so often that caching this function pays.
_directory_of = lru_cache(maxsize=1000)(directory_of)


class _Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def torn(self, chance: "Random") -> "_Write":
        return _Write(self.position, self.data[: chance.randrange(len(self.data) + 1)])


class _Truncate(NamedTuple):
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))

    def torn(self, _chance: "Random") -> "_Truncate":
        return self  # a file system changes a file's size entirely or not at all


class _Node:
    """The content of a file in the page cache and on the disk, and the operations not yet applied to the disk."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[_Write | _Truncate] = []

    def change(self, operation: _Write | _Truncate) -> None:
        operation.apply(self.cached)
        self.pending.append(operation)

    def settle(self, operations: list[_Write | _Truncate]) -> None:
        for operation in operations:
            operation.apply(self.durable)
        self.pending = []

    def crash(self, chance: "Random | None") -> None:
        self.settle([] if chance is None else self._reached(chance))
        self.cached = bytearray(self.durable)

    def _reached(self, chance: "Random") -> list[_Write | _Truncate]:
        # Usually a prefix of the pending operations reaches the disk, and a part of the next one. But the kernel writes
        # pages in any order, so sometimes a random subset does. Then a hole of zeros may come before a later write.
        if chance.random() < _SCATTERED:
            return [operation.torn(chance) for operation in self.pending if chance.random() < 0.5]
        count = chance.randrange(len(self.pending) + 1)
        return self.pending[:count] + [operation.torn(chance) for operation in self.pending[count : count + 1]]


class MemoryFile:
    """An open file of a `MemoryFiles`. A crash closes it, as the end of a process does."""

    def __init__(self, files: "MemoryFiles", node: _Node) -> None:
        self._files = files
        self._node: _Node | None = node
        self._crashes = files.crashes

    def _open_node(self) -> _Node:
        if self._node is None or self._crashes != self._files.crashes:
            raise OSError(errno.EBADF, "the file is closed")
        return self._node

    def pread(self, count: int, position: int) -> bytes:
        """Read from the page cache. If `read_error` is set, raise that error."""
        if self._files.read_error is not None:
            raise self._files.read_error
        return bytes(self._open_node().cached[position : position + count])

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write as much of the data into the page cache as the disk has room for."""
        node = self._open_node()
        taken = bytes(data)[: self._files.take_room(position + len(data) - len(node.cached), len(data))]
        node.change(_Write(position, taken))
        return len(taken)

    def size(self) -> int:
        """The file's size in the page cache."""
        return len(self._open_node().cached)

    def truncate(self, size: int) -> None:
        """Cut the file."""
        node = self._open_node()
        self._files.take_room(size - len(node.cached), 0)
        node.change(_Truncate(size))

    def fsync(self) -> None:
        """Apply the pending operations to the disk. If `fsync_error` is set, drop them and raise that error."""
        node = self._open_node()
        if self._files.fsync_error is not None:
            # As on Linux, the pages count as clean after the error: a second fsync succeeds without writing them.
            node.pending = []
            raise self._files.fsync_error
        node.settle(node.pending)

    def drop_cache(self) -> None:
        """Read the disk's content again. Pending operations stay visible."""
        node = self._open_node()
        node.cached = bytearray(node.durable)
        for operation in node.pending:
            operation.apply(node.cached)

    def close(self) -> None:
        """Close the file."""
        self._node = None


class MemoryFiles:
    """A disk in memory. `room_bytes` limits its size. `fsync_error` and `read_error` let every fsync or read fail."""

    def __init__(self, *, room_bytes: int | None = None) -> None:
        self.room_bytes = room_bytes
        self.fsync_error: OSError | None = None
        self.read_error: OSError | None = None
        self.crashes = 0
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._moves: list[tuple[str, str]] = []  # renamed directories, not durable yet

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:  # noqa: ARG002
        """Open a file. Memory has no permissions, so every file is writable."""
        if create and path not in self._names:
            self._names[path] = _Node()
        return MemoryFile(self, self._node(path))

    def mkdir(self, directory: str) -> None:
        """Do nothing: a directory is a common prefix of names."""

    def rmdir(self, directory: str) -> None:
        """Raise if the directory is not empty."""
        if self.list(directory):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty", directory)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`, which may be a directory with names in it."""
        if source not in self._names and self.list(source):
            self.rmdir(target)
            self._names = _moved(self._names, source, target)
            self._moves.append((source, target))
            return
        self._names[target] = self._node(source)
        del self._names[source]

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._node(path)
        del self._names[path]

    def _node(self, path: str) -> _Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        # A subdirectory exists as long as a name is in it.
        prefix = "" if directory == "." else f"{directory}/"
        inside = (path.removeprefix(prefix) for path in self._names if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in inside})

    def fsync_directory(self, directory: str) -> None:
        """Make the names in a directory durable, new names of subdirectories included."""
        for source, target in [move for move in self._moves if _directory_of(move[1]) == directory]:
            self._durable_names = _moved(self._durable_names, source, target)
            self._moves.remove((source, target))
        kept = {path: node for path, node in self._durable_names.items() if _directory_of(path) != directory}
        self._durable_names = kept | {p: n for p, n in self._names.items() if _directory_of(p) == directory}

    def crash(self, chance: "Random | None" = None) -> None:
        """Lose power. Without a random source, everything that was not flushed is lost."""
        self.crashes += 1
        self._names = dict(self._durable_names)
        self._moves = []
        for node in self._names.values():
            node.crash(chance)

    def take_room(self, growth: int, count: int) -> int:
        """Reserve room for a file that grows; return how many of `count` bytes may be written, or raise if none."""
        if self.room_bytes is None:
            return count
        if growth > 0 and self.room_bytes == 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        taken = min(growth, self.room_bytes)
        self.room_bytes -= taken
        return count - (growth - taken) if growth > 0 else count


def _moved(names: dict[str, _Node], source: str, target: str) -> dict[str, _Node]:
    """The same names with one directory renamed."""
    inside = f"{source}/"
    return {(target + path[len(source) :] if path.startswith(inside) else path): names[path] for path in names}
