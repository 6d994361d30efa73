"""Claims about `minibroker groups` and `minibroker consume --group`, as processes with a real broker."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from brokers import Broker, eventually, unique
from cases import case
from clients_stock import Message, confluent_write, create_topic
from clusters import QuorumCluster

pytest_plugins = ["clients_fixtures", "clusters_fixtures"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ALL = ("--from-beginning", "--exit-at-end")
PROTOCOLS = ("classic", "consumer")


def failed(result: "subprocess.CompletedProcess[str]", code: int = 1) -> str:
    """The one line that a failure prints."""
    assert (result.returncode, result.stdout) == (code, ""), result
    [line] = result.stderr.splitlines()
    return line


def done(result: "subprocess.CompletedProcess[str]") -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


@contextmanager
def member(address: str, topic: str, group: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A consumer in a group, as a process."""
    given = ("consume", topic, "--group", group, "--bootstrap-server", address, *arguments)
    process = subprocess.Popen(
        [sys.executable, "-m", "minibroker.cli", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def described(at_broker: Run, group: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done(at_broker("groups", "describe", group, "--format", "json")))
    return document


def owned_counts(at_broker: Run, group: str) -> list[int]:
    """How many partitions each member has, sorted; nothing until the group exists."""
    result = at_broker("groups", "describe", group, "--format", "json")
    return sorted(len(it["partitions"]) for it in json.loads(result.stdout)["members"]) if not result.returncode else []


def await_members(run: Run, group: str, counts: list[int]) -> None:
    """Wait until the members have so many partitions each."""
    eventually(lambda: owned_counts(run, group) == counts, f"the members have {counts}", seconds=60)


def lag(run: Run, group: str) -> int | None:
    """The records that a group has not committed; None until all four partitions have a committed offset."""
    lags = [it["lag"] for it in described(run, group)["partitions"]]
    return sum(lags) if len(lags) == 4 and None not in lags else None


def await_no_lag(run: Run, group: str) -> None:
    eventually(lambda: lag(run, group) == 0, "everything is committed", seconds=60)


def progress(at_broker: Run, group: str) -> dict[int, int | None]:
    return {it["partition"]: it["committed"] for it in described(at_broker, group)["partitions"]}


def numbers(output: str) -> list[int]:
    return sorted(map(int, output.split()))


def write(at_broker: Run, topic: str, values: range) -> None:
    done(at_broker("produce", topic, "--key-separator", ":", stdin="".join(f"{it}:{it}\n" for it in values)))


def filled(at_broker: Run) -> str:
    """A topic of four partitions with twenty records."""
    name = unique("shared")
    done(at_broker("topics", "create", name, "--partitions", "4"))
    write(at_broker, name, range(20))
    return name


@pytest.fixture
def topic(at_broker: Run) -> str:
    """A topic of four partitions with twenty records."""
    return filled(at_broker)


# Consume.


def test_a_group_goes_on_where_it_stopped(at_broker: Run, topic: str) -> None:
    for protocol in PROTOCOLS:
        with case(protocol):
            group = unique(protocol)
            arguments = ("consume", topic, "--group", group, "--group-protocol", protocol, "--from-beginning")
            first = numbers(done(at_broker(*arguments, "--max-messages", "7")))
            rest = numbers(done(at_broker(*arguments, "--exit-at-end")))
            assert len(first) == 7
            assert sorted(first + rest) == list(range(20))
            assert done(at_broker(*arguments, "--exit-at-end")) == ""


def test_a_group_of_the_new_protocol_is_the_default(at_broker: Run, topic: str) -> None:
    group = unique("default")
    assert numbers(done(at_broker("consume", topic, "--group", group, *ALL))) == list(range(20))
    assert described(at_broker, group)["kind"] == "consumer"


def test_a_new_group_without_from_beginning_reads_new_records(at_broker: Run, broker: Broker, topic: str) -> None:
    group = unique("new")
    with member(broker.address, topic, group, "--max-messages", "3") as process:
        eventually(lambda: all(it is not None for it in progress_of_all(at_broker, group)), "the positions")
        write(at_broker, topic, range(20, 23))
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert numbers(stdout) == [20, 21, 22]


def progress_of_all(at_broker: Run, group: str) -> list[int | None]:
    """The committed offsets of the four partitions; [None] until the group has all four."""
    result = at_broker("groups", "describe", group, "--format", "json")
    rows = json.loads(result.stdout)["partitions"] if not result.returncode else []
    return [it["committed"] for it in rows] if len(rows) == 4 else [None]


def test_two_members_share_the_partitions_and_each_record_is_written_once(at_broker: Run, broker: Broker) -> None:
    for protocol in PROTOCOLS:
        with case(protocol):
            topic, group = filled(at_broker), unique(protocol)
            given = (broker.address, topic, group, "--group-protocol", protocol, "--from-beginning")
            with member(*given) as one, member(*given) as other:
                await_members(at_broker, group, [2, 2])
                write(at_broker, topic, range(20, 40))
                await_no_lag(at_broker, group)
                one.send_signal(signal.SIGINT)
                other.send_signal(signal.SIGTERM)
                outputs = [process.communicate(timeout=60) for process in (one, other)]
            assert [process.returncode for process in (one, other)] == [128 + signal.SIGINT, 128 + signal.SIGTERM]
            assert [stderr.strip() for _stdout, stderr in outputs] == ["", ""]
            assert numbers("".join(stdout for stdout, _stderr in outputs)) == list(range(40))
            # Members that end with Ctrl-C or SIGTERM leave the group, so nothing waits for a timeout.
            assert described(at_broker, group)["members"] == []


def test_a_pattern_reads_all_topics_that_match(at_broker: Run, broker: Broker) -> None:
    stem = unique("pattern")
    for name in (f"{stem}.a", f"{stem}.b", f"x{stem}.a"):
        confluent_write(broker.address, create_topic(broker.address, name), [Message(name.encode())])
    for protocol in PROTOCOLS:
        with case(protocol):
            given = ("--group", unique(protocol), "--include", rf"{stem}\..*", "--group-protocol", protocol)
            assert sorted(done(at_broker("consume", *given, *ALL)).split()) == [f"{stem}.a", f"{stem}.b"]


def test_a_pattern_replaces_the_topic_and_needs_a_group(minibroker_here: Run) -> None:
    for arguments, complaint in {
        (): "give TOPIC, or --group and --include",
        ("t", "--group", "g", "--include", "t"): "give TOPIC, or --group and --include",
        ("--include", "t"): "--include needs --group",
        ("--group", "g", "--include", "("): "'(' is not a regular expression",
        ("--group", "g", "--include", ""): "matches no topic",
    }.items():
        with case(arguments):
            assert complaint in failed(minibroker_here("consume", *arguments), 2)


def test_a_group_chooses_its_own_offsets_and_partitions(minibroker_here: Run) -> None:
    for option in ("--offset", "--timestamp", "--partition"):
        with case(option):
            line = failed(minibroker_here("consume", "t", "--group", "g", option, "1"), 2)
            assert f"{option} is not for a group" in line
            assert "leave it out" in line
            assert "reset-offsets" in line
    assert "--group-protocol needs --group" in failed(minibroker_here("consume", "t", "--group-protocol", "classic"), 2)


# List and describe.


def test_list_has_kind_state_and_members(at_broker: Run, broker: Broker, topic: str) -> None:
    for protocol in PROTOCOLS:
        with case(protocol):
            group = unique(protocol)
            with member(broker.address, topic, group, "--group-protocol", protocol):
                await_members(at_broker, group, [4])
                rows = json.loads(done(at_broker("groups", "list", "--format", "json")))
                expected = {"group": group, "kind": protocol, "state": "Stable", "members": 1}
                assert [it for it in rows if it["group"] == group] == [expected]
            text = done(at_broker("groups", "list")).splitlines()
            assert text[0].split() == ["GROUP", "KIND", "STATE", "MEMBERS"]
            assert any(line.split()[:2] == [group, protocol] for line in text)


def test_describe_has_members_their_partitions_and_lag(at_broker: Run, broker: Broker, topic: str) -> None:
    group = unique("described")
    done(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-earliest"))
    behind = described(at_broker, group)
    assert (behind["state"], behind["members"]) == ("Empty", [])
    assert sum(it["lag"] for it in behind["partitions"]) == 20
    assert all(it["lag_seconds"] >= 0 for it in behind["partitions"])
    assert any(it["lag_seconds"] > 0 for it in behind["partitions"])
    with member(broker.address, topic, group):
        await_members(at_broker, group, [4])
        await_no_lag(at_broker, group)
        now = described(at_broker, group)
        [only] = now["members"]
        assert only["client"] == "minibroker-cli"
        assert only["host"] == "127.0.0.1"
        assert [it["partition"] for it in only["partitions"]] == [0, 1, 2, 3]
        assert {it["member"] for it in now["partitions"]} == {only["member"]}
        assert all((it["committed"], it["lag_seconds"]) == (it["end"], 0) for it in now["partitions"])
        text = done(at_broker("groups", "describe", group))
        assert text.splitlines()[0].startswith(f"{group}: consumer, Stable, 1 member, assignor uniform, coordinator ")
        assert f"{topic}:0,1,2,3" in text
        assert "COMMITTED  END  LAG  SECONDS" in text


def test_describe_without_a_group_shows_all_as_each_is_shown(at_broker: Run, topic: str) -> None:
    groups = sorted(unique("all") for _number in range(3))
    for offset, group in enumerate(groups):
        done(at_broker("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", str(offset)))
    found = {it["group"]: it for it in json.loads(done(at_broker("groups", "describe", "--format", "json")))}
    assert [it for it in found if it in groups] == groups
    for group in groups:
        with case(group):
            alone = described(at_broker, group)
            for partition in (*alone["partitions"], *found[group]["partitions"]):
                assert partition.pop("lag_seconds") >= 0
            assert found[group] == alone
    shown = done(at_broker("groups", "describe")).split("\n\n")
    assert [it.partition(":")[0] for it in shown if it.partition(":")[0] in groups] == groups


def test_the_seconds_of_lag_are_the_age_of_the_first_record_not_committed(at_broker: Run, topic: str) -> None:
    group = unique("late")
    [first] = [it for it in json_records(at_broker, topic, 0) if it["offset"] == 1]
    done(at_broker("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-offset", "1"))
    before_s = time.time()
    found_s = described(at_broker, group)["partitions"][0]["lag_seconds"]
    written_s = first["timestamp"] / 1000
    assert before_s - written_s - 0.1 <= found_s <= time.time() - written_s + 0.1


def json_records(at_broker: Run, topic: str, partition: int) -> list[dict[str, Any]]:
    output = done(at_broker("consume", topic, "--partition", str(partition), *ALL, "-f", "json"))
    return [json.loads(line) for line in output.splitlines()]


def test_an_unknown_group_is_one_line_with_the_nearest_name(at_broker: Run, topic: str) -> None:
    group = unique("misspelt")
    done(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-latest"))
    for command in ("describe", "delete"):
        with case(command):
            assert f"did you mean {group}?" in failed(at_broker("groups", command, f"x{group}"))


# Reset.


def test_offsets_are_reset_to_every_kind_of_place(at_broker: Run, topic: str) -> None:
    group = unique("moved")
    ends = [len(json_records(at_broker, topic, it)) for it in range(4)]
    times = [it["timestamp"] for it in json_records(at_broker, topic, 0)]
    cases: dict[tuple[str, ...], list[int]] = {
        ("--to-latest",): ends,
        ("--to-earliest",): [0, 0, 0, 0],
        ("--to-offset", "2"): [min(2, end) for end in ends],
        ("--shift-by", "1"): [min(3, end) for end in ends],
        ("--shift-by", "-1"): [max(0, min(3, end) - 1) for end in ends],
        ("--shift-by", "1000"): ends,
        ("--shift-by", "-1000"): [0, 0, 0, 0],
        ("--by-duration", "1h"): [0, 0, 0, 0],
        ("--to-datetime", "2100-01-01"): ends,
        ("--to-datetime", str(times[0])): [0, 0, 0, 0],
    }
    for place, expected in cases.items():
        with case(" ".join(place)):
            moved = at_broker("groups", "reset-offsets", group, "--topic", topic, *place, "--format", "json")
            rows = json.loads(done(moved))
            assert [it["to"] for it in rows] == expected
            assert progress(at_broker, group) == dict(enumerate(expected))


def test_a_dry_run_shows_the_table_and_changes_nothing(at_broker: Run, topic: str) -> None:
    group = unique("dry")
    done(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-earliest"))
    shown = at_broker("groups", "reset-offsets", group, "--topic", f"{topic}:1,3", "--to-latest", "--dry-run")
    lines = done(shown).splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITION", "FROM", "TO"]
    assert [line.split()[:3] for line in lines[1:]] == [[topic, "1", "0"], [topic, "3", "0"]]
    assert "nothing was done, because of --dry-run" in shown.stderr
    assert progress(at_broker, group) == dict.fromkeys(range(4), 0)


def test_a_group_with_members_is_neither_reset_nor_deleted(at_broker: Run, broker: Broker, topic: str) -> None:
    for protocol in PROTOCOLS:
        with case(protocol):
            group = unique(protocol)
            with member(broker.address, topic, group, "--group-protocol", protocol) as process:
                await_members(at_broker, group, [4])
                line = failed(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-earliest"))
                assert "has 1 member" in line
                assert "stop the consumers first (minibroker-cli at 127.0.0.1)" in line
                assert "stop its consumers first" in failed(at_broker("groups", "delete", group))
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
            done(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-earliest"))
            assert progress(at_broker, group) == dict.fromkeys(range(4), 0)


def test_a_reset_that_makes_no_sense_is_refused_in_one_line(at_broker: Run, topic: str) -> None:
    cases = [
        (("--topic", topic), 2, "give exactly one of"),
        (("--topic", topic, "--to-latest", "--to-earliest"), 2, "give exactly one of"),
        (("--topic", f"{topic}:one", "--to-latest"), 2, "orders:0,2"),
        (("--topic", topic, "--by-duration", "7"), 2, "unit of time"),
        (("--topic", f"{topic}:9", "--to-latest"), 1, "its partitions are 0 to 3"),
        (("--topic", f"{topic}x", "--to-latest"), 1, "did you mean"),
        (("--topic", topic, "--shift-by", "1"), 1, "has committed no offset"),
    ]
    for arguments, code, complaint in cases:
        with case(arguments):
            assert complaint in failed(at_broker("groups", "reset-offsets", unique("none"), *arguments), code)


# Delete.


def test_delete_forgets_the_offsets(at_broker: Run, topic: str) -> None:
    groups = [unique("deleted") for _number in range(2)]
    for group in groups:
        done(at_broker("groups", "reset-offsets", group, "--topic", topic, "--to-latest"))
    assert done(at_broker("groups", "delete", *groups)) == "".join(f"deleted {it}\n" for it in groups)
    assert not set(groups) & {it["group"] for it in json.loads(done(at_broker("groups", "list", "--format", "json")))}
    assert numbers(done(at_broker("consume", topic, "--group", groups[0], *ALL))) == list(range(20))


# A cluster.


def test_a_member_goes_on_after_its_coordinator_is_killed(quorum: QuorumCluster, minibroker: Run) -> None:
    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return minibroker(*arguments, stdin=stdin, MINIBROKER_BOOTSTRAP_SERVER=quorum.bootstrap)

    for protocol in PROTOCOLS:
        with case(protocol):
            topic, group = quorum.create(unique("killed"), [[1, 2, 3]] * 4), unique(protocol)
            given = (quorum.bootstrap, topic, group, "--group-protocol", protocol, "--from-beginning")
            with member(*given) as process:
                await_members(run, group, [4])
                coordinator = described(run, group)["coordinator"]
                quorum.nodes[coordinator].kill()
                write(run, topic, range(20))
                await_no_lag(run, group)
                process.send_signal(signal.SIGINT)
                stdout, stderr = process.communicate(timeout=60)
            assert stderr.strip() == ""
            assert set(numbers(stdout)) == set(range(20))
            quorum.nodes[coordinator].start()


def test_a_topic_gets_more_replicas(quorum: QuorumCluster, minibroker: Run) -> None:
    at = {"MINIBROKER_BOOTSTRAP_SERVER": quorum.bootstrap}
    topic = quorum.create(unique("grown"), [[1], [2]])
    line = done(minibroker("topics", "alter", topic, "--replication-factor", "3", **at))
    assert line.startswith(f"{topic}: 3 replicas, copying 2 partitions")

    def replicas() -> list[list[int]]:
        [document] = json.loads(done(minibroker("topics", "describe", topic, "--format", "json", **at)))
        return [sorted(it["isr"]) for it in document["partitions"]]

    eventually(lambda: replicas() == [[1, 2, 3]] * 2, "all replicas are in sync")
    again = done(minibroker("topics", "alter", topic, "--replication-factor", "3", **at))
    assert again == f"{topic}: 3 replicas\n"
    assert "4 live brokers" in failed(minibroker("topics", "alter", topic, "--replication-factor", "4", **at))
    assert "topics reassign" in failed(minibroker("topics", "alter", topic, "--replication-factor", "1", **at))
