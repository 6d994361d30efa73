"""Claims about `minibroker bench`: it starts its own nodes or uses those of a cluster, and leaves nothing behind."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.bench import children
from minibroker.bench.context import open_context
from minibroker.cli.bench import bench
from minibroker.clients.admin import list_topics
from minibroker.clients.blocking import Client
from minibroker.metadata.errors import InvalidConfig


def test_failover_prints_every_pause_as_json_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    options = ["--rounds", "1", "--fault", "stopped", "--fault", "stopped", "--controller", "--format", "json"]
    ended = CliRunner().invoke(bench, ["failover", *options, "--dir", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    outages = json.loads(ended.stdout)["outages"]
    seen = [f"leader and controller stopped{by}" for by in ("", ", librdkafka", ", decided")]
    assert [it["name"] for it in outages] == seen
    for it in outages:
        assert len(it["lasted_ms"]) == 1
        assert it["lasted_ms"][0] == it["p50_ms"] == it["p99_ms"] == it["max_ms"] >= 0
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_setting_is_reported_before_any_node_is_started() -> None:
    ended = CliRunner().invoke(bench, ["failover", "--set", "broker.session.timeout.ms=soon"])
    assert isinstance(ended.exception, InvalidConfig)
    assert CliRunner().invoke(bench, ["failover", "--rounds", "0"]).exit_code == 2


def figures_of(*arguments: str) -> dict[tuple[str, str], float]:
    ended = CliRunner().invoke(bench, [*arguments, "--format", "json"])
    assert ended.exit_code == 0, ended.output
    return {(it["name"], it["unit"]): it["value"] for it in json.loads(ended.stdout)["figures"]}


def test_produce_and_consume_start_a_node_and_measure_it_beside_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    for command, timed, limit in (
        ("produce", "request", "bare receive + crc32c + append, 16 KiB"),
        ("consume", "poll", "bare read + send, 1 MiB"),
    ):
        figures = figures_of(command, "--partitions", "2", "--batch-size", "16384", "--dir", str(tmp_path))
        percentiles = [figures[f"{timed}, {it}", "ms"] for it in ("p50", "p90", "p99", "p99.9", "max")]
        assert percentiles == sorted(percentiles), command
        for name, unit in (
            ("throughput", "MB/s"),
            ("records", "records/s"),
            ("CPU of the nodes", "s/GB"),
            ("CPU of the nodes", "µs a request"),
            ("resident memory of the nodes", "MB"),
            (limit, "MB/s"),
            ("throughput beside that limit", "ratio"),
        ):
            assert figures[name, unit] > 0, (command, name)
        assert list(tmp_path.iterdir()) == [], command


def test_latency_and_a_rate_are_measured_on_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    with open_context(directory=tmp_path) as context:
        address = children.serve(context).address
        figures = figures_of("latency", "--rate", "100", "--bootstrap-server", address)
        assert figures["received, p50", "ms"] > 0
        assert figures["acknowledged, max", "ms"] > 0
        # The nodes of others are not measured.
        assert not [name for name, _unit in figures if "nodes" in name]
        slow = figures_of("produce", "--rate", "0.5", "--batch-size", "10000", "--bootstrap-server", address)
        assert slow["throughput", "MB/s"] < 2
        with Client(address) as client:
            assert list_topics(client) == [], "the topics of a run are deleted"


def test_a_cluster_that_is_down_is_named_in_one_line() -> None:
    ended = CliRunner().invoke(bench, ["produce", "--bootstrap-server", "127.0.0.1:1"])
    assert "no broker answers" in str(ended.exception)
    assert CliRunner().invoke(bench, ["latency", "--bootstrap-server", "nowhere"]).exit_code == 2
