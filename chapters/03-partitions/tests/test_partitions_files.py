"""Many files with few handles: everything works as if each file had a handle of its own."""

import errno
import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from random import Random
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFile, OSFiles
from minibroker.log.interfaces import File, Files
from minibroker.log.memory import MemoryFile, MemoryFiles
from minibroker.partitions.files import BoundedFile, BoundedFiles
from minibroker.partitions.producers import ProducerStates
from minibroker.segments.checkpoint import TopicPartition
from minibroker.segments.compaction import clean
from minibroker.segments.config import LogConfig
from minibroker.segments.directory import DataDirectory

PARTITION = TopicPartition("orders", 0)


class WatchedFiles(MemoryFiles):
    """Counts its handles that are still referenced."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: WeakSet[MemoryFile] = WeakSet()
        self.opened = 0

    def open(self, path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        file = super().open(path, create=create, writable=writable)
        self.opened += 1
        self.alive.add(file)
        return file


def bounded(handles_max: int) -> tuple[WatchedFiles, BoundedFiles]:
    disk = WatchedFiles()
    return disk, BoundedFiles(disk, handles_max=handles_max)


def written(files: Files, path: str, data: bytes) -> File:
    """A file with this content, flushed."""
    file = files.open(path)
    file.pwrite(data, 0)
    file.fsync()
    return file


# The bound


def test_no_more_handles_are_open_than_allowed() -> None:
    disk, files = bounded(3)
    opened = [written(files, f"d/{n}", b"%d" % n) for n in range(20)]
    assert files.handles == len(disk.alive) == 3
    assert [file.pread(9, 0) for file in opened] == [b"%d" % n for n in range(20)]
    assert files.handles == len(disk.alive) == 3


def test_the_least_recently_used_file_is_closed() -> None:
    disk, files = bounded(2)
    first, second = written(files, "d/1", b"1"), written(files, "d/2", b"2")
    first.pread(1, 0)
    written(files, "d/3", b"3")
    opened = disk.opened
    first.pread(1, 0)
    assert disk.opened == opened
    second.pread(1, 0)
    assert disk.opened == opened + 1


def test_a_handle_is_released_when_its_file_is_closed_or_unreferenced() -> None:
    disk, files = bounded(5)
    one, other = written(files, "d/1", b"1"), written(files, "d/2", b"2")
    one.close()
    assert files.handles == len(disk.alive) == 1
    del other
    assert files.handles == len(disk.alive) == 0
    assert files._named == {}
    with pytest.raises(OSError, match="the file is closed"):
        one.pread(1, 0)


def test_opening_a_missing_file_takes_no_handle() -> None:
    _disk, files = bounded(1)
    with pytest.raises(FileNotFoundError):
        files.open("d/1", create=False)
    assert files.handles == 0
    assert files._named == {}


def test_when_the_process_is_out_of_descriptors_a_handle_is_closed_for_the_new_one() -> None:
    disk, files = bounded(100)
    opened = [written(files, f"d/{n}", b"%d" % n) for n in range(5)]
    assert len(disk.alive) == 5
    really_open, allowed = disk.open, 3

    def refuse_sometimes(path: str, *, create: bool = True, writable: bool = True) -> MemoryFile:
        if len(disk.alive) > allowed:
            raise OSError(errno.EMFILE, "too many open files")
        return really_open(path, create=create, writable=writable)

    disk.open = refuse_sometimes  # type: ignore[method-assign]
    assert written(files, "d/9", b"9").pread(1, 0) == b"9"
    assert len(disk.alive) <= 4
    allowed = -1
    with pytest.raises(OSError, match="too many open files"):
        files.open("d/10")
    allowed = 3
    assert [file.pread(1, 0) for file in opened] == [b"0", b"1", b"2", b"3", b"4"]


# Names


def test_an_unlinked_file_stays_readable_as_long_as_it_is_referenced() -> None:
    disk, files = bounded(1)
    gone, other = written(files, "d/1", b"gone"), written(files, "d/2", b"other")
    files.unlink("d/1")
    written(files, "d/1", b"another of the same name")
    assert other.pread(9, 0) == b"other"
    assert gone.pread(9, 0) == b"gone"
    assert gone.size() == 4
    del gone
    assert len(disk.alive) == 1


def test_a_replaced_file_stays_readable_and_the_path_opens_the_new_one() -> None:
    _disk, files = bounded(1)
    old, new = written(files, "d/1.log", b"old"), written(files, "d/1.log.swap", b"new")
    files.rename("d/1.log.swap", "d/1.log")
    for n in range(3):
        written(files, f"d/{n}", b"")
    assert (old.pread(9, 0), new.pread(9, 0)) == (b"old", b"new")
    assert files.open("d/1.log").pread(9, 0) == b"new"


def test_open_files_follow_the_rename_of_their_directory() -> None:
    _disk, files = bounded(1)
    inside, beside = written(files, "data/a-0/1", b"inside"), written(files, "data/a-01/1", b"beside")
    files.rename("data/a-0", "data/b")
    assert (inside.pread(9, 0), beside.pread(9, 0)) == (b"inside", b"beside")
    files.unlink("data/b/1")
    assert (inside.pread(9, 0), beside.pread(9, 0)) == (b"inside", b"beside")


def test_a_failed_unlink_or_rename_changes_nothing() -> None:
    _disk, files = bounded(1)
    file = written(files, "d/1", b"1")
    with pytest.raises(FileNotFoundError):
        files.unlink("d/2")
    with pytest.raises(FileNotFoundError):
        files.rename("d/2", "d/1")
    other = written(files, "d/3", b"3")
    assert files.handles == 1
    assert other.pread(1, 0) == b"3"
    assert file.pread(1, 0) == b"1"


# Flushes


def test_a_dirty_file_keeps_its_handle_while_a_clean_one_can_be_closed() -> None:
    _disk, files = bounded(2)
    dirty = files.open("d/1")
    dirty.pwrite(b"1", 0)
    for n in range(5):
        written(files, f"d/clean {n}", b"")
        dirty_handle = dirty.open_handle
        assert dirty_handle is not None
    assert files.flushes_forced == 0


def test_if_all_files_are_dirty_the_least_recently_used_is_flushed_before_it_is_closed() -> None:
    disk, files = bounded(2)
    opened = [files.open(f"d/{n}") for n in range(3)]
    for file in opened:
        file.pwrite(b"x", 0)
    assert files.flushes_forced == 1
    files.fsync_directory("d")
    disk.crash()
    assert [disk.open(f"d/{n}").pread(9, 0) for n in range(3)] == [b"x", b"", b""]


def test_the_error_of_a_forced_flush_is_raised_by_every_later_fsync_of_that_file() -> None:
    disk, files = bounded(1)
    unlucky = files.open("d/1")
    unlucky.pwrite(b"1", 0)
    disk.fsync_error = OSError(errno.EIO, "input/output error")
    innocent = files.open("d/2")  # closes the other one
    disk.fsync_error = None
    innocent.fsync()
    for _ in range(2):
        with pytest.raises(OSError, match="input/output error"):
            unlucky.fsync()


def test_a_write_during_a_flush_leaves_the_file_dirty() -> None:
    _disk, files = bounded(2)
    file = files.open("d/1")
    file.pwrite(b"1", 0)
    handle = file.open_handle
    assert handle is not None
    really_pwrite = handle.pwrite

    def flushed_meanwhile(data: bytes, position: int) -> int:
        file.fsync()
        return really_pwrite(data, position)

    handle.pwrite = flushed_meanwhile  # type: ignore[method-assign, assignment]
    file.pwrite(b"2", 1)
    assert file.is_dirty


def test_a_handle_stays_open_as_long_as_it_is_referenced(tmp_path: Path) -> None:
    files = BoundedFiles(OSFiles(), handles_max=1)
    file = written(files, f"{tmp_path}/1", b"one")
    assert isinstance(file, BoundedFile)
    handle = file.handle()
    assert isinstance(handle, OSFile)
    number = handle.fileno()
    for n in range(5):
        written(files, f"{tmp_path}/other {n}", b"other")
    file.close()
    assert handle.fileno() == number
    assert handle.pread(9, 0) == b"one"


# The same as without a bound

NAMES = ["a/1", "a/2", "a/3", "b/1", "b/2"]
WAYS = (
    "open open pread pread pwrite pwrite truncate size fsync drop_cache close drop rename unlink rename_directory list"
)
OPERATIONS = st.lists(st.tuples(st.sampled_from(WAYS.split()), st.integers(0, 2**16)), max_size=60)


class Player:
    """Applies the same operations to any `Files`, and records the result of each."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.open: list[File] = []
        self.seen: list[object] = []

    def play(self, what: str, number: int) -> None:
        try:
            self.seen.append(self.do(what, Random(number)))
        except OSError as error:
            self.seen.append(error.errno)

    def do(self, what: str, chance: Random) -> object:
        name = chance.choice(NAMES)
        if what == "open":
            self.open.append(self.files.open(name, create=chance.random() < 0.7))
        elif what == "rename":
            target = chance.choice([other for other in NAMES if other != name])
            self.files.rename(name, target)
        elif what == "rename_directory":
            self.files.rename("b", "c")
            return self.files.list("c")
        elif what == "unlink":
            self.files.unlink(name)
        elif what == "list":
            return [self.files.list(directory) for directory in "abc"]
        elif self.open:
            index = chance.randrange(len(self.open))
            if what in ("close", "drop"):
                file = self.open.pop(index)
                if what == "close":
                    file.close()
                return None
            return self.use(what, self.open[index], chance)
        return None

    def use(self, what: str, file: File, chance: Random) -> object:
        if what == "pread":
            return file.pread(chance.randrange(20), chance.randrange(10))
        if what == "pwrite":
            return file.pwrite(chance.randbytes(chance.randrange(10)), chance.randrange(10))
        if what == "truncate":
            file.truncate(chance.randrange(15))
            return None
        return getattr(file, what)()


