"""Claims about shell completion: a script for each shell, names without imports, topics from the broker."""

import shutil
import subprocess
from collections.abc import Callable

import pytest
from brokers import Broker, unique

from minibroker.cli.main import COMMANDS

pytest_plugins = ["clients_fixtures"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def completed(run: Run, line: str, **env: str) -> list[str]:
    """What a shell is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"_MINIBROKER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = run(**asked | env)
    assert result.returncode == 0
    assert result.stderr == ""
    return [offer.partition(",")[2] for offer in result.stdout.splitlines() if offer]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_us(minibroker: Run, shell: str) -> None:
    result = minibroker("completion", shell)
    assert result.returncode == 0
    assert f"_MINIBROKER_COMPLETE={shell}_complete" in result.stdout
    assert result.stdout.startswith("# ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_can_read(minibroker: Run, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = minibroker("completion", shell).stdout
    checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_another_shell_is_wrong_usage(minibroker: Run) -> None:
    result = minibroker("completion", "csh")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_commands_that_work_are_offered_and_those_to_come_are_not(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker ") == list(COMMANDS)
    assert completed(minibroker, "minibroker pro") == ["produce"]
    assert completed(minibroker, "minibroker cluster ") == ["add-voter", "remove-broker", "remove-voter", "status"]
    assert completed(minibroker, "minibroker groups") == []


def test_options_and_their_values_are_offered(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker produce --comp") == ["--compression"]
    assert completed(minibroker, "minibroker produce orders --compression z") == ["zstd"]
    assert completed(minibroker, "minibroker topics de") == ["delete", "describe"]
    assert completed(minibroker, "minibroker up --no") == ["--no-restart"]
    assert completed(minibroker, "minibroker cluster status --format j") == ["json"]
    assert "--child" not in completed(minibroker, "minibroker serve --")


@pytest.mark.parametrize(
    "command",
    ["consume", "produce", *(f"topics {it}" for it in ("describe", "alter", "delete", "reassign", "elect-leaders"))],
)
def test_topics_are_offered_from_the_broker(at_broker: Run, command: str) -> None:
    name = unique("offered")
    at_broker("topics", "create", name)
    assert completed(at_broker, f"minibroker {command} {name[:-3]}") == [name]


def test_the_server_on_the_line_is_asked(minibroker: Run, at_broker: Run, broker: Broker) -> None:
    name = unique("offered")
    at_broker("topics", "create", name)
    line = f"minibroker consume --bootstrap-server {broker.address} {name}"
    assert completed(minibroker, line, MINIBROKER_BOOTSTRAP_SERVER="127.0.0.1:1") == [name]


def test_no_broker_is_no_offer_and_no_complaint(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker consume --bootstrap-server 127.0.0.1:1 ord") == []
