"""Claims about `minibroker bench failover`: it starts its own nodes, and leaves no files behind."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.cli.bench import bench
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
