"""A disk with a bound on open file handles: the least recently used files are closed, and opened again when needed.

Ten thousand partitions have thirty thousand files, but many systems allow a process only a thousand open files. So a
`BoundedFile` always has a path, but not always an open handle. Three rules make that safe:

1. **A file that loses its name keeps its handle** as long as it is referenced. Retention unlinks a segment, and
   compaction replaces one, while a reader still has a slice of it. Opening the path again would find nothing, or
   another file. Such handles are not counted. There are only as many as there are slow readers.
2. **A file with unflushed writes is not closed.** The kernel writes pages back at any time. If that fails, the next
   fsync of a process that has the file open gets the error. After the last close the kernel may forget the error, and a
   later fsync would succeed although the data is lost. So clean files are closed first. If all files are dirty, the
   least recently used one is flushed and then closed. An error of that flush is kept, and every later fsync of the file
   raises it.
3. **A handle that is in use is not closed**, on any thread. The file only drops its reference, and a handle closes
   itself when the last reference is gone. A caller that passes a descriptor to the kernel must hold the handle
   meanwhile: the number of a closed descriptor may already belong to another file.

If there are more dirty files than handles, every write costs a flush: raise the limit of open files.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from weakref import ref

from minibroker.log.compression import Bytes
from minibroker.log.interfaces import File, Files, directory_of

_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class BoundedFile:
    """One open file of a `BoundedFiles`. It has a handle, or gets one when it is used."""

    __slots__ = (
        "__weakref__",
        "_files",
        "cuts",
        "failure",
        "is_closed",
        "is_dirty",
        "is_recent",
        "key",
        "open_handle",
        "path",
        "writable",
    )

    def __init__(self, files: "BoundedFiles", path: str, *, key: int, writable: bool) -> None:
        self._files = files
        self.key = key
        self.path: str | None = path  # None after the file has lost its name
        self.writable = writable
        self.open_handle: File | None = None
        self.is_dirty = False
        self.is_recent = False
        """Whether the file was written to since its place in the queue of dirty files last changed."""
        self.is_closed = False
        self.failure: OSError | None = None
        self.cuts = 0
        """How often the file was truncated. A slice that was found before a truncation may have other bytes now."""

    def __del__(self) -> None:
        self._files.forget(self)

    def handle(self) -> File:
        """The handle. It stays open as long as it is referenced: keep it while the kernel uses its descriptor."""
        return self._files.handle_of(self)

    def pread(self, count: int, position: int) -> bytes:
        """Read `count` bytes, or fewer if the file ends before."""
        return self._files.handle_of(self).pread(count, position)

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache and return how many bytes were written."""
        # This runs for every append. A file that is open and dirty is only marked, and no lock is taken.
        handle = self.open_handle
        if handle is None or not self.is_dirty:
            handle = self._files.handle_of(self, is_written=True)
        else:
            self.is_recent = True
        taken = handle.pwrite(data, position)
        if not self.is_dirty:
            # Another thread has flushed the file meanwhile, perhaps before this write. Mark it as dirty again.
            self._files.handle_of(self, is_written=True)
        return taken

    def size(self) -> int:
        """The size of the file in bytes."""
        return self._files.handle_of(self).size()

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self.cuts += 1
        self._files.handle_of(self, is_written=True).truncate(size)

    def fsync(self) -> None:
        """Return once the file's data has reached the disk. Raises the error of any earlier flush, too."""
        self._files.fsync(self)

    def drop_cache(self) -> None:
        """Ask the kernel to drop the clean pages of the file from its cache."""
        self._files.handle_of(self).drop_cache()

    def close(self) -> None:
        """Close the file. Unflushed data stays in the page cache."""
        self.is_closed = True
        self._files.forget(self)
        self.open_handle = None


