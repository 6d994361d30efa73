"""The disk that loses power, against the real one: a crash test is worth what its disk is worth."""

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import Files
from minibroker.log.memory import MemoryFiles


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """Both implementations keep one contract: each test that takes this runs on both."""
    return (MemoryFiles(), "data") if request.param == "memory" else (OSFiles(), str(tmp_path))


def test_what_is_written_is_read_back_by_position(disk: tuple[Files, str]) -> None:
    files, directory = disk
    file = files.open(f"{directory}/a")
    assert file.pwrite(b"hello", 0) == 5
    assert file.pwrite(memoryview(b"J"), 0) == 1
    assert (file.pread(3, 0), file.pread(100, 3), file.pread(5, 99)) == (b"Jel", b"lo", b"")
    assert file.size() == 5
    file.close()
    assert files.open(f"{directory}/a", create=False, writable=False).pread(9, 0) == b"Jello"


def test_a_write_behind_the_end_leaves_zeros(disk: tuple[Files, str]) -> None:
    files, directory = disk
    file = files.open(f"{directory}/a")
    file.pwrite(b"x", 3)
    assert file.pread(9, 0) == b"\x00\x00\x00x"
    file.truncate(2)
    file.truncate(3)
    assert file.pread(9, 0) == b"\x00\x00\x00"


def test_names_are_listed_renamed_and_removed(disk: tuple[Files, str]) -> None:
    files, directory = disk
    for name in ("b", "a", "c"):
        files.open(f"{directory}/{name}").pwrite(name.encode(), 0)
    files.rename(f"{directory}/a", f"{directory}/b")
    removed = files.open(f"{directory}/c")
    files.unlink(f"{directory}/c")
    files.fsync_directory(directory)
    assert files.list(directory) == ["b"]
    assert files.open(f"{directory}/b").pread(9, 0) == b"a"
    assert removed.pread(9, 0) == b"c"  # those who have it open go on reading


def test_a_missing_file_is_an_error_unless_it_may_be_created(disk: tuple[Files, str]) -> None:
    files, directory = disk
    with pytest.raises(FileNotFoundError):
        files.open(f"{directory}/none", create=False)


def test_a_closed_file_is_of_no_use(disk: tuple[Files, str]) -> None:
    files, directory = disk
    file = files.open(f"{directory}/a")
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"closed|Bad file"):
        file.size()


# What only a disk in memory can do


def test_a_crash_loses_what_was_not_flushed() -> None:
    files = MemoryFiles()
    file = files.open("d/a")
    file.pwrite(b"flushed", 0)
    file.fsync()
    files.fsync_directory("d")
    file.pwrite(b"lost", 7)
    files.crash()
    with pytest.raises(OSError, match="closed"):
        file.size()
    assert files.open("d/a").pread(99, 0) == b"flushed"


def test_a_crash_loses_a_name_that_was_not_flushed() -> None:
    files = MemoryFiles()
    files.open("d/a").fsync()
    files.fsync_directory("d")
    files.open("d/b").fsync()
    files.rename("d/a", "d/c")
    assert files.list("d") == ["b", "c"]
    files.crash()
    assert files.list("d") == ["a"]


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=5), st.integers(0, 2**32))
def test_a_crash_keeps_a_prefix_of_the_writes_and_a_torn_one(written: list[bytes], seed: int) -> None:
    files = MemoryFiles()
    file = files.open("a")
    file.pwrite(b"safe", 0)
    file.fsync()
    files.fsync_directory(".")
    for data in written:
        file.pwrite(data, file.size())
    files.crash(Random(seed))
    left = files.open("a").pread(999, 0)
    assert left.startswith(b"safe")
    assert (b"safe" + b"".join(written)).startswith(left)


def test_crashes_reach_every_length_of_the_tail() -> None:
    lengths = set()
    for seed in range(300):
        files = MemoryFiles()
        file = files.open("a")
        files.fsync_directory(".")
        file.pwrite(b"12", 0)
        file.pwrite(b"345", 2)
        files.crash(Random(seed))
        lengths.add(files.open("a").size())
    assert lengths == {0, 1, 2, 3, 4, 5}


def test_a_full_disk_takes_a_part_and_then_refuses() -> None:
    file = MemoryFiles(room_bytes=5).open("a")
    assert file.pwrite(b"abc", 0) == 3
    assert file.pwrite(b"defg", 3) == 2
    with pytest.raises(OSError, match="no space") as raised:
        file.pwrite(b"h", 5)
    assert raised.value.errno == errno.ENOSPC
    assert file.pwrite(b"ABCDE", 0) == 5  # what does not grow the file needs no room


def test_after_a_failed_fsync_the_next_one_succeeds_and_lies() -> None:
    files = MemoryFiles()
    file = files.open("a")
    files.fsync_directory(".")
    file.pwrite(b"abc", 0)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(OSError, match="input/output"):
        file.fsync()
    files.fsync_error = None
    file.fsync()
    files.crash()
    assert files.open("a").size() == 0
