"""Chapter 04's node with access to its parts, for the tests of the driver."""

from typing import cast

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.cluster import Deciding
from minibroker.partitions.waiting import Waiting
from minibroker.replicas.fetching import Fetchers, Incarnation
from minibroker.replicas.hosting import Hosted
from minibroker.replicas.one_controller import OneController, replicated
from minibroker.replication.replica import Replica
from minibroker.segments.checkpoint import TopicPartition
from minibroker.wire.schema import Response


class ReplicatedNode:
    """One node, and what it is made of."""

    def __init__(self, config: NodeConfig) -> None:
        self.node = replicated(config)
        self.cluster = cast(OneController, self.node.cluster)
        (part,) = self.node.parts
        self.hosted = cast(Hosted, part)
        self.start, self.stop, self.watch = self.node.start, self.node.stop, self.node.watch

    @property
    def address(self) -> str:
        return self.node.address

    @property
    def authority(self) -> Deciding:
        return self.cluster.authority

    @property
    def me(self) -> Incarnation:
        return self.cluster.me

    @property
    def fetchers(self) -> Fetchers:
        return self.hosted.fetchers

    @property
    def waiting(self) -> Waiting[Response]:
        return self.node.machine.waiting

    def replica(self, name: TopicPartition) -> Replica | None:
        return self.hosted.replica(name)

    def replicas(self) -> list[Replica]:
        return self.hosted.replicas()
