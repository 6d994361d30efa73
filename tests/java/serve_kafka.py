"""One node of Apache Kafka in the place of ours: `python serve_kafka.py serve --data DIR --listen HOST:PORT --set K=V`.

MINIBROKER_TEST_SERVE names this program in `make test-kafka`; Kafka's jars are in KAFKA_CLASSPATH. The process becomes
Kafka itself, so that signals reach Kafka. A child process waits until the node answers and prints that it is ready.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client

READY_S_MAX = 90
# The node lives for minutes, too short for the optimizing compiler to pay off.
JAVA = (
    "java",
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def main() -> None:
    """Format the directory if it is new, then become Kafka."""
    given = parse()
    host, _, port = given.listen.rpartition(":")
    address = f"{host}:{port if port != '0' else free_port(host)}"
    settings = settings_of(address, given.data) | dict(it.split("=", 1) for it in given.set)
    given.data.mkdir(parents=True, exist_ok=True)
    path = given.data.parent / f"{given.data.name}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    # By the environment, so that an error that shows the command is no page of jars.
    os.environ["CLASSPATH"] = os.environ["KAFKA_CLASSPATH"]
    if not (given.data / "meta.properties").exists():
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_ = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(path)]
        subprocess.run([*JAVA, *format_], check=True, stdout=sys.stderr)
    kafka = os.getpid()
    if os.fork() == 0:
        tell_when_ready(address, kafka)
        return
    # The caller reads one line from stdout, so Kafka's own output goes to stderr.
    os.dup2(2, 1)
    os.execvp(JAVA[0], [*JAVA, "kafka.Kafka", str(path)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--set", action="append", default=[])
    return parser.parse_args()


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def settings_of(address: str, data: Path) -> dict[str, str]:
    """The settings of a node that is its own controller, with internal topics of one replica."""
    controller = f"127.0.0.1:{free_port('127.0.0.1')}"
    alone = (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    )
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "log.dirs": str(data),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        **dict.fromkeys(alone, "1"),
    }


def tell_when_ready(address: str, kafka: int) -> None:
    deadline_s = time.monotonic() + READY_S_MAX
    while os.getppid() == kafka and time.monotonic() < deadline_s:
        try:
            with Client(address, timeout_ms=1000) as client:
                client.metadata([])
        except (ClientError, OSError):
            time.sleep(0.1)
        else:
            print(f"ready: {address}", flush=True)
            return


if __name__ == "__main__":
    main()
