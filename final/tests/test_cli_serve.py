"""Claims about `minibroker serve`: the line when it is ready, a clean end, and readable errors."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import eventually, start_broker
from cases import case

from minibroker.cli.serving import settings_from

pytest_plugins = ["clients_fixtures"]

PROGRAM = (sys.executable, "-m", "minibroker.cli")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@contextmanager
def started(data: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [*PROGRAM, "serve", "--data", str(data), "--listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready: 127.0.0.1:"), line
    return line.removeprefix("ready: ").strip()


def test_a_node_prints_when_it_is_ready_and_how_to_reach_it(tmp_path: Path, minibroker: Run) -> None:
    with started(tmp_path / "data") as process:
        address = ready(process)
        assert minibroker("topics", "list", "--bootstrap-server", address).returncode == 0
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (0, "")
    (cluster_id,) = re.findall("^cluster.id=(.*)$", (tmp_path / "data/meta.properties").read_text(), re.MULTILINE)
    assert stderr == (
        f"data is in {tmp_path / 'data'}, of cluster {cluster_id}, whose voters are [1]; stop with Ctrl-C\n"
        f"try: minibroker topics list --bootstrap-server {address}\n"
    )


def test_ctrl_c_stops_a_node_with_exit_code_0_and_without_a_traceback(tmp_path: Path) -> None:
    with started(tmp_path / "data") as process:
        ready(process)
        process.send_signal(signal.SIGINT)
        _stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in stderr


def test_records_are_there_after_a_restart(tmp_path: Path, minibroker: Run) -> None:
    broker = start_broker(tmp_path / "data")
    try:
        at = ("--bootstrap-server", broker.address)
        assert minibroker("produce", "orders", *at, stdin="one\ntwo\n").returncode == 0
        broker.stop()
        broker.restart()
        read = minibroker("consume", "orders", "--from-beginning", "--exit-at-end", *at)
        assert read.stdout == "one\ntwo\n"
        broker.stop()
    finally:
        broker.kill()


# Two nodes.


def test_a_second_node_on_the_same_data_is_refused_in_one_line(tmp_path: Path, minibroker: Run) -> None:
    with started(tmp_path / "data") as first:
        ready(first)
        result = minibroker("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        assert first.poll() is None
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert f"{tmp_path / 'data'} is in use by another node" in result.stderr


def test_a_second_node_on_the_same_port_is_refused_in_one_line(tmp_path: Path, minibroker: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = minibroker("serve", "--data", str(tmp_path / "data"), "--listen", address)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert address in result.stderr
    assert "--listen" in result.stderr


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path, minibroker: Run) -> None:
    (tmp_path / "data").write_text("")
    result = minibroker("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_the_directory_of_a_single_voter_is_refused_in_a_cluster_of_three(tmp_path: Path, minibroker: Run) -> None:
    """The node would lead a cluster of its own, at an address that clients take for the other cluster (O17)."""
    with started(tmp_path / "data", "--set", "node.id=3") as process:
        ready(process)
    at = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--set", "node.id=3")
    voters = "controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3"
    result = minibroker("serve", *at, "--set", voters)
    assert (result.returncode, result.stdout) == (1, "")
    (told,) = result.stderr.splitlines()
    assert "whose only voter is node 3, but controller.quorum.voters names [1, 2, 3]" in told
    # The refused start has changed nothing.
    with started(tmp_path / "data", "--set", "node.id=3") as process:
        ready(process)


# Settings.


def test_settings_come_from_the_file_then_from_set_then_from_the_options(tmp_path: Path, minibroker: Run) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        f"# a broker\nnum.partitions=3\nlog.retention.ms=1000\nlog.dirs={tmp_path}/elsewhere\nlisteners=PLAINTEXT://:1\n"
    )
    with started(tmp_path / "data", "--config", str(file), "--set", "num.partitions=5") as process:
        address = ready(process)
        result = minibroker("topics", "create", "orders", "--bootstrap-server", address)
    assert result.stdout == "created orders: 5 partitions, 1 replica\n"
    assert (tmp_path / "data" / "meta.properties").is_file()
    assert not (tmp_path / "elsewhere").exists()


def check_that_the_file_is_refused(run: Run, path: Path, text: str, number: int, complaint: str) -> None:
    """Demand one line on stderr, which names the file, the number of the line, and what is wrong."""
    file = path / "server.properties"
    file.write_text(text)
    result = run("serve", "--data", str(path / "data"), "--config", str(file))
    assert result.returncode == 1, complaint
    (told,) = result.stderr.splitlines()
    assert told.startswith(f"minibroker serve: {file}:{number}: ")
    assert complaint in told


def test_a_single_node_keeps_one_copy_of_offsets_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    """Kafka's default is three copies, which a cluster of one node cannot make."""
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\n")
    for path, pairs, copies in (
        (None, [], "1"),
        (None, ["offsets.topic.replication.factor=2"], "2"),
        (None, ["controller.quorum.voters=1@a:1,2@b:1,3@c:1"], None),
        (str(file), [], None),
    ):
        with case(path, pairs):
            settings = settings_from(data=None, listen=None, file=path, pairs=pairs)
            assert settings.values.get("offsets.topic.replication.factor") == copies


def test_a_wrong_setting_in_the_file_is_reported_with_its_line(tmp_path: Path, minibroker_here: Run) -> None:
    cases = {
        "num.partitons=3": "did you mean num.partitions?",
        "num.partitions=three": "num.partitions=three",
        "nonsense": "is not a setting",
        # The setting that is meant, or that the message also names, is in another line.
        "controller.quorum.voter=1@a:1": "did you mean controller.quorum.voters?",
        "control.plane.listener.name=CONTROLLER": "does not support Kafka's key control.plane.listener.name",
        "node.id=7": "node.id is set twice, first in line 2",
        "advertised.listeners=SSL://a:9092": "there is no TLS",
    }
    for line, complaint in cases.items():
        text = f"# a broker\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:9092\n{line}\n"
        check_that_the_file_is_refused(minibroker_here, tmp_path, text, 4, complaint)


