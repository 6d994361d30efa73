"""Claims about `minibroker dump` as a process: the kinds of files, the output and the exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.dump import dump as dump_command
from minibroker.log.batch import BatchBuilder
from minibroker.log.disk import OSFiles
from minibroker.segments.config import LogConfig
from minibroker.segments.segmented import SegmentedLog

FIRST = "00000000000000000000"
TIME = 1_700_000_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of three segments."""
    directory = tmp_path / "orders-0"
    log = SegmentedLog.open(OSFiles(), str(directory), LogConfig(segment_bytes=430, index_interval_bytes=100))
    for number in range(14):
        builder = BatchBuilder()
        builder.append(timestamp=TIME + number, key=None, value=b"%02d" % number)
        log.append(builder.build())
    log.close()
    return directory


def dump(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minibroker.cli", "dump", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def shown(*arguments: object) -> list[str]:
    result = dump(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def refused(*arguments: object) -> tuple[int, str]:
    result = dump(*arguments)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return result.returncode, line


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def test_each_kind_of_file_is_known_by_its_name(partition: Path) -> None:
    assert shown(partition / f"{FIRST}.log")[-1] == "6 batches, 6 records, 420 bytes: all good"
    assert shown(partition / f"{FIRST}.index")[0] == "entry 0: offset 2 (relative 2), position 140"
    line = "entry 0: timestamp 2023-11-14T22:13:20.002Z, offset 2 (relative 2)"
    assert shown(partition / f"{FIRST}.timeindex")[0] == line
    checkpoint = partition.parent / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 14\n")
    assert shown(checkpoint)[2:] == ["orders-0: offset 14", "1 entry: all good"]


def test_an_index_is_found_from_inside_its_directory(partition: Path) -> None:
    command = [sys.executable, "-m", "minibroker.cli", "dump", "--verify", f"{FIRST}.index"]
    result = subprocess.run(command, cwd=partition, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, "2 entries: all good\n")


def test_bytes_and_json_of_an_index(partition: Path) -> None:
    assert "00 00 00 8c              position             140" in shown("--bytes", partition / f"{FIRST}.index")[2]
    first, _second = (json.loads(line) for line in shown("--format", "json", partition / f"{FIRST}.index"))
    assert first == {"entry": 0, "offset": 2, "relative_offset": 2, "position": 140, "damage": None}


def test_verifying_a_directory_reads_every_segment_and_index(partition: Path) -> None:
    assert shown("--verify", partition) == ["3 segments, 14 batches, 14 records, 980 bytes: all good"]


@pytest.mark.parametrize(
    ("name", "position"), [(f"{FIRST}.log", 415), (f"{FIRST}.index", 3), (f"{FIRST}.timeindex", 7)]
)
def test_a_flipped_bit_in_a_directory_is_reported_with_exit_code_1(partition: Path, name: str, position: int) -> None:
    flip(partition / name, position)
    result = dump("--verify", partition)
    finding, last = result.stdout.splitlines()
    assert result.returncode == 1
    assert finding.startswith(f"{partition / name}: position ")
    assert last.endswith("1 damaged")
    as_json = dump("--verify", "--format", "json", partition)
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["path"] == str(partition / name)


def test_a_damaged_index_exits_with_1_only_with_verify(partition: Path) -> None:
    flip(partition / f"{FIRST}.index", 3)
    assert dump("--verify", partition / f"{FIRST}.index").returncode == 1
    assert dump(partition / f"{FIRST}.index").returncode == 0


def test_a_file_that_cannot_be_dumped_is_refused_in_one_line(partition: Path) -> None:
    (partition / "notes.txt").write_text("notes")
    code, line = refused(partition / "notes.txt")
    assert code == 1
    assert "*.timeindex" in line
    code, line = refused(partition)
    assert code == 2
    assert "add --verify" in line
    code, line = refused("--verify", partition.parent)
    assert code == 1
    assert "no log files" in line


def test_a_dump_changes_nothing(partition: Path) -> None:
    before = {path.name: path.read_bytes() for path in partition.iterdir()}
    dump("--verify", partition)
    for name in before:
        CliRunner().invoke(dump_command, [str(partition / name)])
    assert {path.name: path.read_bytes() for path in partition.iterdir()} == before
