"""Apache Kafka beside ours: what is said where it is missing, and that no node of it is left. No jar is needed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.bench import jars, kafka
from minibroker.bench.context import open_context
from minibroker.bench.kafka_program import jvm_flags
from minibroker.bench.watching import until

# Formats nothing, and as a broker it does not end by itself.
JAVA = """#!/bin/sh
case "$*" in *StorageTool*) exit 0 ;; esac
echo "$*" > "$STARTED"
exec sleep 60
"""


def test_a_machine_without_maven_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.Missing, match=r"needs Maven \(mvn\) and Java 17"):
        jars.classpath(kafka.POM)
    monkeypatch.delenv("MINIBROKER_QUICK", raising=False)
    with open_context(directory=tmp_path) as context:
        peer = kafka.beside(context)
    assert peer.cluster is None
    assert peer.note.startswith("Apache Kafka is skipped: it needs Maven")


def test_a_quick_run_starts_no_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")
    with open_context(directory=tmp_path) as context:
        assert kafka.beside(context) == (None, "Apache Kafka is skipped: a quick run starts no other broker.")


def test_a_node_of_kafka_has_the_flags_of_its_start_script_and_ends_with_its_caller(tmp_path: Path) -> None:
    java, started = tmp_path / "java", tmp_path / "started"
    java.write_text(JAVA)
    java.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STARTED": str(started), "KAFKA_CLASSPATH": "none.jar"}
    program = [sys.executable, "-m", "minibroker.bench.kafka_program", "serve", "--child", "--data", f"{tmp_path}/data"]
    node = subprocess.Popen(
        program, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        until(started.exists, "Kafka runs", seconds=30)
        assert node.stdin is not None
        node.stdin.close()
        assert node.wait(30) == -signal.SIGKILL
        assert " ".join(jvm_flags()) in started.read_text()
    finally:
        node.kill()
        node.wait()
        assert node.stdout is not None
        node.stdout.close()
