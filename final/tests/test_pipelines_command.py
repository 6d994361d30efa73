"""`minibroker pipeline` as people meet it, where no Spark is needed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from brokers import unique
from cases import case

from minibroker.cli.pipeline import DURATION, MASTER, PIPELINES, run

pytest_plugins = ["clients_fixtures"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_each_pipeline_that_is_listed_can_be_run(minibroker: Run) -> None:
    listed = minibroker("pipeline", "list", "--format", "json")
    assert [it["name"] for it in json.loads(listed.stdout)] == list(PIPELINES)
    assert set(PIPELINES) == set(run.commands)
    assert [line.split()[0] for line in minibroker("pipeline", "list").stdout.splitlines()[1:]] == list(PIPELINES)


def test_each_pipeline_explains_itself(minibroker: Run) -> None:
    for name in PIPELINES:
        with case(name):
            result = minibroker("pipeline", "run", name, "--help")
            assert result.returncode == 0, result.stderr
            assert "--bootstrap-server" in result.stdout


def test_generate_says_what_it_wrote(at_broker: Run) -> None:
    topic = unique("generated")
    result = at_broker("pipeline", "run", "generate", "--topic", topic, "--count", "100", "--bad", "0")
    assert (result.returncode, result.stdout) == (0, f"100 orders are in topic {topic}, 0 of them broken\n")


def test_no_broker_is_one_line_before_spark_starts(minibroker: Run, tmp_path: Path) -> None:
    result = minibroker("pipeline", "run", "archive", str(tmp_path), "--bootstrap-server", "127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.startswith("minibroker pipeline: no broker answers at 127.0.0.1:1")
    assert result.stderr.endswith("or name another with --bootstrap-server\n")
    assert len(result.stderr.splitlines()) == 1


def test_a_topic_that_is_missing_is_one_line_before_spark_starts(at_broker: Run, tmp_path: Path) -> None:
    result = at_broker("pipeline", "run", "archive", str(tmp_path), "--topic", unique("ordres"))
    assert result.returncode == 1
    assert result.stderr.startswith("minibroker pipeline: there is no topic 'ordres-")
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_pipeline_is_wrong_usage_in_one_line(minibroker: Run) -> None:
    result = minibroker("pipeline", "run", "ordres")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


WRONG = [
    ("--master", "lokal", "is not local[N], local[*], spark://HOST:PORT, k8s://URL or yarn."),
    ("--master", "local[many]", "is not local[N], local[*], spark://HOST:PORT, k8s://URL or yarn."),
    ("--interval", "soon", "is not a duration such as"),
    ("--window", "5", "is not a duration such as"),
    ("--watermark", "2 moons", "is not a duration such as"),
]


def test_options_that_spark_would_refuse_late_are_wrong_usage_in_one_line(minibroker: Run) -> None:
    for option, value, told in WRONG:
        with case(option, value, told):
            result = minibroker("pipeline", "run", "orders", option, value)
            assert result.returncode == 2
            (line,) = result.stderr.splitlines()
            assert f"Invalid value for '{option}': '{value}' {told}" in line


def test_a_replay_of_a_folder_that_is_not_there_is_wrong_usage_in_one_line(minibroker: Run) -> None:
    result = minibroker("pipeline", "run", "replay", "nowhere-at-all", "--topic", "t")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "Directory 'nowhere-at-all' does not exist." in result.stderr


def test_masters_and_durations_that_spark_accepts_are_accepted() -> None:
    masters = "local", "local[2]", "local[*,4]", "local-cluster[2, 1, 512]", "spark://a:1,b:2", "k8s://x", "yarn"
    assert [it for it in masters if not MASTER.fullmatch(it)] == []
    durations = "500 milliseconds", "1 second", "0 seconds", "1 minute 30 seconds", "2 hours", "1 day"
    assert [it for it in durations if not DURATION.fullmatch(it)] == []
