"""Kafka's own clients and console tools in one process of Java, for the checks of `make test-java`."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from brokers import IS_OURS, start_broker
from clusters import QuorumCluster

WAIT_S_MAX = 60
TOOLS = "org.apache.kafka.tools"
_PROGRAM = Path(__file__).parent / "java" / "ClientCalls.java"


class Java:
    """A process with Kafka's jars, for one cluster. An answer with an error fails the test, unless it is wanted."""

    def __init__(self, bootstrap: str, data: dict[int, Path]) -> None:
        self.bootstrap = bootstrap
        self.data = data
        # By the environment, so that an error that shows the command does not show a page of jars.
        env = os.environ | {"CLASSPATH": os.environ["KAFKA_CLASSPATH"]}
        command = ["java", "-XX:TieredStopAtLevel=1", str(_PROGRAM)]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, what: str, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": what, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        with self._process:  # which closes the pipes
            self._process.kill()

    def tool(self, name: str, *arguments: object, refused: str = "") -> str:
        """Run a console tool of Kafka; return what it prints. It must complain of nothing, or of what is wanted."""
        words = ["--bootstrap-server", self.bootstrap, *map(str, arguments)]
        ended = self.call("tool", name=name, arguments=words)
        both = str(ended["out"]) + str(ended["err"])
        said = f"{name} {' '.join(words[2:])}: exit code {ended['code']}\n{both}"
        if refused:
            assert refused in both, said
        else:
            assert ended["code"] == 0, said
            assert not re.search(r"exception|error\b", both, re.IGNORECASE), said
        return str(ended["out"])

    def groups(self, *arguments: object, refused: str = "") -> str:
        return self.tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *arguments, refused=refused)

    def console(self, topic: str, group: str, count: int, *properties: str) -> list[str]:
        """Read that many records with the console consumer."""
        words = [it for one in properties for it in ("--command-property", one)]
        limits = ["--from-beginning", "--max-messages", count, "--timeout-ms", WAIT_S_MAX * 1000]
        return self.tool(
            f"{TOOLS}.consumer.ConsoleConsumer", "--topic", topic, "--group", group, *limits, *words
        ).split()


@contextmanager
def java_beside(path: Path, *settings: str) -> Iterator[Java]:
    """Three nodes of ours, or one of another broker, and a process of Java beside them."""
    with ExitStack() as stack:
        if IS_OURS:
            cluster = stack.enter_context(QuorumCluster(path, "default.replication.factor=3", *settings))
            java = Java(cluster.bootstrap, {number: node.data for number, node in cluster.nodes.items()})
        else:
            broker = start_broker(path / "data", *settings)
            stack.callback(broker.kill)
            java = Java(broker.address, {1: broker.data})
        stack.callback(java.close)
        yield java
