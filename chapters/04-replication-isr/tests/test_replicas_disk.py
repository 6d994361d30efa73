"""Claims about a disk that has failed: the first error counts, and it is reported once."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import case

from minibroker.replicas.disk import WatchedFiles, loses_records

FULL = "/dev/full"


class Told(list[tuple[str, int | None]]):
    def __call__(self, what: str, error: OSError) -> None:
        self.append((what, error.errno))


def test_an_error_of_a_file_name_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    told = Told()
    files = WatchedFiles(told)
    (tmp_path / "directory" / "inside").mkdir(parents=True)
    for work in (
        lambda: files.open(f"{tmp_path}/missing", create=False),
        lambda: files.rmdir(f"{tmp_path}/directory"),
        lambda: files.fsync_directory(f"{tmp_path}/missing"),
        lambda: files.rename(f"{tmp_path}/missing", f"{tmp_path}/other"),
    ):
        with pytest.raises(OSError):
            work()
    assert told == []
    files.mkdir(f"{tmp_path}/new")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_after_its_first_error_a_disk_can_only_be_read(tmp_path: Path) -> None:
    told = Told()
    files = WatchedFiles(told)
    sound = files.open(f"{tmp_path}/sound")
    sound.pwrite(b"kept", 0)
    full = files.open(FULL, create=False)
    with pytest.raises(OSError, match="No space left on device"):
        full.pwrite(b"x", 0)
    assert told == [(f"write {FULL}", errno.ENOSPC)]
    refused: list[Callable[[], object]] = [
        lambda: sound.pwrite(b"lost", 0),
        sound.fsync,
        lambda: sound.truncate(0),
        lambda: files.fsync_directory(str(tmp_path)),
        lambda: files.rename(f"{tmp_path}/sound", f"{tmp_path}/other"),
        lambda: files.unlink(f"{tmp_path}/sound"),
        lambda: files.mkdir(f"{tmp_path}/new"),
    ]
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/new")
    for work in refused:
        with pytest.raises(OSError, match="failed before: No space left on device"):
            work()
    assert sound.pread(10, 0) == b"kept"
    assert files.open(f"{tmp_path}/sound", create=False, writable=False).pread(10, 0) == b"kept"
    assert files.list(str(tmp_path)) == ["sound"]
    assert len(told) == 1


def test_a_full_disk_loses_nothing_that_was_written_and_a_failed_flush_may() -> None:
    for what, number, expected in (
        ("write", errno.ENOSPC, False),
        ("open", errno.EDQUOT, False),
        ("write", errno.EFBIG, False),
        ("flush", errno.ENOSPC, True),
        ("flush", errno.EIO, True),
        ("write", errno.EIO, True),
        ("read", errno.EIO, True),
        ("write", errno.EROFS, True),
    ):
        with case(what, errno.errorcode[number]):
            assert loses_records(f"{what} data/orders-0/00000000000000000000.log", OSError(number, "")) is expected
