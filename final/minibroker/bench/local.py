"""Owns clusters of processes on this machine whose nodes are meant to be killed: for labs, benchmarks and tests.

`minibroker up` keeps nodes running; here they stay as dead or as paused as they were made. Each node is a process of
its own that `launcher` runs.
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
        """Start all that do not run, at once: one alone may have no majority, and is not ready then."""
        for node in self.nodes.values():
            if not node.is_alive():
                node.begin()
        for node in self.nodes.values():
            node.await_ready()

    def repair(self) -> None:
        """End whatever was done to nodes."""
        for node in self.nodes.values():
            node.resume()
        self.start()

    def close(self) -> None:
        """End every process at once: no client will ask for the data again."""
        for node in self.nodes.values():
            node.kill()

    # Where they are

    def address_of(self, number: int) -> str:
        """Where clients and nodes find a node."""
        return self.nodes[number].address

    def asked_at(self, number: int) -> str:
        """Where a node is asked: at its own address, whatever stands between it and the others."""
        return self.nodes[number].address

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(self.address_of(number) for number in self.nodes)

    def living(self) -> list[int]:
        """The nodes whose processes run, paused or not."""
        return [number for number, node in self.nodes.items() if node.is_alive()]

    def others(self, number: int) -> list[int]:
        """All nodes but one."""
        return [it for it in self.nodes if it != number]


class LocalNode(Server):
    """One node as people run it, on data and at an address that it keeps."""

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


class LocalCluster(Processes[LocalNode]):
    """Three nodes that vote, in a folder that the caller removes."""

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
        """A cluster in the folder of a context, with processes as `children` starts them."""
        return cls(context.directory / name, *settings, environment=children.environment(context))

    def close(self) -> None:
        """End every process at once, and give the ports back."""
        super().close()
        self._reserved.close()

    # What they hold

    def create(self, topic: str, replicas: Sequence[Sequence[int]], **config: object) -> str:
        """Create a topic whose replicas are said; wait until every node that is alive has heard of it."""
        named = {name.replace("_", "."): str(value).lower() for name, value in config.items()}
        with Client(self.bootstrap) as client:
            create_topics(client, [NewTopic(topic, configs=named, assignments=dict(enumerate(replicas)))])
        until(lambda: all(self.state(topic, at=it) for it in self.living()), f"all know {topic}")
        return topic

    def lead_as_preferred(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Give each partition to its first replica; wait until all are in sync, and all nodes know the leader."""
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
        # A node may be taken for dead a moment longer than it is: then the next attempt succeeds.
        with contextlib.suppress(ClientError), Client(self.bootstrap) as client:
            elect_leaders(client, partitions)
            return True
        return False