class BoundedFiles:
    """`Files` over other `Files`, with at most `handles_max` handles open for files that have a name.

    It is safe to use from any thread. Its handles close themselves when the last reference is gone, like the handles of
    `OSFiles`.
    """

    def __init__(self, files: Files, *, handles_max: int, on_flushed: Callable[[], None] = lambda: None) -> None:
        """If `on_flushed` raises an OSError, the flush counts as failed, although the disk has the data."""
        assert handles_max > 0
        self._on_flushed = on_flushed
        self._files = files
        self._handles_max = handles_max
        self._lock = threading.RLock()  # reentrant, because a file's `__del__` may call `forget` at any point
        self._keys = count()
        # `_clean` and `_dirty` have the files with a handle, the least recently used first. `_named` has all files with
        # a name, by their directory.
        self._clean: OrderedDict[int, ref[BoundedFile]] = OrderedDict()
        self._dirty: OrderedDict[int, ref[BoundedFile]] = OrderedDict()
        self._named: dict[str, dict[int, ref[BoundedFile]]] = {}
        self.flushes_forced = 0

    @property
    def handles(self) -> int:
        """How many handles are open for files that have a name."""
        return len(self._clean) + len(self._dirty)

    # Files ----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> BoundedFile:
        """Open a file. Without `create`, a missing file raises FileNotFoundError."""
        with self._lock:
            file = BoundedFile(self, path, key=next(self._keys), writable=writable)
            file.open_handle = self._open(path, create=create, writable=writable)
            reference = ref(file)
            self._clean[file.key] = reference
            self._named.setdefault(directory_of(path), {})[file.key] = reference
            return file

    def mkdir(self, directory: str) -> None:
        """Make a directory and its missing parents."""
        self._files.mkdir(directory)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        self._files.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Rename a file, or a directory with its files. A file that had the new name loses it."""
        with self._lock:
            replaced = self._with_handles(target)
            self._files.rename(source, target)
            self._make_nameless(replaced)
            for file in self._files_at(source):
                self._unname(file)
                file.path = target
                self._named.setdefault(directory_of(target), {})[file.key] = ref(file)
            inside = self._named.pop(source, None)
            if inside is not None:
                self._named.setdefault(target, {}).update(inside)
                for file in _referenced(inside.values()):
                    assert file.path is not None
                    file.path = target + file.path[len(source) :]

    def unlink(self, path: str) -> None:
        """Remove a file's name. An open file stays readable."""
        with self._lock:
            held = self._with_handles(path)
            self._files.unlink(path)
            self._make_nameless(held)

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._files.list(directory)

    def fsync_directory(self, directory: str) -> None:
        """Return once the names in a directory have reached the disk."""
        self._files.fsync_directory(directory)

    # Handles --------------------------------------------------------------------------------------------------------

    def handle_of(self, file: BoundedFile, *, is_written: bool = False) -> File:
        """The handle of a file, opened again if needed. `is_written` marks the file as dirty before a write."""
        with self._lock:
            handle = file.open_handle
            if handle is None:
                handle = self._reopened(file)
            if is_written and not file.is_dirty:
                file.is_dirty = True
                self._clean.pop(file.key, None)
            if file.path is not None:
                # Move it to the end of its queue, as the most recently used file.
                queue = self._dirty if file.is_dirty else self._clean
                if file.key in queue:
                    queue.move_to_end(file.key)
                else:
                    queue[file.key] = ref(file)
            return handle

    def fsync(self, file: BoundedFile) -> None:
        """Flush a file without holding the lock."""
        handle = self.handle_of(file)
        with self._lock:
            # Marked clean before the fsync, so that a concurrent write marks it dirty again.
            self._mark_as_clean(file)
        try:
            if file.failure is None:
                handle.fsync()
                self._on_flushed()
        except OSError as error:
            file.failure = error
        if file.failure is not None:
            raise file.failure

    def _mark_as_clean(self, file: BoundedFile) -> None:
        file.is_dirty = False
        reference = self._dirty.pop(file.key, None)
        if reference is not None:
            self._clean[file.key] = reference

    def forget(self, file: BoundedFile) -> None:
        """Remove a file that was closed, or that is no longer referenced."""
        with self._lock:
            self._clean.pop(file.key, None)
            self._dirty.pop(file.key, None)
            self._unname(file)

    def _reopened(self, file: BoundedFile) -> File:
        if file.is_closed or file.path is None:
            raise OSError(errno.EBADF, "the file is closed", file.path)
        file.open_handle = self._open(file.path, create=False, writable=file.writable)
        return file.open_handle

    def _open(self, path: str, *, create: bool, writable: bool) -> File:
        while self.handles >= self._handles_max:
            self._close_one()
        while True:
            try:
                return self._files.open(path, create=create, writable=writable)
            except OSError as error:
                # The process also opens other descriptors, such as sockets, and may reach the system's limit. Then drop
                # a handle and try again.
                if error.errno not in _TOO_MANY or self.handles == 0:
                    raise
                self._close_one()

    def _close_one(self) -> None:
        """Drop the handle of the least recently used clean file. If all files are dirty, flush one first."""
        if not self._clean:
            self._flush_oldest()
        _key, reference = self._clean.popitem(last=False)
        file = reference()
        if file is not None:
            file.open_handle = None

    def _flush_oldest(self) -> None:
        for key, reference in list(self._dirty.items()):
            file = reference()
            if file is None or not file.is_recent:
                break
            file.is_recent = False
            self._dirty.move_to_end(key)
        key, reference = self._dirty.popitem(last=False)
        self._clean[key] = reference
        file = reference()
        if file is None or file.open_handle is None:
            return
        self.flushes_forced += 1
        file.is_dirty = False
        try:
            file.open_handle.fsync()
            self._on_flushed()
        except OSError as error:
            # The caller uses another file, so the error is not raised here. This file's owner gets it at the next
            # fsync.
            file.failure = error

    # Names ----------------------------------------------------------------------------------------------------------

    def _files_at(self, path: str) -> Sequence[BoundedFile]:
        inside = self._named.get(directory_of(path), {})
        return [file for file in _referenced(inside.values()) if file.path == path]

    def _with_handles(self, path: str) -> Sequence[tuple[BoundedFile, File]]:
        """The open files at a path, each with its handle. The reference keeps the handle open after an unlink."""
        return [(file, self.handle_of(file)) for file in self._files_at(path)]

    def _make_nameless(self, held: Iterable[tuple[BoundedFile, File]]) -> None:
        for file, handle in held:
            self.forget(file)
            file.path = None
            file.open_handle = handle

    def _unname(self, file: BoundedFile) -> None:
        if file.path is not None:
            directory = directory_of(file.path)
            inside = self._named.get(directory, {})
            inside.pop(file.key, None)
            if not inside:
                self._named.pop(directory, None)


def _referenced(references: Iterable[ref[BoundedFile]]) -> Sequence[BoundedFile]:
    return [file for file in (reference() for reference in [*references]) if file is not None]
