"""Runs Apache Kafka beside our broker for comparison, if Maven and Java are on the machine.

`beside` starts one node or three. Each node is broker and controller, as ours are, runs with the flags of Kafka's own
start script, and stops when the context ends. `kafka_program` is the program of a node.
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minibroker.bench import children, jars
from minibroker.bench.context import Context, is_quick
from minibroker.bench.kafka_program import jvm_flags, new_cluster_id
from minibroker.bench.launcher import HOST, Server, reserve_port, serve_command
from minibroker.bench.local import Administered
from minibroker.bench.watching import until
from minibroker.clients.blocking import Client

NAME = "Apache Kafka"
POM = Path(__file__).with_name("kafka.xml")
_MIN_ISR = {1: 1, 3: 2}
"""The `min.insync.replicas` of internal topics, by the number of replicas."""


class Peer(NamedTuple):
    """The cluster and a sentence with its settings; or None, and a sentence that says why Kafka was not started."""

    cluster: "KafkaCluster | None"
    note: str


def beside(context: Context, *settings: str, size: int = 1) -> Peer:
    """Start Kafka, unless this is a quick run or Kafka's jars are not available."""
    try:
        classpath = _classpath()
    except jars.Missing as missing:
        return Peer(None, f"{NAME} is skipped: {missing}.")
    environment = children.environment(context) | {"KAFKA_CLASSPATH": classpath}
    cluster = KafkaCluster(context.directory / "kafka", environment, *settings, size=size)
    context.cleanup.enter_context(cluster)
    told = ", ".join((*_settings_of(size), *settings))
    nodes = "one node" if size == 1 else f"{size} nodes"
    return Peer(cluster, f"{NAME} {version()}: {nodes}, java {' '.join(jvm_flags())}; {told}.")


def is_at_hand() -> bool:
    """Whether `beside` would start Kafka."""
    with contextlib.suppress(jars.Missing):
        return bool(_classpath())
    return False


def _classpath() -> str:
    if is_quick():
        raise jars.Missing("a quick run starts no other broker")
    return jars.classpath(POM)


def version() -> str:
    """The version of Kafka that the POM names."""
    found = re.search(r"kafka_[\d.]+</artifactId>\s*<version>([\d.]+)", POM.read_text())
    assert found is not None
    return found[1]


def _settings_of(size: int) -> list[str]:
    """The replication of internal topics in a cluster of this size."""
    return [
        f"offsets.topic.replication.factor={size}",
        f"transaction.state.log.replication.factor={size}",
        f"transaction.state.log.min.isr={_MIN_ISR[size]}",
    ]


class KafkaNode(Server):
    """One node of Kafka with its own data directory and a fixed address."""

    def __init__(
        self, number: int, data: Path, address: str, arguments: Sequence[str], environment: dict[str, str]
    ) -> None:
        super().__init__(
            lambda listen: _program(number, data, listen, arguments),
            data,
            address=address,
            environment=environment,
            is_tied=True,
            name=f"node {number} of {NAME}",
        )
        self.number = number


def _program(number: int, data: Path, listen: str, arguments: Sequence[str]) -> list[str]:
    ours = serve_command(f"node.id={number}", data=data, listen=listen, is_child=True)
    program = [sys.executable, "-m", "minibroker.bench.kafka_program"]
    return [*program, *ours[ours.index("serve") :], *arguments]


class KafkaCluster(Administered[KafkaNode]):
    """A cluster of Kafka in KRaft mode, in a folder that the caller removes."""

    def __init__(self, folder: Path, environment: dict[str, str], *settings: str, size: int) -> None:
        self._reserved = contextlib.ExitStack()
        numbers = range(1, size + 1)
        addresses, controllers = (
            {it: f"{HOST}:{reserve_port(self._reserved)}" for it in numbers} for _listener in range(2)
        )
        voters = ",".join(f"{it}@{controllers[it]}" for it in numbers)
        common = [f"controller.quorum.voters={voters}", *_settings_of(size), *settings]
        cluster_id = new_cluster_id()
        self.nodes = {}
        for it, address in addresses.items():
            listeners = f"listeners=PLAINTEXT://{address},CONTROLLER://{controllers[it]}"
            own = [word for setting in (listeners, *common) for word in ("--set", setting)]
            arguments = ["--cluster-id", cluster_id, *own]
            self.nodes[it] = KafkaNode(it, folder / f"node{it}", address, arguments, environment)

    def start(self) -> None:
        """Start all nodes, and wait until they know each other."""
        super().start()
        with Client(self.bootstrap) as client:
            until(lambda: len(client.metadata([]).brokers) == len(self.nodes), f"{NAME} has all its nodes")

    def close(self) -> None:
        """Kill every process, and release the ports."""
        super().close()
        self._reserved.close()
