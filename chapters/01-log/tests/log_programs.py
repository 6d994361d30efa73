"""Programs of the first chapters as processes of their own: run by a test, and killed while they write."""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest

DEADLINE_S = 60


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def append_one(writer: "subprocess.Popen[bytes]") -> None:
    """Append the first record, and wait for its acknowledgement."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(b"a\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == b"acked 0-0\n"


def acked_until_killed(command: Sequence[str], acks_before_the_kill: int) -> int:
    """Run a program that appends, kill it after some acknowledgements, and count all that it sent."""
    with running(command) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        # Send more lines than it can write before it is killed, and stop when the pipe breaks.
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
    assert acked >= acks_before_the_kill
    return acked


def refusal(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """The one line with which a program refuses its arguments, run within this process."""
    try:
        ended = main(list(arguments))
    except SystemExit as end:
        ended = end.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert (ended, captured.out) == (code, "")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
