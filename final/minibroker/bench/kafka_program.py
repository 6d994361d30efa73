"""Runs a node of Apache Kafka with the options of our broker: `serve --data DIR --listen HOST:PORT --set NAME=VALUE`.

    python -m minibroker.bench.kafka_program serve …

Kafka's jars are in KAFKA_CLASSPATH. The process becomes Kafka itself, so that signals reach Kafka and its CPU time can
be measured. A companion process waits until the node answers, and prints that it is ready. With `--child` the companion
then stays, and kills Kafka as soon as stdin closes: Kafka itself would outlive a caller that was killed.

KAFKA_HEAP_OPTS and KAFKA_JVM_PERFORMANCE_OPTS mean what they mean to Kafka's start script, and have its defaults.
"""

import argparse
import os
import selectors
import signal
import socket
import subprocess
import sys
import uuid
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from minibroker.bench.launcher import ANY_PORT, HOST, READY
from minibroker.client.errors import ClientError
from minibroker.clients.blocking import Client

_LOOK_S, _RETRY_S = 1.0, 0.1
_HEAP = "-Xmx1G -Xms1G"
_PERFORMANCE = (
    "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
    " -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)
# Warnings of Kafka are shown when a node does not start.
_LOGGING = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# A tool runs for a second, too short for the optimizing compiler to pay off.
_TOOL = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def main() -> None:
    """Format the directory if it is new, then become Kafka."""
    given = _parse()
    host, _, port = given.listen.rpartition(":")
    address = f"{host}:{port if port != '0' else free_port(host)}"
    settings = settings_of(address, given.data) | dict(it.split("=", 1) for it in given.set)
    given.data.mkdir(parents=True, exist_ok=True)
    path = given.data.parent / f"{given.data.name}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    # The jars are named by the environment, so that an error that shows the command is not a page long.
    os.environ["CLASSPATH"] = os.environ["KAFKA_CLASSPATH"]
    if not (given.data / "meta.properties").exists():
        format_ = ["kafka.tools.StorageTool", "format", "-t", given.cluster_id, "-c", str(path)]
        subprocess.run(["java", *_TOOL, _LOGGING, *format_], check=True, stdout=sys.stderr)
    kafka = os.getpid()
    if os.fork() == 0:
        _accompany(address, kafka, is_child=given.child)
        return
    # The caller reads one line from stdout, so Kafka's own output goes to stderr.
    os.dup2(2, 1)
    os.execvp("java", ["java", *jvm_flags(), _LOGGING, "kafka.Kafka", str(path)])


def jvm_flags() -> list[str]:
    """The flags with which Kafka's start script runs a broker."""
    heap = os.environ.get("KAFKA_HEAP_OPTS", _HEAP)
    return [*heap.split(), *os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", _PERFORMANCE).split()]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--listen", default=ANY_PORT)
    parser.add_argument("--cluster-id", default=new_cluster_id())
    parser.add_argument("--set", action="append", default=[])
    return parser.parse_args()


def new_cluster_id() -> str:
    """A random id, as Kafka writes it."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def settings_of(address: str, data: Path) -> dict[str, str]:
    """The settings of a node that is its own controller, with internal topics of one replica."""
    controller = f"{HOST}:{free_port(HOST)}"
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
        **dict.fromkeys(alone, "1"),
    }


# The companion --------------------------------------------------------------------------------------------------------


def _accompany(address: str, kafka: int, *, is_child: bool) -> None:
    """Print that Kafka is ready. With `is_child`, stay, and kill Kafka when stdin closes.

    The caller never writes to stdin, so stdin becomes readable only when it closes.
    """
    is_ready = False
    with selectors.DefaultSelector() as selector:
        if is_child:
            selector.register(sys.stdin, selectors.EVENT_READ)
        while os.getppid() == kafka and (is_child or not is_ready):
            if selector.select(_LOOK_S if is_ready else _RETRY_S):
                os.kill(kafka, signal.SIGKILL)
            elif not is_ready and _answers(address):
                is_ready = True
                # If the caller has ended, the line cannot be written. The end of stdin is handled above.
                with suppress(BrokenPipeError):
                    print(f"{READY}{address}", flush=True)


def _answers(address: str) -> bool:
    try:
        with Client(address, timeout_ms=1000) as client:
            client.metadata([])
    except (ClientError, OSError):
        return False
    return True


if __name__ == "__main__":
    main()
