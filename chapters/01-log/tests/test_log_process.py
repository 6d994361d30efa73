"""The log as a program: appended to, tailed, dumped, and killed in the middle of a write."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from log_cases import each_case
from log_programs import DEADLINE_S, acked_until_killed, append_one, refusal, running

from minibroker.log.__main__ import main
from minibroker.log.batch import batches
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import LogFile

LOG = [sys.executable, "-m", "minibroker.log"]


def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
    done = subprocess.run([*LOG, *arguments], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.log")


def test_lines_become_records_and_come_back(path: str) -> None:
    assert run("append", path, "--key-separator", ":", stdin="alice:book\nbob:pen\nplain\n") == "acked 0-2\n"
    assert run("append", path, "--compression", "zstd", "--flush", "ack", stdin="more\n") == "acked 3-3\n"
    assert run("tail", path) == "0\talice\tbook\n1\tbob\tpen\n2\t\tplain\n3\t\tmore\n"
    assert run("tail", path, "--offset", "2") == "2\t\tplain\n3\t\tmore\n"


def test_batches_have_the_size_that_was_asked_for(path: str) -> None:
    assert run("append", path, "--batch", "2", stdin="a\nb\nc\n") == "acked 0-1\nacked 2-2\n"


def test_a_torn_tail_is_named_by_tail_and_cut_by_append(path: str) -> None:
    run("append", path, "--batch", "1", stdin="a\nb\n")
    os.truncate(path, os.path.getsize(path) - 1)
    assert run("tail", path, code=1) == "0\t\ta\nminibroker.log: batch at position 69: only 68 of 69 bytes\n"
    assert "ends at offset 1; cut off: batch at position 69" in run("append", path, stdin="c\n")
    assert run("tail", path) == "0\t\ta\n1\t\tc\n"


def test_tail_never_prints_a_flipped_bit(path: str) -> None:
    run("append", path, "--batch", "1", stdin="a\nb\n")
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"X")
    assert run("tail", path, code=1).startswith("0\t\ta\nminibroker.log: batch at position")


def test_tail_never_prints_a_record_under_another_offset(path: str) -> None:
    run("append", path, "--batch", "1", stdin="a\nb\nc\n")
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 3 + 6)  # the second batch's base offset
        file.write(b"\x10")
    shown = run("tail", path, code=1)
    assert shown.startswith("0\t\ta\nminibroker.log: batch at position")
    assert "base offset 2" in shown


def test_a_missing_file_is_one_line(path: str) -> None:
    assert run("tail", path, code=1) == f"minibroker.log: {path}: No such file or directory\n"


@each_case("command", ["append", "tail", "dump"])
def test_a_folder_and_a_device_are_refused_by_name(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = f"minibroker.log: {tmp_path}: it is a directory; name a file in it\n"
    assert refusal(main, capsys, command, str(tmp_path), code=1) == refused
    refused = "minibroker.log: /dev/zero: it is not a regular file\n"
    assert refusal(main, capsys, command, "/dev/zero", code=1) == refused


# Wrong usage --------------------------------------------------------------------------------------------------------


@each_case(
    ("options", "complaint"),
    [
        (["--batch", "0"], "--batch: '0' is not a whole number from 1 to 2147483647"),
        (["--batch", "-1"], "--batch: '-1' is not"),
        (["--batch", "many"], "--batch: 'many' is not"),
        (["--timestamp", "99999999999999999999"], "--timestamp: '99999999999999999999' is not"),
        (["--timestamp", "-1"], "--timestamp: '-1' is not"),
        (["--key-separator", ""], "--key-separator: the separator must not be empty"),
        (
            ["--flush", "0"],
            "--flush: '0' is not a whole number from 1 to 2147483647; 'never' and 'ack' are allowed, too",
        ),
        (["--flush", "-3"], "--flush: '-3' is not"),
        (["--flush", "abc"], "--flush: 'abc' is not"),
        (["--compression", "rar"], "--compression: invalid choice: 'rar'"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_made(
    path: str, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    output = refusal(main, capsys, "append", path, *options, code=2)
    assert output.startswith(f"python -m minibroker.log append: argument {complaint}")
    assert not os.path.exists(path)


def test_an_unknown_command_is_wrong_usage() -> None:
    assert run("frobnicate", code=2).count("\n") == 1
    assert "--offset: '-1' is not" in run("tail", "a.log", "--offset", "-1", code=2)


def test_a_timestamp_of_zero_is_accepted(path: str) -> None:
    run("append", path, "--timestamp", "0", stdin="a\n")
    assert "CreateTime 1970-01-01T00:00:00.000Z" in run("dump", path)


# What is no log, and what is damaged where no crash can have torn it -----------------------------------------------


@each_case(
    "text",
    [
        b"# minibroker\n\nA distributed log broker in Python that speaks Apache Kafka's formats.\n" * 20,
        b"short",
        b"a line that is longer than where the magic is\n",
        b"\x7fELF" + bytes(200),
        bytes(100) + b"zeros first",
    ],
)
def test_append_leaves_a_file_that_is_no_log_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    readme = tmp_path / "README.md"
    readme.write_bytes(text)
    output = refusal(main, capsys, "append", str(readme), code=1)
    assert output.startswith(f"minibroker.log: {readme}: it is not a log that begins with offset 0 (")
    assert f"--cut would cut it at position 0 and lose {len(text)} bytes" in output
    assert readme.read_bytes() == text


def damaged_in_the_middle(path: str) -> bytes:
    run("append", path, "--batch", "1", stdin="a\nb\nc\n")
    data = bytearray(Path(path).read_bytes())
    data[2 * 69 - 2] ^= 1  # the value of the second batch
    Path(path).write_bytes(data)
    return bytes(data)


def test_append_leaves_a_log_that_is_damaged_in_the_middle_as_it_is(path: str) -> None:
    data = damaged_in_the_middle(path)
    output = run("append", path, stdin="d\n", code=1)
    assert f"{path}: it is damaged in the middle (batch at position 69: crc " in output
    assert "nothing was changed: --cut would cut it at position 69 and lose 138 bytes" in output
    assert Path(path).read_bytes() == data


def test_append_cuts_a_damaged_log_when_told_to(path: str) -> None:
    damaged_in_the_middle(path)
    assert "recovered: the log ends at offset 1" in run("append", path, "--cut", stdin="d\n")
    assert run("tail", path) == "0\t\ta\n1\t\td\n"


@each_case("left", [1, 8, 60, 68])
def test_a_torn_first_batch_is_cut_off_without_the_cut_option(path: str, left: int) -> None:
    run("append", path, stdin="a\n")
    os.truncate(path, left)
    assert "recovered: the log ends at offset 0" in run("append", path, stdin="b\n")
    assert run("tail", path) == "0\t\tb\n"


def test_a_file_that_is_no_log_is_reported_as_such(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# minibroker\n\nA distributed log broker\n")
    assert run("tail", str(readme), code=1) == f"minibroker.log: {readme}: it is not a log\n"
    assert run("tail", "--follow", str(readme), code=1) == f"minibroker.log: {readme}: it is not a log\n"
    assert run("dump", str(readme), code=1).startswith("not a log: batch at position 0: ")


# Processes ----------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(path: str) -> None:
    with running([*LOG, "append", path, "--batch", "1"]) as first:
        append_one(first)
        assert "another process is appending" in run("append", path, stdin="b\n", code=1)


def test_follow_prints_what_is_appended_later_and_ends_cleanly_at_ctrl_c(path: str) -> None:
    run("append", path, stdin="a\n")
    with running([*LOG, "tail", "--follow", path]) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"0\t\ta\n"
        run("append", path, stdin="b\n")
        assert tail.stdout.readline() == b"1\t\tb\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(DEADLINE_S) == 130
        assert tail.stderr.read() == b""


def test_follow_reports_damage_that_no_writer_can_complete(path: str) -> None:
    damaged_in_the_middle(path)
    output = run("tail", "--follow", path, code=1)
    assert output.startswith("0\t\ta\nminibroker.log: batch at position 69: crc ")


def test_follow_waits_for_the_rest_of_a_torn_tail(path: str) -> None:
    run("append", path, "--batch", "1", stdin="a\nb\n")
    whole = Path(path).read_bytes()
    os.truncate(path, len(whole) - 1)
    with running([*LOG, "tail", "--follow", path]) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"0\t\ta\n"
        Path(path).write_bytes(whole)
        assert tail.stdout.readline() == b"1\t\tb\n"


@each_case("reader", ["head -n 1", "true"])
def test_nothing_is_printed_when_the_reader_of_a_pipe_ends(path: str, reader: str) -> None:
    log = f"'{sys.executable}' -m minibroker.log"
    lines = f"seq 1 100000 | {log} append '{path}' --batch 1 | {reader}"
    for command in (lines, f"{log} tail '{path}' | {reader}", f"{log} dump '{path}' | {reader}"):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert done.stderr == ""
    assert run("dump", path, "--batches").endswith("all good\n")


def read_values(path: str) -> list[bytes]:
    log = LogFile.open(OSFiles(), path)
    try:
        found = log.read(0, bytes_max=2**31)
        return [record.value or b"" for batch in batches(found.read()) for record in batch.records()]
    finally:
        log.close()


@pytest.mark.parametrize("acks_before_the_kill", [1, 40, 333])
def test_kill_9_of_a_writing_process_loses_nothing_that_was_acked(path: str, acks_before_the_kill: int) -> None:
    acked = acked_until_killed([*LOG, "append", path, "--batch", "1"], acks_before_the_kill)
    left = read_values(path)
    assert len(left) >= acked
    assert left == [b"value-%d" % n for n in range(len(left))]
