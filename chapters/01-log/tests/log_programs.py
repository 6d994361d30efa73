"""Programs of the first chapters as processes of their own: run beside a test, fed, and killed while they write."""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

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
    """The first record of a program that appends, acknowledged."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(b"a\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == b"acked 0-0\n"


def acked_until_killed(command: Sequence[str], acks_before_the_kill: int) -> int:
    """Run a program that appends, kill it after so many acknowledgements, and count all that it gave."""
    with running(command) as writer:
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
    assert acked >= acks_before_the_kill
    return acked
