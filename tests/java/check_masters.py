"""Every pipeline on a Spark of several processes: `local-cluster`, and a standalone master with two workers.

Both come with pip's PySpark. Each start takes three to six JVMs, so the name of this file keeps it out of `make test`;
`make chaos-spark` runs it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from brokers import Broker, eventually, unique

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyspark
from transactions_stock import read_all

from minibroker.clients.blocking import Client
from minibroker.clients.producer import Producer
from minibroker.spark.java import prepare_java

pytest_plugins = ["clients_fixtures"]

COUNT = 500
NOON_S = 1_700_000_000
SECONDS_MAX = 600
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
CONF = ("spark.executor.memory=512m", "spark.driver.memory=512m", "spark.driver.host=127.0.0.1")


@pytest.fixture(scope="module", params=[LOCAL_CLUSTER, "standalone"])
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that runs."""
    if request.param == LOCAL_CLUSTER:
        yield LOCAL_CLUSTER
        return
    prepare_java()
    folder = tmp_path_factory.mktemp("standalone")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        for name, *arguments in (
            ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
            *[("worker.Worker", address, "--host", "127.0.0.1", "--cores", "1", "--memory", "1g")] * 2,
        ):
            process = stack.enter_context(deployed(name, arguments, folder))
            stack.callback(process.terminate)
            eventually(lambda: is_listening(port), "the master listens", seconds=SECONDS_MAX)
        yield address


def deployed(name: str, arguments: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Start a part of a standalone cluster as the documentation does."""
    home = Path(pyspark.__path__[0])
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(folder), "SPARK_NO_DAEMONIZE": "1"},
        )


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pipeline(broker: Broker, master: str, *arguments: str) -> str:
    """Run a pipeline to its end, and return its output."""
    spark = [] if "generate" in arguments else ["--master", master, *(it for one in CONF for it in ("--conf", one))]
    result = subprocess.run(
        [sys.executable, "-m", "minibroker.cli", "pipeline", "run", *arguments, *spark],
        env=os.environ | {"MINIBROKER_BOOTSTRAP_SERVER": broker.address, "MINIBROKER_QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 0, f"{arguments}: {result.stderr[-2000:]}"
    return result.stdout


@pytest.mark.timeout(1200)
def test_every_pipeline_runs_on_a_spark_of_several_processes(broker: Broker, master: str, tmp_path: Path) -> None:
    topic, results, dead, back = (unique(it) for it in ("orders", "revenue", "dead", "back"))
    pipeline(broker, master, "generate", "--topic", topic, "--count", str(COUNT), "--bad", "0")
    checkpoint = ("--checkpoint", str(tmp_path / "orders"))
    pipeline(
        broker, master, "orders", "--once", "--topic", topic, "--results", results, "--dead-letters", dead, *checkpoint
    )
    archive = str(tmp_path / "archive")
    verified = pipeline(broker, master, "archive", archive, "--topic", topic, "--once", "--verify")
    assert verified.startswith(f"{COUNT} records are equal, 0 missing, 0 twice, 0 different, 0 not in the topic")
    assert pipeline(broker, master, "replay", archive, "--topic", back) == f"{COUNT} records are in topic {back}\n"
    sessions_go_on(broker, master, tmp_path)
    with Client(broker.address) as client:
        sums = {it["region"] + it["start"]: it["orders"] for it in map(json.loads, read_all(client, results))}
        assert sum(sums.values()) == COUNT
        assert len(read_all(client, back)) == COUNT
    audited(broker, master, tmp_path)


def sessions_go_on(broker: Broker, master: str, folder: Path) -> None:
    """A session goes on after a restart, and is written once."""
    topic, results = unique("orders"), unique("sessions")
    given = ("--topic", topic, "--results", results, "--checkpoint", str(folder / "sessions"), "--gap", "10 seconds")
    # The first run ends in the middle of a's session. The last order moves the watermark, and its session stays open.
    for orders in ([("a", 0), ("b", 1), ("a", 8)], [("a", 15), ("c", 500)]):
        with Client(broker.address) as client, Producer(client) as producer:
            client.partition_count(topic, allow_auto_topic_creation=True)
            for customer, second in orders:
                producer.send(topic, order(customer, second), partition=0)
        pipeline(broker, master, "sessions", "--once", *given)
    with Client(broker.address) as client:
        found = [json.loads(it) for it in read_all(client, results)]
    assert sorted((it["customer"], it["orders"]) for it in found) == [("a", 3), ("b", 1)]


def order(customer: str, second: int) -> bytes:
    time = datetime.fromtimestamp(NOON_S + second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"order_id": f"{customer}-{second}", "customer": customer, "region": "eu", "amount": 1, "time": time}
    return json.dumps(fields).encode()


def audited(broker: Broker, master: str, folder: Path) -> None:
    topic, lines = unique("audited"), []
    with Client(broker.address) as client, Producer(client) as producer:
        client.partition_count(topic, allow_auto_topic_creation=True)
        for number in range(100):
            producer.send(topic, b"%d" % number, partition=0)
            fields = {"topic": topic, "partition": 0, "sequence": number, "offset": number, "acked_ms": number}
            lines.append(json.dumps(fields) + "\n")
    (folder / "history").write_text("".join(lines))
    out = pipeline(broker, master, "audit", str(folder / "history"), "--report", str(folder / "audit.html"))
    assert out.splitlines()[-2].split() == ["all", "100", "100", "0", "0", "0", "0"]
    assert "Every acknowledgement was true" in (folder / "audit.html").read_text()


@pytest.mark.timeout(1200)
def test_a_declarative_pipeline_copies_a_topic_exactly_once(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="the extra `declarative` is not installed")
    prepare_java()
    shutil.copytree(Path(__file__).parents[2] / "final/examples/declarative", tmp_path / "example")
    spec = tmp_path / "example/spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:9092", broker.address)
    spec.write_text(text.replace("file:///tmp/minibroker-declarative", f"file://{tmp_path}/storage"))
    pipeline(broker, "", "generate", "--topic", "orders", "--count", str(COUNT), "--bad", "0")
    for _ in range(2):
        # The second run finds nothing new.
        result = subprocess.run(
            [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    with Client(broker.address) as client:
        large = sorted(it for it in read_all(client, "orders") if json.loads(it)["amount"] > 100)
        assert sorted(read_all(client, "large-orders")) == large
        assert large
