"""Claims about `minibroker topics` against a real broker: its output and its errors."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from brokers import Broker, unique

pytest_plugins = ["clients_fixtures"]

SCENARIOS = Path(__file__).parent / "scenarios"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Transcript = Callable[[Path, str], None]


def plain(text: str) -> str:
    """The text without ids and sizes, which differ from run to run: a batch may hold one line or several."""
    hidden = re.sub(r"(id\"?:? \"?)[\w-]{22}", r"\1AAAAAAAAAAAAAAAAAAAAAA", text)
    return re.sub(r" +\d{2,}$", " NN", hidden, flags=re.MULTILINE)


def failed(result: "subprocess.CompletedProcess[str]", code: int = 1) -> str:
    """The one line that a failure prints."""
    assert result.returncode == code, result
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


# Create.


def test_create_prints_partitions_and_replicas(at_broker: Run) -> None:
    name = unique("topic")
    made = at_broker("topics", "create", name, "--partitions", "3", "--replication-factor", "1")
    assert made.returncode == 0
    assert made.stdout == f"created {name}: 3 partitions, 1 replica\n"
    assert made.stderr == ""


def test_a_topic_that_exists_is_not_created_again(at_broker: Run) -> None:
    name = unique("topic")
    at_broker("topics", "create", name)
    line = failed(at_broker("topics", "create", name))
    assert line.startswith(f"minibroker topics: the topic '{name}' exists already")
    assert "--if-not-exists" in line
    again = at_broker("topics", "create", name, "--if-not-exists")
    assert again.returncode == 0
    assert again.stdout == f"{name} exists already\n"


def test_an_invalid_topic_is_refused_with_kafkas_code(at_broker: Run) -> None:
    cases = [
        (("..",), "INVALID_TOPIC_EXCEPTION (17)"),
        (("a/b",), "INVALID_TOPIC_EXCEPTION (17)"),
        (("good", "--replication-factor", "7"), "INVALID_REPLICATION_FACTOR (38)"),
        (("good", "--config", "retention.mss=1"), "did you mean retention.ms?"),
        (("good", "--config", "retention.ms=soon"), "retention.ms=soon"),
    ]
    for arguments, complaint in cases:
        assert complaint in failed(at_broker("topics", "create", *arguments)), arguments


def test_wrong_usage_is_one_line_and_exit_code_2(at_broker: Run) -> None:
    created = (("create",), ("create", "x", "--partitions", "0"), ("create", "x", "--config", "novalue"))
    for arguments in (*created, ("delete",)):
        assert "--help" in failed(at_broker("topics", *arguments), 2), arguments


# List and describe.


def test_list_and_describe_print_what_was_recorded(
    start: Callable[..., Broker], minibroker: Run, transcript: Transcript
) -> None:
    at = {"MINIBROKER_BOOTSTRAP_SERVER": start().address}
    minibroker("topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=86400000", **at)
    minibroker("topics", "create", "customers", "--config", "cleanup.policy=compact", **at)
    minibroker("produce", "orders", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n", **at)
    for name, arguments in {
        "topics-list": ("list",),
        "topics-list-json": ("list", "--format", "json"),
        "topics-describe": ("describe",),
        "topics-describe-one": ("describe", "customers"),
        "topics-describe-json": ("describe", "orders", "--format", "json"),
    }.items():
        result = minibroker("topics", *arguments, **at)
        assert result.returncode == 0, result.stderr
        transcript(SCENARIOS / f"{name}.txt", plain(result.stdout))


def test_list_without_topics_says_how_to_create_one(start: Callable[..., Broker], minibroker: Run) -> None:
    result = minibroker("topics", "list", "--bootstrap-server", start().address)
    assert result.returncode == 0
    assert result.stdout == "TOPIC  PARTITIONS  REPLICAS\n"
    assert "minibroker topics create" in result.stderr


def test_describe_counts_offsets_and_bytes(at_broker: Run) -> None:
    name = unique("topic")
    at_broker("topics", "create", name)
    at_broker("produce", name, stdin="one\ntwo\n")
    [found] = json.loads(at_broker("topics", "describe", name, "--format", "json").stdout)
    [partition] = found["partitions"]
    assert (partition["log_start_offset"], partition["log_end_offset"]) == (0, 2)
    assert partition["bytes"] > 2 * 3
    assert partition["replicas"] == partition["isr"] == [partition["leader"]]


def test_an_unknown_topic_is_refused_with_the_nearest_name(at_broker: Run) -> None:
    name = unique("shipments")
    at_broker("topics", "create", name)
    misspelt = name.replace("shipments", "shipmnets")
    for arguments in (("topics", "describe", misspelt), ("topics", "alter", misspelt, "--partitions", "2")):
        assert f"there is no topic '{misspelt}': did you mean {name}?" in failed(at_broker(*arguments))


def test_every_command_says_how_to_start_a_broker_when_none_answers(minibroker: Run) -> None:
    for command in (("topics", "list"), ("topics", "describe"), ("produce", "orders"), ("consume", "orders")):
        line = failed(minibroker(*command, MINIBROKER_BOOTSTRAP_SERVER="127.0.0.1:1"))
        assert line.startswith(f"minibroker {command[0]}: no broker answers at 127.0.0.1:1 (connection refused)"), line
        assert "`minibroker serve`" in line
        assert "--bootstrap-server" in line


def test_a_server_that_is_not_an_address_is_wrong_usage(minibroker: Run) -> None:
    for server in ("nowhere", "host:port", "", "127.0.0.1:9092,x"):
        assert "HOST:PORT" in failed(minibroker("topics", "list", "--bootstrap-server", server), 2), server


# Alter.


def test_alter_adds_partitions_and_changes_settings(at_broker: Run) -> None:
    name = unique("topic")
    at_broker("topics", "create", name, "--config", "retention.ms=1000")
    altered = at_broker(
        "topics",
        "alter",
        name,
        "--partitions",
        "4",
        "--config",
        "cleanup.policy=compact",
        "--delete-config",
        "retention.ms",
    )
    assert altered.returncode == 0, altered.stderr
    assert altered.stdout.splitlines() == [
        f"{name}: cleanup.policy=compact",
        f"{name}: retention.ms is back to its default",
        f"{name}: 4 partitions",
    ]
    [found] = json.loads(at_broker("topics", "describe", name, "--format", "json").stdout)
    assert found["configs"] == {"cleanup.policy": "compact"}
    assert len(found["partitions"]) == 4


def test_the_number_of_partitions_never_shrinks(at_broker: Run) -> None:
    name = unique("topic")
    at_broker("topics", "create", name, "--partitions", "4")
    assert "INVALID_PARTITIONS (37)" in failed(at_broker("topics", "alter", name, "--partitions", "2"))


def test_alter_without_a_change_or_with_a_contradiction_is_wrong_usage(at_broker: Run) -> None:
    assert "--partitions" in failed(at_broker("topics", "alter", "orders"), 2)
    both = ("--config", "retention.ms=1", "--delete-config", "retention.ms")
    assert "retention.ms cannot be set and deleted" in failed(at_broker("topics", "alter", "orders", *both), 2)


# Delete.


def test_several_topics_are_deleted_at_once(at_broker: Run) -> None:
    names = [unique("topic") for _ in range(3)]
    for name in names:
        at_broker("topics", "create", name)
    deleted = at_broker("topics", "delete", *names[:2])
    assert deleted.returncode == 0
    assert deleted.stdout.splitlines() == [f"deleted {name}" for name in names[:2]]
    listed = {row["name"] for row in json.loads(at_broker("topics", "list", "--format", "json").stdout)}
    assert names[2] in listed
    assert not listed & set(names[:2])


def test_a_topic_that_cannot_be_deleted_does_not_keep_the_others(at_broker: Run) -> None:
    name, absent = unique("topic"), unique("absent")
    at_broker("topics", "create", name)
    result = at_broker("topics", "delete", absent, name)
    assert result.returncode == 1
    assert result.stdout == f"deleted {name}\n"
    assert f"there is no topic '{absent}'" in result.stderr
    assert at_broker("topics", "delete", absent, "--if-exists").returncode == 0
