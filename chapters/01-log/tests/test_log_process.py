"""The log as a program: appended to, tailed, dumped, and killed in the middle of a write."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.log.batch import batches
from minibroker.log.disk import OSFiles
from minibroker.log.logfile import LogFile

LOG = [sys.executable, "-m", "minibroker.log"]
DEADLINE_S = 60


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
    assert run("tail", path, code=1) == "0\t\ta\nminibroker.log: batch at position 69: 68 of 69 bytes\n"
    assert "ends at offset 1; cut off: batch at position 69" in run("append", path, stdin="c\n")
    assert run("tail", path) == "0\t\ta\n1\t\tc\n"


def test_tail_never_prints_a_flipped_bit(path: str) -> None:
    run("append", path, "--batch", "1", stdin="a\nb\n")
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"X")
    assert run("tail", path, code=1).startswith("0\t\ta\nminibroker.log: batch at position")


def test_a_missing_file_is_one_line(path: str) -> None:
    assert run("tail", path, code=1) == f"minibroker.log: {path}: No such file or directory\n"


def test_wrong_usage_is_exit_code_2(path: str) -> None:
    run("append", path, "--flush", "sometimes", code=2)
    run("frobnicate", code=2)


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*LOG, *arguments], **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_a_second_writer_is_refused(path: str) -> None:
    with running("append", path, "--batch", "1") as first:
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write(b"a\n")
        first.stdin.flush()
        assert first.stdout.readline() == b"acked 0-0\n"
        assert "another process is appending" in run("append", path, stdin="b\n", code=1)


def test_follow_prints_what_is_appended_later_and_ends_cleanly_at_ctrl_c(path: str) -> None:
    run("append", path, stdin="a\n")
    with running("tail", "--follow", path) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"0\t\ta\n"
        run("append", path, stdin="b\n")
        assert tail.stdout.readline() == b"1\t\tb\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(DEADLINE_S) == 130
        assert tail.stderr.read() == b""


def read_values(path: str) -> list[bytes]:
    log = LogFile.open(OSFiles(), path)
    try:
        found = log.read(0, bytes_max=2**31)
        return [record.value or b"" for batch in batches(found.read()) for record in batch.records()]
    finally:
        log.close()


@pytest.mark.parametrize("acks_before_the_kill", [1, 40, 333])
def test_kill_9_of_a_writing_process_loses_nothing_that_was_acked(path: str, acks_before_the_kill: int) -> None:
    with running("append", path, "--batch", "1") as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        # Feed it more than it will live to write, and stop feeding when the pipe breaks.
        os.set_blocking(writer.stdin.fileno(), False)
        lines = itertools.count()
        pending = b""
        acked = 0
        while acked < acks_before_the_kill:
            if not pending:
                pending = b"".join(b"value-%d\n" % next(lines) for _ in range(500))
            with contextlib.suppress(BlockingIOError):
                pending = pending[os.write(writer.stdin.fileno(), pending) :]
            acked += writer.stdout.readline().startswith(b"acked")
        writer.send_signal(signal.SIGKILL)
        acked += sum(line.startswith(b"acked") and line.endswith(b"\n") for line in writer.stdout)
        writer.wait(DEADLINE_S)
    left = read_values(path)
    assert acked >= acks_before_the_kill
    assert len(left) >= acked
    assert left == [b"value-%d" % n for n in range(len(left))]
