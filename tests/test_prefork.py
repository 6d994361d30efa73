"""A program that is forked from a template behaves like one that is started: streams, folder, environment, end."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prefork
import pytest
from cases import case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")

PROBE = '''"""Tells what a process sees of itself."""
import asyncio, atexit, json, os, sys, threading

async def forget():
    """Leave a failed task, and a cycle of references that keeps it until garbage is collected."""
    async def fail():
        raise ValueError("its result is never read")
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    kept = [task]
    kept.append(kept)

if __name__ == "__main__":
    word = sys.argv[1]
    if word == "exit":
        sys.exit(int(sys.argv[2]))
    if word == "raise":
        raise ValueError("on purpose")
    if word == "signal":
        os.kill(os.getpid(), int(sys.argv[2]))
    if word == "leave":
        asyncio.run(forget())
        end = threading.Event()
        atexit.register(print, "at exit")
        print("before the threads end")
        # This thread goes on when the program is over, and prints last.
        threading.Thread(target=lambda: (end.wait(0.2), print("in a thread"))).start()
    if word == "tell":
        print(json.dumps({
            "argv": sys.argv[1:], "name": os.path.basename(sys.argv[0]), "stdin": sys.stdin.read(), "cwd": os.getcwd(),
            "first": sys.path[0], "said": os.environ.get("SAID"), "group": os.getpgrp() == os.getpid(),
            "session": os.getsid(0) == os.getpid(), "parent": os.getppid(), "errors": sys.stderr.errors,
            "open": sorted(os.listdir("/proc/self/fd"))[:-1], "encoding": sys.stdout.encoding,
        }))
        print("to stderr", file=sys.stderr)
'''
Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that `python -m` runs."""
    package = tmp_path / "minibroker" / "probing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "minibroker.probing"


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Fork in this test, whatever the run does; the process ids of all forks."""
    forked: list[int] = []
    fork = prefork.Template.fork

    def count(template: prefork.Template, *arguments: Any) -> int:
        forked.append(fork(template, *arguments))
        return forked[-1]

    monkeypatch.setattr(prefork.Template, "fork", count)
    monkeypatch.setitem(prefork.PACKAGES, "minibroker.", ("json",))
    monkeypatch.delenv(prefork.OFF, raising=False)
    uninstall = prefork.install()
    yield forked
    uninstall()


def both(forks: list[int], *words: str, **options: Any) -> list["subprocess.CompletedProcess[str]"]:
    """Run the same command as a whole start and as a fork."""
    ends = []
    for is_off in ("1", ""):
        before = len(forks)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(prefork.OFF, is_off)
            command = [sys.executable, "-m", *words]
            given = {"capture_output": True, "text": True, "timeout": 60, "check": False} | options
            ends.append(subprocess.run(command, **given))
        assert len(forks) - before == (0 if is_off else 1)
    return ends


def test_a_fork_sees_what_a_whole_start_sees(probe: str, forks: list[int], tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "streams": {"input": "given\n"},
        "folder": {"cwd": tmp_path, "input": ""},
        "environment": {"env": os.environ | {"SAID": "yes"}, "input": ""},
        "group": {"process_group": 0, "input": ""},
        "session": {"start_new_session": True, "input": ""},
        "one stream for both": {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    }
    for name, options in cases.items():
        with case(name):
            whole, forked = both(forks, probe, "tell", "a b", "", **options)
            assert (forked.returncode, forked.stdout, forked.stderr) == (0, whole.stdout, whole.stderr)
            assert f'"parent": {os.getpid()},' in forked.stdout


def test_a_fork_ends_as_a_whole_start_ends(probe: str, forks: list[int]) -> None:
    for words, code in (
        (("exit", "0"), 0),
        (("exit", "3"), 3),
        (("raise",), 1),
        (("signal", str(int(signal.SIGKILL))), -signal.SIGKILL),
        (("signal", str(int(signal.SIGTERM))), -signal.SIGTERM),
        (("signal", str(int(signal.SIGINT))), -signal.SIGINT),
    ):
        with case(words):
            ends = both(forks, probe, *words)
            assert [it.returncode for it in ends] == [code, code]
            assert len({it.stderr.splitlines()[-1] if it.stderr else "" for it in ends}) == 1


def test_a_fork_waits_for_threads_runs_exit_functions_and_collects_garbage(probe: str, forks: list[int]) -> None:
    # Output to a pipe is buffered without this variable, so the end must flush it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for end in both(forks, probe, "leave", env=environment):
        assert end.stdout.splitlines() == ["before the threads end", "in a thread", "at exit"]
        assert "Task exception was never retrieved" in end.stderr


def test_what_could_import_other_modules_is_started_whole(probe: str, forks: list[int], tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", probe, "exit", "0"], check=True)
    assert len(forks) == 1
    for name, command, options in (
        ("another path", [sys.executable, "-m", probe, "exit", "0"], {"env": os.environ | {"PYTHONPATH": "/none"}}),
        ("a module of a package", [sys.executable, "-m", f"{probe}.__main__", "exit", "0"], {}),
        ("an option", [sys.executable, "-X", "dev", "-m", probe, "exit", "0"], {}),
        ("another program", [sys.executable, "-c", "pass"], {}),
        ("a shell", f"{sys.executable} -m {probe} exit 0", {"shell": True}),
        ("a handle", [sys.executable, "-m", probe, "exit", "0"], {"pass_fds": [0]}),
    ):
        with case(name):
            subprocess.run(command, check=False, capture_output=True, **options)
            assert len(forks) == 1


def test_a_template_that_cannot_import_its_packages_leaves_whole_starts(
    probe: str, forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(prefork.PACKAGES, "minibroker.", ("nothing_of_this_name",))
    assert subprocess.run([sys.executable, "-m", probe, "exit", "3"], check=False).returncode == 3
    assert forks == []


def test_a_template_adopts_no_orphans_of_the_programs_under_test(probe: str, forks: list[int]) -> None:
    subprocess.run([sys.executable, "-m", probe, "exit", "0"], check=True)
    orphan = subprocess.run(["sh", "-c", "sleep 30 >&- 2>&- & echo $!"], capture_output=True, text=True, check=True)
    pid = int(orphan.stdout)
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        assert int(parent) != os.getpid()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
