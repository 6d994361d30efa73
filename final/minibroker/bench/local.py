"""Runs clusters of processes on this machine whose nodes are meant to be killed: for labs, benchmarks and tests.

`minibroker up` restarts nodes that die; here a node stays killed or paused until the caller repairs it. Each node is a
process that `launcher` runs.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from minibroker.bench import children
from minibroker.bench.context import Context
from minibroker.bench.launcher import HOST, Server, reserve_port, serve_command
from minibroker.bench.watching import Watched, until
from minibroker.client.errors import ClientError
from minibroker.clients.admin import NewTopic, create_topics, elect_leaders
from minibroker.clients.blocking import Client
from minibroker.segments.checkpoint import TopicPartition

SIZE = 3

N = TypeVar("N", bound=Server)


class Processes(Watched, Generic[N]):
    """Several nodes, each a process; no process is left at the end of the `with`."""

    nodes: dict[int, N]

    def __getitem__(self, number: int) -> N:
        return self.nodes[number]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all nodes that do not run, at the same time: a node is not ready before there is a majority."""
        for node in self.nodes.values():
            if not node.is_alive():
                node.begin()
        for node in self.nodes.values():
            node.await_ready()

    def repair(self) -> None:
        """Undo every fault: resume paused nodes, start killed ones."""
        for node in self.nodes.values():
            node.resume()
        self.start()

    def close(self) -> None:
        """Kill every process: no client will need the data again."""
        for node in self.nodes.values():
            node.kill()

    # Addresses

    def address_of(self, number: int) -> str:
        """The address of a node, as clients and other nodes use it."""
        return self.nodes[number].address

    def asked_at(self, number: int) -> str:
        """The address at which a node is asked for its state: its own, even if other nodes reach it through a proxy."""
        return self.nodes[number].address

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients."""
        return ",".join(self.address_of(number) for number in self.nodes)

    def living(self) -> list[int]:
        """The nodes whose processes run, paused or not."""
        return [number for number, node in self.nodes.items() if node.is_alive()]

    def others(self, number: int) -> list[int]:
        """All nodes but one."""
        return [it for it in self.nodes if it != number]


class Administered(Processes[N]):
    """Processes whose topics and leaders are managed with our own client. They may also be nodes of Apache Kafka."""

    def create(self, topic: str, replicas: Sequence[Sequence[int]], **config: object) -> str:
        """Create a topic with these replicas; wait until every running node knows it."""
        named = {name.replace("_", "."): str(value).lower() for name, value in config.items()}
        with Client(self.bootstrap) as client:
            create_topics(client, [NewTopic(topic, configs=named, assignments=dict(enumerate(replicas)))])
        until(lambda: all(self.state(topic, at=it) for it in self.living()), f"all know {topic}")
        return topic

    def lead_as_preferred(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Wait until all replicas are in sync, elect the preferred leaders, and wait until all nodes know them."""
        for partition, members in enumerate(replicas):
            self.await_isr(topic, *members, partition=partition)
        partitions = [TopicPartition(topic, it) for it in range(len(replicas))]
        until(lambda: self._is_elected(partitions), f"the preferred replicas of {topic} are elected")
        for partition, members in enumerate(replicas):
            until(
                lambda p=partition, first=members[0]: all(  # type: ignore[misc]
                    (state := self.state(topic, p, at=it)) and state.leader == first for it in self.living()
                ),
                f"node {members[0]} leads {topic}-{partition}",
            )

    def _is_elected(self, partitions: Sequence[TopicPartition]) -> bool:
        # A restarted node may still be fenced for a moment; then the next attempt succeeds.
        with contextlib.suppress(ClientError), Client(self.bootstrap) as client:
            elect_leaders(client, partitions)
            return True
        return False


class LocalNode(Server):
    """One node as users run it, with its own data directory and a fixed address."""

    def __init__(
        self, number: int, data: Path, address: str, settings: Sequence[str], environment: Mapping[str, str] | None
    ) -> None:
        super().__init__(
            lambda listen: serve_command(*settings, data=data, listen=listen, is_child=True),
            data,
            address=address,
            environment=environment,
            is_tied=True,
            name=f"node {number}",
        )
        self.number = number


class LocalCluster(Administered[LocalNode]):
    """Three nodes, all voters, in a folder that the caller removes."""

    def __init__(self, folder: Path, *settings: str, environment: Mapping[str, str] | None = None) -> None:
        self._reserved = contextlib.ExitStack()
        addresses = {it: f"{HOST}:{reserve_port(self._reserved)}" for it in range(1, SIZE + 1)}
        voters = "controller.quorum.voters=" + ",".join(f"{it}@{address}" for it, address in addresses.items())
        self.nodes = {
            it: LocalNode(it, folder / f"node{it}", address, (*settings, f"node.id={it}", voters), environment)
            for it, address in addresses.items()
        }

    @classmethod
    def within(cls, context: Context, *settings: str, name: str = "cluster") -> Self:
        """A cluster in the folder of a context, with the environment that `children` gives its servers."""
        return cls(context.directory / name, *settings, environment=children.environment(context))

    def close(self) -> None:
        """Kill every process, and release the ports."""
        super().close()
        self._reserved.close()