def test_a_wrong_option_is_one_line(tmp_path: Path, minibroker_here: Run) -> None:
    cases = [
        (("--set", "num.partitons=3"), 1, "did you mean num.partitions?"),
        (("--set", "num.partitions"), 2, "'num.partitions' is not NAME=VALUE"),
        (("--listen", "nowhere"), 2, "'nowhere' is not HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), 1, "PLAINTEXT://127.0.0.1:99999"),
        (("--config", "not-there.properties"), 2, "not-there.properties"),
    ]
    for arguments, code, complaint in cases:
        result = minibroker_here("serve", "--data", str(tmp_path / "data"), *arguments)
        assert result.returncode == code, arguments
        assert len(result.stderr.splitlines()) == 1, arguments
        assert complaint in result.stderr


def test_the_address_of_another_machine_is_refused(tmp_path: Path, minibroker: Run) -> None:
    result = minibroker("serve", "--data", str(tmp_path / "data"), "--listen", "192.0.2.1:9092")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "192.0.2.1:9092" in result.stderr


def test_roles_and_voters_that_disagree_are_reported_with_their_line(tmp_path: Path, minibroker_here: Run) -> None:
    cases = [
        ("node.id=1\nprocess.roles=broker", 3, "but controller.quorum.voters names node 1 as a voter"),
        ("node.id=7\nprocess.roles=broker,controller", 3, "controller.quorum.voters names [1, 2] and not node 7"),
        ("node.id=1\nlisteners=PLAINTEXT://:9092", 1, "node 1 at port 9093, but listeners=PLAINTEXT://:9092"),
        ("broker.rack=r", 1, "node.id is not set, and controller.quorum.voters names [1, 2]"),
    ]
    for lines, number, complaint in cases:
        text = f"controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9094\n{lines}\n"
        check_that_the_file_is_refused(minibroker_here, tmp_path, text, number, complaint)


def test_a_controller_and_a_broker_on_separate_nodes_are_a_cluster(tmp_path: Path, minibroker: Run) -> None:
    with socket.socket() as kept:
        # The port of the controller must be known before it runs, so it is reserved here.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        voter = f"127.0.0.1:{kept.getsockname()[1]}"
        voters = ("--set", f"controller.quorum.voters=1@{voter}")
        controlling = ("--listen", voter, *voters, "--set", "process.roles=controller", "--set", "node.id=1")
        serving = (*voters, "--set", "process.roles=broker", "--set", "node.id=2")
        with started(tmp_path / "two", *serving) as broker, started(tmp_path / "one", *controlling) as controller:
            # The node that starts first waits for the other.
            assert ready(controller) == voter
            address = ready(broker)
            assert minibroker("produce", "orders", "--bootstrap-server", address, stdin="one\n").returncode == 0
            # Both answer, and only the broker has replicas.
            for at in (voter, address):
                shown = minibroker("topics", "describe", "orders", "--bootstrap-server", at)
                assert shown.stdout.splitlines()[-1].split()[:4] == ["0", "2", "2", "2"]
            status = minibroker("cluster", "status", "--bootstrap-server", address, NO_COLOR="1").stdout
            assert status.splitlines()[3].split()[4:7] == ["live", "-", "-"]
            assert "\nnothing is wrong\nadvice: 1 voter: " in status
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(60) == 0
            # The controller answers, though no broker is left.
            status = minibroker("cluster", "status", "--bootstrap-server", voter, NO_COLOR="1").stdout
            assert "quorum: node 1 leads 1 voter" in status
            assert [line.split()[3:5] for line in status.splitlines()[3:5]] == [
                ["controller", "live"],
                ["observer", "fenced"],
            ]
            assert "there is no controller: no majority" not in status
            controller.send_signal(signal.SIGTERM)
            assert controller.wait(60) == 0
    assert not list((tmp_path / "one").glob("orders-*"))


def test_the_data_of_a_broker_without_a_quorum_is_used_as_it_is(tmp_path: Path, minibroker: Run) -> None:
    """Chapter 03's node writes metadata of epoch 1, and neither a vote nor a broker epoch."""
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-m", "minibroker.partitions", str(data), "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as old:
        at = ("--bootstrap-server", ready(old))
        assert minibroker("produce", "orders", *at, stdin="one\n").returncode == 0
        old.send_signal(signal.SIGTERM)
        assert old.wait(60) == 0
    identity = (data / "meta.properties").read_text()
    with started(data) as process:
        at = ("--bootstrap-server", ready(process))
        assert minibroker("produce", "orders", *at, stdin="two\n").returncode == 0
        assert minibroker("consume", "orders", "--from-beginning", "--exit-at-end", *at).stdout == "one\ntwo\n"
        quorum = json.loads(minibroker("cluster", "status", "--format", "json", *at).stdout)["quorum"]
        assert (quorum["leader_id"], quorum["epoch"]) == (1, 2)
    assert (data / "meta.properties").read_text() == identity


# The trace.


def test_trace_shows_each_request_and_each_response(tmp_path: Path, minibroker: Run) -> None:
    log = tmp_path / "trace"
    command = [*PROGRAM, "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--trace"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            address = ready(process)
            assert minibroker("topics", "create", "traced", "--bootstrap-server", address).returncode == 0
            words = ("ApiVersions", "CreateTopics", "traced")
            eventually(lambda: all(word in log.read_text() for word in words), f"{words} in the trace")
        finally:
            process.kill()
