"""A disk with a bound on open file handles: the files used longest ago are closed, and opened again when needed.

Ten thousand partitions are thirty thousand files, and a process may often have no more than a thousand open. So a
`BoundedFile` is a path and, for a while, a handle. What makes that safe:

1. **A file that loses its name keeps its handle** until nobody holds the file any more. Retention unlinks a segment
   and compaction puts another in its place while a reader still has a slice: opening by path would find nothing, or
   another file. Such handles are not counted; there are as many as readers that are behind.
2. **A file with unflushed writes is not closed.** The kernel writes pages back whenever it likes. If that fails, it
   tells those who have the file open, at their next fsync; once nobody has it open, it may forget. Then a later fsync
   would succeed, and lie. So clean files go first. If all are dirty, the one used longest ago is flushed before it is
   closed. Should that fail, the error is kept and raised by every fsync of that file from then on.
3. **A handle that is in use is not closed**, on whatever thread: the file only lets go of it, and a handle closes
   itself when the last one lets go. For the same reason `handle` gives the handle itself to those who hand it to the
   kernel: the number of a descriptor that somebody closed may be that of another file by now.

If everything that is written to does not fit into the bound, every write costs a flush: raise the limit of open files.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count
from weakref import ref

from minibroker.log.compression import Bytes
from minibroker.log.interfaces import File, Files, directory_of

_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class BoundedFile:
    """One open file of a `BoundedFiles`, with or without a handle at this moment."""

    __slots__ = ("__weakref__", "_files", "failure", "handle_now", "is_closed", "is_dirty", "key", "path", "writable")

    def __init__(self, files: "BoundedFiles", path: str, *, key: int, writable: bool) -> None:
        self._files = files
        self.key = key
        self.path: str | None = path  # None once the name is gone
        self.writable = writable
        self.handle_now: File | None = None
        self.is_dirty = False
        self.is_closed = False
        self.failure: OSError | None = None

    def __del__(self) -> None:
        self._files.forget(self)

    def handle(self) -> File:
        """The open file itself. It stays open as long as it is held, so hold it while the kernel works with it."""
        return self._files.handle_of(self)

    def pread(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""
        return self._files.handle_of(self).pread(count, position)

    def pwrite(self, data: Bytes, position: int) -> int:
        """Write into the page cache and return how many bytes were taken."""
        taken = self._files.handle_of(self, is_written=True).pwrite(data, position)
        if not self.is_dirty:
            # Somebody flushed the file meanwhile, and perhaps without this.
            self._files.handle_of(self, is_written=True)
        return taken

    def size(self) -> int:
        """The file's bytes now."""
        return self._files.handle_of(self).size()

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self._files.handle_of(self, is_written=True).truncate(size)

    def fsync(self) -> None:
        """Return once the file's data has reached the disk, or fail, also for a flush that failed in between."""
        self._files.fsync(self)

    def drop_cache(self) -> None:
        """Ask the kernel to forget what it holds of the file in memory, save what it has yet to write."""
        self._files.handle_of(self).drop_cache()

    def close(self) -> None:
        """Give the file back; what was not flushed stays in the page cache."""
        self.is_closed = True
        self._files.forget(self)
        self.handle_now = None


