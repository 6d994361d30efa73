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
    """The completions of the last word of a line."""
    words = line.split(" ")
    asked = {"_MINIBROKER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = run(**asked | env)
    assert result.returncode == 0
    assert result.stderr == ""
    return [offer.partition(",")[2] for offer in result.stdout.splitlines() if offer]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_the_program_and_the_shell_can_parse_it(minibroker: Run, shell: str) -> None:
    result = minibroker("completion", shell)
    assert result.returncode == 0
    assert f"_MINIBROKER_COMPLETE={shell}_complete" in result.stdout
    assert result.stdout.startswith("# ")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, "-n"]
    checked = subprocess.run(command, input=result.stdout, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_an_unknown_shell_is_wrong_usage(minibroker: Run) -> None:
    result = minibroker("completion", "csh")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_commands_are_completed(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker ") == list(COMMANDS)
    assert completed(minibroker, "minibroker pro") == ["produce"]
    assert completed(minibroker, "minibroker cluster ") == ["add-voter", "remove-broker", "remove-voter", "status"]
    assert completed(minibroker, "minibroker groups ") == ["delete", "describe", "list", "reset-offsets"]
    assert completed(minibroker, "minibroker transactions ") == ["abort", "describe", "list"]


def test_options_and_their_values_are_completed(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker produce --comp") == ["--compression"]
    assert completed(minibroker, "minibroker produce orders --compression z") == ["zstd"]
    assert completed(minibroker, "minibroker topics de") == ["delete", "describe"]
    assert completed(minibroker, "minibroker up --no") == ["--no-restart"]
    assert completed(minibroker, "minibroker cluster status --format j") == ["json"]
    assert "--child" not in completed(minibroker, "minibroker serve --")


def test_topics_are_completed_from_the_broker(at_broker: Run) -> None:
    name = unique("offered")
    at_broker("topics", "create", name)
    verbs = ("describe", "alter", "delete", "reassign", "elect-leaders")
    for command in ("consume", "produce", *(f"topics {it}" for it in verbs)):
        assert completed(at_broker, f"minibroker {command} {name[:-3]}") == [name], command


def test_groups_are_completed_from_the_broker(at_broker: Run) -> None:
    topic, group = unique("offered"), unique("offered-group")
    at_broker("topics", "create", topic)
    assert at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-latest").returncode == 0
    for command in (f"consume {topic} --group", *(f"groups {it}" for it in ("describe", "delete", "reset-offsets"))):
        assert completed(at_broker, f"minibroker {command} {group[:-3]}") == [group], command


def test_completion_asks_the_server_that_the_line_names(minibroker: Run, at_broker: Run, broker: Broker) -> None:
    name = unique("offered")
    at_broker("topics", "create", name)
    line = f"minibroker consume --bootstrap-server {broker.address} {name}"
    assert completed(minibroker, line, MINIBROKER_BOOTSTRAP_SERVER="127.0.0.1:1") == [name]


def test_completion_without_a_broker_is_empty_and_prints_no_error(minibroker: Run) -> None:
    assert completed(minibroker, "minibroker consume --bootstrap-server 127.0.0.1:1 ord") == []
