"""Fixtures of the command line's tests: the program as a process, and a broker for it."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from brokers import Broker

from minibroker.cli.main import main

PROGRAM = (sys.executable, "-m", "minibroker.cli")


@pytest.fixture
def minibroker() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs the program to its end: `minibroker("topics", "list", stdin="", NO_COLOR="1")`."""

    def run(*arguments: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            env=os.environ | {"COLUMNS": "80"} | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def minibroker_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Like `minibroker`, but in this process: for commands that end before they connect to or start anything."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["minibroker", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(str(ended.value.code)), out, err)

    return run


@pytest.fixture
def at_broker(
    minibroker: Callable[..., "subprocess.CompletedProcess[str]"], broker: Broker
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return the same function with the shared broker as the bootstrap server."""

    def run(*arguments: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return minibroker(*arguments, stdin=stdin, **{"MINIBROKER_BOOTSTRAP_SERVER": broker.address} | env)

    return run
