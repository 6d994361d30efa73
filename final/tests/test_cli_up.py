"""Claims about `minibroker up`, and about commands that need a cluster: the tests share one of three nodes."""

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
# The program with a short wait for nodes that do not stop.
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
        """The process ids of the nodes, by node id."""
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
    """Run `minibroker up`; at the end, kill every process that is left."""
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
    """The last line that a failure prints."""
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


def test_topics_get_three_replicas_of_which_two_must_be_in_sync(at: Run, three: Up) -> None:
    """F1: the defaults are safe, unlike Kafka's."""
    assert len(three.addresses) == 3
    topic = unique("safe")
    assert at("topics", "create", topic).stdout == f"created {topic}: 2 partitions, 3 replicas\n"
    with Client(three.bootstrap) as client:
        configs = admin.describe_configs(client, ResourceType.TOPIC, [topic], keys=["min.insync.replicas"])
    assert configs[topic]["min.insync.replicas"].value == "2"
    assert at("produce", topic, stdin="one\ntwo\n").returncode == 0
    assert sorted(at("consume", topic, "--from-beginning", "--exit-at-end").stdout.split()) == ["one", "two"]


def test_a_topic_with_one_replica_takes_acks_all_and_status_does_not_deny_it(at: Run, three: Up) -> None:
    topic = unique("lone")
    at("topics", "create", topic, "--partitions", "1", "--replication-factor", "1")
    with Client(three.bootstrap) as client:
        configs = admin.describe_configs(client, ResourceType.TOPIC, [topic], keys=["min.insync.replicas"])
    assert configs[topic]["min.insync.replicas"].value == "2"
    written = at("produce", topic, "--acks", "all", stdin="one\n")
    assert written.returncode == 0, written.stderr
    found = status_of(at)
    assert isinstance(found["partitions"], dict)
    assert found["partitions"]["under_min_isr"] == 0
    assert topic not in json.dumps(found["wrong"])
    # Another test stops a node, and names the partitions that then have no leader: this must not be one of them.
    assert at("topics", "delete", topic).returncode == 0


def test_status_shows_the_nodes_and_their_roles(at: Run, three: Up) -> None:
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


def test_watch_refreshes_until_ctrl_c(three: Up) -> None:
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
    assert begun.stdout.startswith((f"{topic}-0 is being moved from ", f"{topic}-0 is on "))

    def is_there() -> bool:
        found = partition_of(three, topic)
        return list(found.replicas) == goal and sorted(found.isr) == goal and found.leader_id in goal

    eventually(is_there, f"{topic} is on {goal}")
    assert json.loads(at("topics", "reassign", topic, "--format", "json").stdout) == []
    assert at("consume", topic, "--from-beginning", "--exit-at-end").stdout == "kept\n"


def test_an_impossible_move_is_refused_in_one_line(at: Run) -> None:
    topic = unique("stays")
    at("topics", "create", topic, "--partitions", "1")
    move = ("topics", "reassign", topic, "--partition")
    assert "broker 9 is not registered" in failed(at(*move, "0", "--replicas", "1,9"))
    assert "its partitions are 0 to 0" in failed(at(*move, "7", "--replicas", "1"))
    assert f"no move of {topic}-0 is under way" in failed(at(*move, "0", "--cancel"))
    assert "there is no topic" in failed(at("topics", "reassign", "unknown", "--cancel"))
    assert "there is no topic" in failed(at("topics", "reassign", "unknown", "--spread"))
    assert "there is no node 9: the live brokers are 1,2,3" in failed(at("topics", "reassign", "--from", "9"))
    nowhere = failed(at("topics", "reassign", topic, "--from", "2"))
    assert "no other live broker can take the replica of node 2: the others are 1,3. Start one more broker" in nowhere
    assert "broker 9 is not registered; the registered brokers are [1, 2, 3]" in failed(
        at("cluster", "remove-broker", "9")
    )
    assert at("topics", "reassign").stderr == "no moves are under way\n"


def test_status_names_a_silent_node_and_the_partitions_that_it_affects(at: Run, three: Up) -> None:
    """Its partition with one replica has no leader until it is back; its other partitions get another leader."""
    found = status_of(at)["quorum"]
    assert isinstance(found, dict)
    victim = next(it for it in (3, 2) if it != found["leader_id"])
    safe, lone = unique("safe"), unique("lone")
    with Client(three.bootstrap) as client:
        goals = {safe: [victim, *(it for it in (1, 2, 3) if it != victim)], lone: [victim]}
        admin.create_topics(client, [admin.NewTopic(name, assignments={0: it}) for name, it in goals.items()])
    os.kill(three.children()[victim], signal.SIGSTOP)
    try:
        eventually(lambda: f"node {victim} at" in wrong(at), "the node is reported")
        complaints = eventually(lambda: wrong(at) if f"{lone}-0 has no leader" in wrong(at) else "", "the partition is")
        assert f"only node {victim} has all the records, and is not running" in complaints
        assert f"elect-leaders {lone} --partition 0 --unclean" in complaints
        assert f"no replica in sync on node {victim}, because that node is not running" in complaints
        assert "2 of 3 voters are running" in complaints
    finally:
        os.kill(three.children()[victim], signal.SIGCONT)
    eventually(lambda: len(partition_of(three, safe).isr) == 3 and partition_of(three, lone).leader_id >= 0, "well")
    # Another node leads where it could, until an election of the preferred leader.
    assert partition_of(three, safe).leader_id != victim
    assert "not led by" in wrong(at)
    assert at("topics", "elect-leaders", safe).stdout == f"{safe}-0: node {victim} leads\n"
    assert at("topics", "elect-leaders", safe).stdout == "every partition has its preferred leader already\n"
    assert at("topics", "elect-leaders", lone, "--unclean").stdout == "every partition has a leader already\n"