class BoundedFiles:
    """`Files` over other `Files`, with at most `handles_max` handles open for files that have a name.

    Any thread may use it. Handles close themselves when nobody holds them any more, as those of `OSFiles` do.
    """

    def __init__(self, files: Files, *, handles_max: int) -> None:
        assert handles_max > 0
        self._files = files
        self._handles_max = handles_max
        self._lock = threading.RLock()  # a file may be let go of, and call `forget`, wherever Python frees memory
        self._keys = count()
        # Files with a handle, the one used longest ago first, and all files with a name, by their directory.
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
        """Open a file; without `create` a missing one is a FileNotFoundError."""
        with self._lock:
            file = BoundedFile(self, path, key=next(self._keys), writable=writable)
            file.handle_now = self._open(path, create=create, writable=writable)
            reference = ref(file)
            self._clean[file.key] = reference
            self._named.setdefault(directory_of(path), {})[file.key] = reference
            return file

    def mkdir(self, directory: str) -> None:
        """Make a directory, and those above it."""
        self._files.mkdir(directory)

    def rmdir(self, directory: str) -> None:
        """Remove a directory that is empty."""
        self._files.rmdir(directory)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, or a directory with the files in it; what had that name loses it."""
        with self._lock:
            replaced = self._held(target)
            self._files.rename(source, target)
            self._make_nameless(replaced)
            for file in self._at(source):
                self._unname(file)
                file.path = target
                self._named.setdefault(directory_of(target), {})[file.key] = ref(file)
            inside = self._named.pop(source, None)
            if inside is not None:
                self._named.setdefault(target, {}).update(inside)
                for file in _living(inside.values()):
                    assert file.path is not None
                    file.path = target + file.path[len(source) :]

    def unlink(self, path: str) -> None:
        """Remove a name. Those who have the file open go on reading it."""
        with self._lock:
            held = self._held(path)
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
        """A file's handle, opened again if need be. Whoever is about to write says so before."""
        with self._lock:
            handle = file.handle_now
            if handle is None:
                handle = self._reopened(file)
            if is_written and not file.is_dirty:
                file.is_dirty = True
                self._clean.pop(file.key, None)
            if file.path is not None:
                # It goes to the end of its row: all others were used longer ago.
                row = self._dirty if file.is_dirty else self._clean
                if file.key in row:
                    row.move_to_end(file.key)
                else:
                    row[file.key] = ref(file)
            return handle

    def fsync(self, file: BoundedFile) -> None:
        """Flush a file, not holding anybody up. It counts as clean from before on: writes meanwhile make it dirty."""
        handle = self.handle_of(file)
        with self._lock:
            self._count_as_clean(file)
        try:
            if file.failure is None:
                handle.fsync()
        except OSError as error:
            file.failure = error
        if file.failure is not None:
            raise file.failure

    def _count_as_clean(self, file: BoundedFile) -> None:
        file.is_dirty = False
        reference = self._dirty.pop(file.key, None)
        if reference is not None:
            self._clean[file.key] = reference

    def forget(self, file: BoundedFile) -> None:
        """A file was closed, or nobody holds it any more."""
        with self._lock:
            self._clean.pop(file.key, None)
            self._dirty.pop(file.key, None)
            self._unname(file)

    def _reopened(self, file: BoundedFile) -> File:
        if file.is_closed or file.path is None:
            raise OSError(errno.EBADF, "the file is closed", file.path)
        file.handle_now = self._open(file.path, create=False, writable=file.writable)
        return file.handle_now

    def _open(self, path: str, *, create: bool, writable: bool) -> File:
        while self.handles >= self._handles_max:
            self._close_one()
        while True:
            try:
                return self._files.open(path, create=create, writable=writable)
            except OSError as error:
                # Others open files, too: sockets, for example.
                if error.errno not in _TOO_MANY or self.handles == 0:
                    raise
                self._close_one()

    def _close_one(self) -> None:
        """Let go of the handle that was used longest ago; of a clean file if there is one."""
        if not self._clean:
            self._flush_oldest()
        _key, reference = self._clean.popitem(last=False)
        file = reference()
        if file is not None:
            file.handle_now = None

    def _flush_oldest(self) -> None:
        key, reference = self._dirty.popitem(last=False)
        self._clean[key] = reference
        file = reference()
        if file is None or file.handle_now is None:
            return
        self.flushes_forced += 1
        file.is_dirty = False
        try:
            file.handle_now.fsync()
        except OSError as error:
            # Whoever needs a handle now is not to blame. The file's owner hears of it at the next fsync.
            file.failure = error

    # Names ----------------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> Sequence[BoundedFile]:
        inside = self._named.get(directory_of(path), {})
        return [file for file in _living(inside.values()) if file.path == path]

    def _held(self, path: str) -> Sequence[tuple[BoundedFile, File]]:
        """Those who have the file at a path open, each with a handle, which must not go while the name goes."""
        return [(file, self.handle_of(file)) for file in self._at(path)]

    def _make_nameless(self, held: Iterable[tuple[BoundedFile, File]]) -> None:
        for file, handle in held:
            self.forget(file)
            file.path = None
            file.handle_now = handle

    def _unname(self, file: BoundedFile) -> None:
        if file.path is not None:
            directory = directory_of(file.path)
            inside = self._named.get(directory, {})
            inside.pop(file.key, None)
            if not inside:
                self._named.pop(directory, None)


def _living(references: Iterable[ref[BoundedFile]]) -> Sequence[BoundedFile]:
    return [file for file in (reference() for reference in [*references]) if file is not None]
