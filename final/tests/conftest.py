"""What the tests of the command line share: the program as a process, and a broker for it to talk to."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from brokers import Broker

PROGRAM = (sys.executable, "-m", "minibroker.cli")


@pytest.fixture
def minibroker() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs the program to its end: `minibroker("topics", "list", stdin="", NO_COLOR="1")`."""

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
def at_broker(
    minibroker: Callable[..., "subprocess.CompletedProcess[str]"], broker: Broker
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """The same, with the shared broker as the bootstrap server."""

    def run(*arguments: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return minibroker(*arguments, stdin=stdin, **{"MINIBROKER_BOOTSTRAP_SERVER": broker.address} | env)

    return run