def test_a_node_that_is_killed_is_reported_and_restarted(at: Run, three: Up) -> None:
    topic = unique("survives")
    at("topics", "create", topic)
    before = three.children()
    os.kill(before[2], signal.SIGKILL)
    eventually(lambda: "node 2: ended (exit code 137, killed by SIGKILL): restarting in" in three.said(), "reported")
    assert at("produce", topic, stdin="".join(f"{n}\n" for n in range(20))).returncode == 0
    eventually(lambda: "node 2: is ready again" in three.said(), "it is back", seconds=40)
    assert three.children()[2] != before[2]
    assert {number: pid for number, pid in three.children().items() if number != 2} == {1: before[1], 3: before[3]}
    read = at("consume", topic, "--from-beginning", "--exit-at-end").stdout.split()
    assert sorted(map(int, read)) == list(range(20))


def test_an_incomplete_or_contradictory_command_is_wrong_usage(minibroker_here: Run) -> None:
    cases = {
        "reassign --cancel": "give the TOPIC",
        "reassign t --replicas 1": "give the --partition",
        "reassign t --partition 1": "--replicas",
        "reassign t --partition 1 --replicas one": "'one' is not a list of node ids, such as 1,2,3",
        "reassign t --partition 1 --replicas 1 --cancel": "give only one of --replicas, --from",
        "reassign --from 1 --spread": "give only one of --replicas, --from, --spread and --cancel",
        "reassign t --from 1 --partition 1": "leave --partition out",
        "reassign --dry-run": "--dry-run needs --from or --spread",
        "elect-leaders --partition 1": "give the TOPIC",
        "elect-leaders --unclean": "--unclean loses records, so name the TOPIC",
    }
    for line, complaint in cases.items():
        assert complaint in failed(minibroker_here("topics", *line.split()), 2), line


# The end --------------------------------------------------------------------------------------------------------------


def test_the_nodes_end_when_up_itself_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1") as up:
        up.await_ready()
        assert len(up.children()) == 1
        up.process.kill()
        eventually(lambda: not up.children(), "the nodes end")


def test_a_node_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1", program=(sys.executable, "-c", IMPATIENT)) as up:
        up.await_ready()
        os.kill(up.children()[1], signal.SIGSTOP)
        assert up.stop() == 0
        assert up.children() == {}
        assert "node 1: did not stop within 0.5 s: killed" in up.said()


def test_without_restarts_up_ends_with_its_last_node(tmp_path: Path) -> None:
    with started(tmp_path / "one", "-n", "1", "--no-restart") as up:
        up.await_ready()
        os.kill(up.children()[1], signal.SIGKILL)
        assert up.process.wait(60) == 1
        assert "node 1: ended (exit code 137, killed by SIGKILL)\n" in up.said()
        assert up.said().endswith("minibroker up: all nodes have ended: their messages are above\n")


def test_up_ends_with_the_reason_when_a_node_cannot_start(tmp_path: Path, minibroker: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = minibroker("up", "-n", "1", "--port", str(port), "--data", str(tmp_path / "data"))
    last = failed(result)
    assert last == "minibroker up: node 1 could not start (exit code 1): its messages are above"
    assert f"node 1: minibroker serve: cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "choose another port with --listen, or --port of `minibroker up`" in result.stderr


# Settings -------------------------------------------------------------------------------------------------------------


def test_a_wrong_option_is_reported_before_any_node_is_started(tmp_path: Path, minibroker_here: Run) -> None:
    cases = [
        (("--set", "node.id=7"), 2, "--set node.id is not possible"),
        (("--set", "num.partitons=3"), 1, "did you mean num.partitions?"),
        (("--set", "nothing"), 2, "'nothing' is not NAME=VALUE"),
        (("--port", "65534"), 2, "3 ports from 65534 on do not fit: 65535 is the last port"),
        (("-n", "0"), 2, "0 is not in the range"),
    ]
    for arguments, code, complaint in cases:
        assert complaint in failed(minibroker_here("up", "--data", str(tmp_path / "data"), *arguments), code), arguments
        assert not (tmp_path / "data").exists(), arguments


def test_the_voters_do_not_change_with_the_number_of_nodes(tmp_path: Path, minibroker_here: Run) -> None:
    """Two new nodes of three would be a majority that knows nothing of the data of the old one."""
    for known, count, hint in (((1,), 3, "give -n 1"), ((1, 2, 3), 2, "give -n 3")):
        data = tmp_path / str(count)
        for number in known:
            (data / f"node{number}").mkdir(parents=True)
            (data / f"node{number}" / "meta.properties").write_text("")
        assert hint in failed(minibroker_here("up", "-n", str(count), "--data", str(data)))


def test_replicas_and_voters_grow_with_the_number_of_nodes() -> None:
    for count, replicas, min_isr, voters in ((1, "1", None, 1), (2, "2", None, 1), (3, "3", "2", 3), (5, "3", "2", 3)):
        plan = Plan("data", range(9092, 9092 + count), settings_for(count))
        settings = plan.settings_of(count)
        assert settings["default.replication.factor"] == replicas, count
        assert settings["offsets.topic.replication.factor"] == replicas, count
        assert settings.get("min.insync.replicas") == min_isr, count
        assert settings["controller.quorum.voters"].count("@") == voters, count
        assert settings["listeners"] == f"PLAINTEXT://127.0.0.1:{9091 + count}"
        assert settings["log.dirs"] == os.path.join("data", f"node{count}")
