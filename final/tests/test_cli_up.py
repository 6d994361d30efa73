"""Claims about `minibroker up`, and about commands that ask a cluster: one of three nodes is shared by the tests."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from brokers import eventually, unique

from minibroker.cli.supervising import Plan, settings_for
from minibroker.clients import admin
from minibroker.clients.admin import ResourceType
from minibroker.clients.blocking import Client

PROGRAM = (sys.executable, "-m", "minibroker.cli")
# The program, with less patience for those who are stuck.
IMPATIENT = "from minibroker.cli import main, supervising\nsupervising.GRACE_S = 0.5\nmain.main()"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Up:
    """A cluster that `minibroker up` runs."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    @property
    def addresses(self) -> list[str]:
        lines = self.out.read_text().splitlines(keepends=True)
        return [it for line in lines if line.endswith("\n") for it in line.removeprefix("ready: ").strip().split(",")]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    def await_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.said()
            return bool(self.addresses)

        eventually(is_ready, "ready", seconds=60)

    def said(self) -> str:
        return self.err.read_text()

    def children(self) -> dict[int, int]:
        """The processes of the nodes, by the numbers of the nodes."""
        return {
            int(line.partition(" node.id=")[2].split()[0]): int(line.split()[0])
            for line in processes()
            if f"log.dirs={self.out.parent}/" in line
        }

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def processes() -> list[str]:
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if " --child " in line]


@contextmanager
def started(path: Path, *arguments: str, program: tuple[str, ...] = PROGRAM) -> Iterator[Up]:
    """Whatever happens, no process is left."""
    path.mkdir(exist_ok=True)
    out, err = path / "out", path / "err"
    command = [*program, "up", "--data", str(path / "data"), "--port", "0", *arguments]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    up = Up(process, out, err)
    try:
        yield up
    finally:
        process.kill()
        process.wait()
        for pid in up.children().values():
            os.kill(pid, signal.SIGKILL)


def failed(result: "subprocess.CompletedProcess[str]", code: int = 1) -> str:
    """The last line that a failure says."""
    assert result.returncode == code, result
    assert result.stdout == ""
    return result.stderr.splitlines()[-1]


# The cluster of three -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with started(tmp_path_factory.mktemp("three"), "--set", "num.partitions=2") as up:
        up.await_ready()
        yield up
        assert up.stop() == 0, up.said()
        assert up.children() == {}
        assert "Traceback" not in up.said()


