"""A data directory belongs to one node: it is formatted once, locked while in use, and refused to other nodes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.log.errors import StorageError
from minibroker.partitions.errors import BrokerFailure
from minibroker.partitions.files import BoundedFiles
from minibroker.partitions.identity import OccupiedDirectory, identify, lock, new_id, new_id_bytes
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog
from minibroker.wire.uuids import parse_uuid


def test_a_new_directory_is_formatted_once_and_in_kafkas_format(tmp_path: Path) -> None:
    first = identify(str(tmp_path), 3)
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert lines == [
        "version=1",
        f"cluster.id={first.cluster_id}",
        "node.id=3",
        f"directory.id={first.directory_id}",
    ]
    assert identify(str(tmp_path), 3) == first
    assert len(first.cluster_id) == 22
    assert len(parse_uuid(first.cluster_id)) == 16


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    identify(str(tmp_path), 3)
    with pytest.raises(BrokerFailure, match="belongs to node 3, but this is node 4"):
        identify(str(tmp_path), 4)


def test_a_malformed_file_is_refused_by_name(tmp_path: Path) -> None:
    for text in ("version=0\nbroker.id=1\n", "", "version=1\ncluster.id=x\n", "version=1\nnode.id=x\n"):
        (tmp_path / "meta.properties").write_text(text)
        try:
            identify(str(tmp_path), 1)
        except BrokerFailure as refused:
            assert "meta.properties" in str(refused), repr(text)
        else:
            pytest.fail(f"{text!r} was accepted")


def test_a_file_that_kafka_wrote_is_understood(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\n#Mon Nov 16\nversion=1\ncluster.id=abc\nnode.id=1\n")
    assert identify(str(tmp_path), 1).cluster_id == "abc"


def test_a_directory_is_locked_by_one_node_at_a_time(tmp_path: Path) -> None:
    descriptor = lock(str(tmp_path / "data"))
    with pytest.raises(BrokerFailure, match="in use by another node"):
        lock(str(tmp_path / "data"))
    os.close(descriptor)
    os.close(lock(str(tmp_path / "data")))


def test_a_program_whose_data_directory_is_lost_ends_with_one_line(tmp_path: Path) -> None:
    """KIP-112: its open files would take every write, and no restart would find them."""
    losses: dict[str, tuple[Callable[[Path], object], str]] = {
        "removed": (lambda data: shutil.rmtree(data.rename(data.with_suffix(".old"))), "cannot be found any more"),
        "moved": (lambda data: data.rename(data.with_suffix(".moved")), "cannot be found any more"),
        "replaced": (replace, "has been replaced by another directory"),
        "unmarked": (lambda data: (data / "meta.properties").unlink(), "meta.properties: No such file or directory"),
    }
    programs = {name: started(tmp_path / name) for name in losses}
    try:
        for name, (lose, _words) in losses.items():
            assert programs[name].stdout.readline().startswith("ready: "), name  # type: ignore[union-attr]
            lose(tmp_path / name)
        for name, (_lose, words) in losses.items():
            _out, complaints = programs[name].communicate(timeout=20)
            assert programs[name].returncode == 1, name
            (line,) = [it for it in complaints.splitlines() if not it.startswith("INFO ")]
            assert line.startswith(f"node 1 ends, because its data directory {tmp_path / name} "), name
            assert words in line, name
            assert line.endswith("put the directory back, then start the node again"), name
    finally:
        for program in programs.values():
            program.kill()
            program.communicate()
    assert not (tmp_path / "removed").exists()
    # It wrote nothing into the directory that took the place of its own.
    assert [it.name for it in (tmp_path / "replaced").iterdir()] == ["meta.properties"]


def test_a_flush_in_a_lost_directory_is_refused_although_the_disk_takes_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    os.close(lock(str(data)))
    identify(str(data), 1)
    files = BoundedFiles(OSFiles(), handles_max=10, on_flushed=OccupiedDirectory(str(data)).check)
    log = SegmentedLog.open(files, f"{data}/orders-0", LogConfig(flush_messages=1))
    builder = BatchBuilder()
    builder.append(timestamp=0, key=None, value=b"v")
    assert log.append(builder.build()) == 0
    data.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="the data directory cannot be found any more"):
        log.append(builder.build())


def started(data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minibroker.partitions", str(data), "127.0.0.1:0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def replace(data: Path) -> None:
    moved = data.rename(data.with_suffix(".old"))
    other = data.with_suffix(".new")
    other.mkdir()
    shutil.copy(moved / "meta.properties", other)
    other.rename(data)


def test_ids_are_random_and_never_look_like_an_option() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(text.startswith("-") for text in ids)
    assert all(data[6] >> 4 == 4 and data[8] >> 6 == 2 for data in (new_id_bytes() for _ in range(50)))
