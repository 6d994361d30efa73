"""The disk in memory behaves like the real one, and loses power as a real one may."""

import errno
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_cases import each_case

from minibroker.log.disk import OSFiles
from minibroker.log.interfaces import Files
from minibroker.log.memory import MemoryFiles


@pytest.fixture(params=["memory", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """Each test that takes this runs on both implementations."""
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


def test_a_write_past_the_end_leaves_zeros(disk: tuple[Files, str]) -> None:
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
    assert removed.pread(9, 0) == b"c"  # a reader that has it open goes on reading


def test_directories_are_listed_too(disk: tuple[Files, str]) -> None:
    files, directory = disk
    files.mkdir(f"{directory}/inner/most")
    files.open(f"{directory}/inner/most/a").close()
    files.mkdir(f"{directory}/inner")
    assert files.list(directory) == ["inner"]
    assert files.list(f"{directory}/inner/most") == ["a"]


def test_a_missing_file_is_an_error_unless_it_may_be_created(disk: tuple[Files, str]) -> None:
    files, directory = disk
    with pytest.raises(FileNotFoundError):
        files.open(f"{directory}/none", create=False)


def test_a_closed_file_refuses_every_call(disk: tuple[Files, str]) -> None:
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
def test_a_crash_keeps_what_was_flushed_and_of_the_rest_only_what_was_written(written: list[bytes], seed: int) -> None:
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
    whole = b"safe" + b"".join(written)
    assert len(left) <= len(whole)
    assert all(byte in (0, whole[position]) for position, byte in enumerate(left))


def tails_after_crashes() -> set[bytes]:
    tails = set()
    for seed in range(500):
        files = MemoryFiles()
        file = files.open("a")
        files.fsync_directory(".")
        file.pwrite(b"12", 0)
        file.pwrite(b"345", 2)
        files.crash(Random(seed))
        tails.add(files.open("a").pread(9, 0))
    return tails


def test_crashes_reach_every_prefix_and_holes_of_zeros() -> None:
    tails = tails_after_crashes()
    assert {b"12345"[:cut] for cut in range(6)} <= tails
    assert b"\x00\x00345" in tails
    assert b"1\x00345" in tails


def test_a_full_disk_takes_a_part_and_then_refuses() -> None:
    file = MemoryFiles(room_bytes=5).open("a")
    assert file.pwrite(b"abc", 0) == 3
    assert file.pwrite(b"defg", 3) == 2
    with pytest.raises(OSError, match="no space") as raised:
        file.pwrite(b"h", 5)
    assert raised.value.errno == errno.ENOSPC
    assert file.pwrite(b"ABCDE", 0) == 5  # a write that does not grow the file needs no room


def test_names_that_were_removed_durably_stay_removed() -> None:
    files = MemoryFiles()
    for name in ("a", "b"):
        files.open(f"d/{name}")
    files.fsync_directory("d")
    files.unlink("d/a")
    files.rename("d/b", "d/c")
    files.fsync_directory("d")
    files.crash()
    assert files.list("d") == ["c"]


def test_a_name_that_is_not_there_can_be_neither_renamed_nor_removed(disk: tuple[Files, str]) -> None:
    files, directory = disk
    with pytest.raises(FileNotFoundError):
        files.rename(f"{directory}/none", f"{directory}/other")
    with pytest.raises(FileNotFoundError):
        files.unlink(f"{directory}/none")


# What only the real disk can show


def test_a_flush_reaches_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("minibroker.log.disk._flush", flushed.append)
    file = OSFiles().open(str(tmp_path / "a"))
    file.fsync()
    assert flushed == [file.fileno()]
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    OSFiles().fsync_directory(str(tmp_path))
    assert len(synced) == 1


def test_a_short_read_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OSFiles().open(str(tmp_path / "a"))
    file.pwrite(b"0123456789", 0)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, position: whole(descriptor, min(count, 3), position))
    assert file.pread(8, 1) == b"12345678"


def test_after_a_failed_fsync_the_next_one_succeeds_without_writing() -> None:
    files = MemoryFiles()
    file = files.open("a")
    files.fsync_directory(".")
    file.pwrite(b"abc", 0)
    files.fsync_error = OSError(errno.EIO, "input/output error")
    with pytest.raises(OSError, match="input/output"):
        file.fsync()
    files.fsync_error = None
    file.fsync()
    assert file.pread(9, 0) == b"abc"  # the page cache still shows it
    file.drop_cache()
    assert file.pread(9, 0) == b""  # the disk never had it


def test_dropping_the_cache_keeps_what_is_yet_to_be_written(disk: tuple[Files, str]) -> None:
    files, directory = disk
    file = files.open(f"{directory}/a")
    file.pwrite(b"abc", 0)
    file.fsync()
    file.pwrite(b"de", 3)
    file.drop_cache()
    assert file.pread(9, 0) == b"abcde"


# Directories


def test_a_renamed_directory_keeps_its_files_and_is_removed_only_when_empty(disk: tuple[Files, str]) -> None:
    files, directory = disk
    files.mkdir(f"{directory}/a")
    held = files.open(f"{directory}/a/1")
    held.pwrite(b"one", 0)
    files.rename(f"{directory}/a", f"{directory}/b")
    assert files.list(directory) == ["b"]
    assert files.open(f"{directory}/b/1", create=False).pread(9, 0) == held.pread(9, 0) == b"one"
    with pytest.raises(OSError, match=r"(?i)not empty"):
        files.rmdir(f"{directory}/b")
    files.unlink(f"{directory}/b/1")
    files.rmdir(f"{directory}/b")
    assert files.list(directory) == []
    assert held.pread(9, 0) == b"one"


@each_case("is_flushed", [False, True])
def test_the_new_name_of_a_directory_is_durable_with_the_directory_above(is_flushed: bool) -> None:
    files = MemoryFiles()
    files.open("data/a/1")
    files.fsync_directory("data/a")
    files.rename("data/a", "data/b")
    if is_flushed:
        files.fsync_directory("data")
    files.crash()
    assert files.list("data") == ["b" if is_flushed else "a"]