@pytest.fixture
def at(minibroker: Run, three: Up) -> Run:
    def run(*arguments: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        return minibroker(*arguments, stdin=stdin, **{"MINIBROKER_BOOTSTRAP_SERVER": three.bootstrap} | env)

    return run


def partition_of(three: Up, topic: str, number: int = 0) -> admin.DescribedPartition:
    with Client(three.bootstrap) as client:
        return admin.describe_topics(client, [topic])[topic].partitions[number]


def status_of(at: Run) -> dict[str, object]:
    found = json.loads(at("cluster", "status", "--format", "json").stdout)
    assert isinstance(found, dict)
    return found


def wrong(at: Run) -> str:
    return json.dumps(status_of(at)["wrong"])


def test_three_nodes_keep_three_copies_of_which_two_must_be_in_sync(at: Run, three: Up) -> None:
    """F1: safe by default, which Kafka's defaults are not."""
    assert len(three.addresses) == 3
    topic = unique("safe")
    assert at("topics", "create", topic).stdout == f"created {topic}: 2 partitions, 3 replicas\n"
    with Client(three.bootstrap) as client:
        configs = admin.describe_configs(client, ResourceType.TOPIC, [topic], keys=["min.insync.replicas"])
    assert configs[topic]["min.insync.replicas"].value == "2"
    assert at("produce", topic, stdin="one\ntwo\n").returncode == 0
    assert sorted(at("consume", topic, "--from-beginning", "--exit-at-end").stdout.split()) == ["one", "two"]


def test_status_shows_nodes_and_who_decides(at: Run, three: Up) -> None:
    shown = at("cluster", "status", NO_COLOR="1").stdout
    assert "\x1b" not in shown
    for address in three.addresses:
        assert address in shown
    assert "quorum: node " in shown
    found = status_of(at)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert sorted(it["role"] for it in nodes) == ["controller", "voter", "voter"]
    assert {it["state"] for it in nodes} == {"live"}


def test_watch_shows_it_again_and_again_until_ctrl_c(three: Up) -> None:
    command = [*PROGRAM, "cluster", "status", "--watch", "--bootstrap-server", three.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            line = process.stdout.readline()
            assert line, "it ended"
            seen += line.startswith("cluster ")
        process.send_signal(signal.SIGINT)
        _stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.strip()) == (130, "")


def test_a_partition_moves_to_another_node_with_its_records(at: Run, three: Up) -> None:
    topic = unique("moved")
    at("topics", "create", topic, "--partitions", "1", "--replication-factor", "1")
    at("produce", topic, stdin="kept\n")
    (before,) = partition_of(three, topic).replicas
    goal = [it for it in (1, 2, 3) if it != before]
    begun = at("topics", "reassign", topic, "--partition", "0", "--replicas", ",".join(map(str, goal)))
    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.startswith(f"{topic}-0 is on ")

    def is_there() -> bool:
        found = partition_of(three, topic)
        return list(found.replicas) == goal and sorted(found.isr) == goal and found.leader_id in goal

    eventually(is_there, f"{topic} is on {goal}")
    assert json.loads(at("topics", "reassign", topic, "--format", "json").stdout) == []
    assert at("consume", topic, "--from-beginning", "--exit-at-end").stdout == "kept\n"


def test_what_cannot_be_moved_is_refused_in_one_line(at: Run) -> None:
    topic = unique("stays")
    at("topics", "create", topic, "--partitions", "1")
    move = ("topics", "reassign", topic, "--partition")
    assert "broker 9 is not registered" in failed(at(*move, "0", "--replicas", "1,9"))
    assert "they go from 0 to 0" in failed(at(*move, "7", "--replicas", "1"))
    assert f"no move of {topic}-0 is under way" in failed(at(*move, "0", "--cancel"))
    assert "there is no topic" in failed(at("topics", "reassign", "nobodys", "--cancel"))
    assert "there is no topic" in failed(at("topics", "reassign", "nobodys", "--spread"))
    assert "there is no node 9: the live brokers are 1,2,3" in failed(at("topics", "reassign", "--from", "9"))
    nowhere = failed(at("topics", "reassign", topic, "--from", "2"))
    assert "no other live broker could take the replica of node 2: there are 1,3. Start one more, or" in nowhere
    assert "broker 9 is not registered, [1, 2, 3] are" in failed(at("cluster", "remove-broker", "9"))
    assert at("topics", "reassign").stderr == "no moves are under way\n"


def test_a_node_that_is_silent_is_found_with_what_it_takes_with_it(at: Run, three: Up) -> None:
    """Its partition with one copy has no leader, and only it can bring that back; others are led by somebody else."""
    found = status_of(at)["quorum"]
    assert isinstance(found, dict)
    victim = next(it for it in (3, 2) if it != found["leader_id"])
    safe, lone = unique("safe"), unique("lone")
    with Client(three.bootstrap) as client:
        goals = {safe: [victim, *(it for it in (1, 2, 3) if it != victim)], lone: [victim]}
        admin.create_topics(client, [admin.NewTopic(name, assignments={0: it}) for name, it in goals.items()])
    os.kill(three.children()[victim], signal.SIGSTOP)
    try:
        eventually(lambda: f"node {victim} at" in wrong(at), "it is missed")
        complaints = eventually(lambda: wrong(at) if f"{lone}-0 has no leader" in wrong(at) else "", "so is the topic")
        assert f"only node {victim} has all the records, and is not there" in complaints
        assert f"elect-leaders {lone} --partition 0 --unclean" in complaints
        assert f"no replica in sync on node {victim}, because it is not there" in complaints
        assert "2 of 3 voters are there" in complaints
    finally:
        os.kill(three.children()[victim], signal.SIGCONT)
    eventually(lambda: len(partition_of(three, safe).isr) == 3 and partition_of(three, lone).leader_id >= 0, "well")
    # Another one leads where there was a choice, until somebody asks for the first one.
    assert partition_of(three, safe).leader_id != victim
    assert "not led by" in wrong(at)
    assert at("topics", "elect-leaders", safe).stdout == f"{safe}-0: node {victim} leads\n"
    assert at("topics", "elect-leaders", safe).stdout == "each has its preferred leader already\n"
    assert at("topics", "elect-leaders", lone, "--unclean").stdout == "each has a leader already\n"


def test_a_node_that_is_killed_is_reported_and_started_again(at: Run, three: Up) -> None:
    topic = unique("survives")
    at("topics", "create", topic)
    before = three.children()
    os.kill(before[2], signal.SIGKILL)
    eventually(lambda: "node 2: ended (exit code 137, killed by SIGKILL): started again in" in three.said(), "reported")
    assert at("produce", topic, stdin="".join(f"{n}\n" for n in range(20))).returncode == 0
    eventually(lambda: "node 2: is ready again" in three.said(), "it is back", seconds=40)
    assert three.children()[2] != before[2]
    assert {number: pid for number, pid in three.children().items() if number != 2} == {1: before[1], 3: before[3]}
    read = at("consume", topic, "--from-beginning", "--exit-at-end").stdout.split()
    assert sorted(map(int, read)) == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("reassign", "--cancel"), "name the TOPIC"),
        (("reassign", "t", "--replicas", "1"), "name the --partition"),
        (("reassign", "t", "--partition", "1"), "--replicas"),
        (("reassign", "t", "--partition", "1", "--replicas", "one"), "'one' is not a list of nodes, such as 1,2,3"),
        (("reassign", "t", "--partition", "1", "--replicas", "1", "--cancel"), "say one of --replicas, --from"),
        (("reassign", "--from", "1", "--spread"), "say one of --replicas, --from, --spread and --cancel"),
        (("reassign", "t", "--from", "1", "--partition", "1"), "leave --partition out"),
        (("reassign", "--dry-run"), "--dry-run goes with --from or --spread"),
        (("elect-leaders", "--partition", "1"), "name the TOPIC"),
        (("elect-leaders", "--unclean"), "it loses records"),
    ],
)
def test_a_half_said_command_is_wrong_usage(minibroker: Run, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in failed(minibroker("topics", *arguments), 2)


# Ends -----------------------------------------------------------------------------------------------------------------


def test_nobody_is_left_when_up_itself_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1") as up:
        up.await_ready()
        assert len(up.children()) == 1
        up.process.kill()
        eventually(lambda: not up.children(), "the nodes end")


def test_a_node_that_is_stuck_does_not_keep_up_from_stopping(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1", program=(sys.executable, "-c", IMPATIENT)) as up:
        up.await_ready()
        os.kill(up.children()[1], signal.SIGSTOP)
        assert up.stop() == 0
        assert up.children() == {}
        assert "node 1: did not stop within 0.5 s: killed" in up.said()


def test_without_restarts_a_dead_node_stays_dead_and_the_last_one_ends_all(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1", "--no-restart") as up:
        up.await_ready()
        os.kill(up.children()[1], signal.SIGKILL)
        assert up.process.wait(60) == 1
        assert "node 1: ended (exit code 137, killed by SIGKILL)\n" in up.said()
        assert up.said().endswith("minibroker up: no node is left: what they said is above\n")


def test_a_node_that_cannot_start_ends_all_with_its_reason(tmp_path: Path, minibroker: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = minibroker("up", "-n", "1", "--port", str(port), "--data", str(tmp_path / "data"))
    last = failed(result)
    assert last == "minibroker up: node 1 could not start (exit code 1): what it said is above"
    assert f"node 1: minibroker serve: cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "another port: --listen, or --port of `minibroker up`" in result.stderr


# Settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("--set", "node.id=7"), 2, "--set node.id is not possible"),
        (("--set", "num.partitons=3"), 1, "did you mean num.partitions?"),
        (("--set", "nothing"), 2, "'nothing' is not NAME=VALUE"),
        (("--port", "65534"), 2, "3 ports from 65534 on end behind 65535"),
        (("-n", "0"), 2, "0 is not in the range"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_started(
    tmp_path: Path, minibroker: Run, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    assert complaint in failed(minibroker("up", "--data", str(tmp_path / "data"), *arguments), code)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("known", "count", "hint"), [((1,), 3, "give -n 1"), ((1, 2, 3), 2, "give -n 3")])
def test_who_votes_does_not_change_with_the_number_of_nodes(
    tmp_path: Path, minibroker: Run, known: tuple[int, ...], count: int, hint: str
) -> None:
    """Two fresh nodes of three would be a majority that knows nothing of the one that is there."""
    for number in known:
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "meta.properties").write_text("")
    assert hint in failed(minibroker("up", "-n", str(count), "--data", str(tmp_path)))


@pytest.mark.parametrize(
    ("count", "copies", "min_isr", "voters"),
    [(1, "1", None, 1), (2, "2", None, 1), (3, "3", "2", 3), (5, "3", "2", 3)],
)
def test_what_nodes_are_told_grows_with_their_number(count: int, copies: str, min_isr: str | None, voters: int) -> None:
    plan = Plan("data", range(9092, 9092 + count), settings_for(count))
    told = plan.settings_of(count)
    assert told["default.replication.factor"] == copies
    assert told.get("min.insync.replicas") == min_isr
    assert told["controller.quorum.voters"].count("@") == voters
    assert told["listeners"] == f"PLAINTEXT://127.0.0.1:{9091 + count}"
    assert told["log.dirs"] == os.path.join("data", f"node{count}")