@settings(max_examples=300)
@given(st.integers(1, 3), OPERATIONS)
def test_every_operation_works_as_without_a_bound(handles_max: int, operations: list[tuple[str, int]]) -> None:
    disk, files = bounded(handles_max)
    plain, limited = Player(MemoryFiles()), Player(files)
    for what, number in operations:
        plain.play(what, number)
        limited.play(what, number)
        assert limited.seen == plain.seen
        nameless = [file for file in limited.open if isinstance(file, BoundedFile) and file.path is None]
        assert files.handles <= handles_max
        assert len(disk.alive) <= handles_max + len(nameless)
    assert [f.pread(99, 0) for f in limited.open] == [f.pread(99, 0) for f in plain.open]


def test_threads_never_use_a_closed_handle(tmp_path: Path) -> None:
    """Each thread reads its own files, which contain its number, while the others close its handles."""
    files = BoundedFiles(OSFiles(), handles_max=2)
    failures: list[str] = []

    def read_again_and_again(thread: int) -> None:
        mine = {b"%d/%d" % (thread, n): files.open(f"{tmp_path}/{thread}-{n}") for n in range(5)}
        for name, file in mine.items():
            file.pwrite(name, 0)
        for turn in range(300):
            for name, file in mine.items():
                if file.pread(99, 0) != name:
                    failures.append(f"thread {thread}: another file in turn {turn}")
            list(mine.values())[turn % 5].fsync()

    threads = [threading.Thread(target=read_again_and_again, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert files.handles == 0


# Logs


def batch(value: bytes, *, key: bytes = b"k") -> bytearray:
    builder = BatchBuilder()
    builder.append(timestamp=1000, key=key, value=value)
    return builder.build()


def test_a_slice_outlives_retention_compaction_truncation_and_deletion() -> None:
    config = LogConfig(segment_bytes=200, cleanup_policy=frozenset({"compact"}))
    _disk, files = bounded(1)
    data = DataDirectory(files, "data")
    log = data.open_log(PARTITION, config)
    for n in range(12):
        log.append(batch(b"value %d" % n))
    log.flush()
    slices = {offset: log.read(offset, bytes_max=1) for offset in range(12)}
    before = {offset: it.read() for offset, it in slices.items()}
    clean(log, first_dirty_offset=0, now_ms=10**9)
    log.delete_before(4)
    log.truncate(11)
    data.delete_log(PARTITION)
    assert {offset: slices[offset].read() for offset in range(11)} == {offset: before[offset] for offset in range(11)}
    assert [name for name in files.list("data") if name.startswith("orders")] == []


def test_many_partitions_need_few_descriptors(tmp_path: Path) -> None:
    """60 partitions are written, read, reopened and read again, with a limit far below their number of files."""
    program = textwrap.dedent("""
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        from minibroker.log.batch import BatchBuilder, batches
        from minibroker.log.disk import OSFiles
        from minibroker.partitions.files import BoundedFiles
        from minibroker.partitions.producers import ProducerStates
        from minibroker.segments.checkpoint import TopicPartition
        from minibroker.segments.config import LogConfig
        from minibroker.segments.directory import DataDirectory

        def opened():
            files = BoundedFiles(OSFiles(), handles_max=10)
            data = DataDirectory(files, sys.argv[1])
            logs = []
            for n in range(60):
                name = TopicPartition("orders", n)
                producers = ProducerStates(files, data.directory_of(name))
                logs.append(data.open_log(name, LogConfig(segment_bytes=300), companions=[producers]))
            return files, data, logs

        files, data, logs = opened()
        for turn in range(6):
            for n, log in enumerate(logs):
                builder = BatchBuilder(producer_id=n, producer_epoch=0, base_sequence=turn)
                builder.append(timestamp=turn, key=None, value=b"%d %d" % (n, turn))
                log.append(builder.build())
        assert files.handles <= 10
        data.close()
        files, data, logs = opened()
        assert data.is_clean
        for n, log in enumerate(logs):
            found = []
            for offset in range(6):
                for batch in batches(log.read(offset, bytes_max=1).read()):
                    found += [record.value for record in batch.records()]
            assert found == [b"%d %d" % (n, turn) for turn in range(6)], found
        data.close()
        print("fine")
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "fine\n", result.stderr


def test_a_clean_start_opens_each_partition_with_few_calls() -> None:
    disk = WatchedFiles()
    for _ in range(2):
        files = BoundedFiles(disk, handles_max=8)
        data = DataDirectory(files, "data")
        for n in range(20):
            name = TopicPartition("orders", n)
            producers = ProducerStates(files, data.directory_of(name))
            log = data.open_log(name, companions=[producers])
            if log.log_end_offset == 0:
                log.append(batch(b"v"))
        assert files.handles <= 8
        opened = disk.opened
        data.close()
        disk.opened = 0
    assert opened <= 20 * 4 + 3


def test_files_and_connections_share_the_descriptors_of_the_process() -> None:
    """Otherwise a node with many connections could open no file, and write nothing."""
    expected = {
        4114: (3000, 1000),
        1114: (500, 500),
        256: (71, 71),
        255: "this process may open 255 files and connections, and needs 256: raise ulimit -n",
    }
    # A limit can be lowered only, so the largest comes first.
    program = textwrap.dedent(f"""
        import resource
        from minibroker.metadata.configs import NodeConfig
        from minibroker.partitions.errors import BrokerFailure
        from minibroker.partitions.machine import handles_of
        for limit in {list(expected)}:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            try:
                print(limit, handles_of(NodeConfig()))
            except BrokerFailure as failure:
                print(limit, failure)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{limit} {shared}" for limit, shared in expected.items()]
