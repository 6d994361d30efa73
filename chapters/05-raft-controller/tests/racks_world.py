"""The world of the controller on racks: it places the replicas of a partition, and racks are lost.

    python -m minibroker.simulation racks_world --path chapters/05-raft-controller/tests --seeds 1000

The replicas of a new partition are on as many racks as possible, so one lost rack never takes all of them.
"""

import controller_world
from replication_cluster import NODE_CONFIG
from replication_nodes import NAME, TOPIC_ID

from minibroker.controller.placement import place_on_racks
from minibroker.metadata.image import Image, PartitionImage
from minibroker.metadata.topic_commands import CreateTopics, NewTopic
from minibroker.simulation import cluster

REPLICAS = 3


class World(controller_world.World):
    """The same nodes, faults and invariants."""

    DISASTERS = (cluster.LOSE_RACK,)

    def _create(self, live: list[int]) -> None:
        # Brokers that are not registered yet have no rack.
        if len(live) == len(self.machines):
            configs: dict[str, str | None] = {"min.insync.replicas": "2"}
            topic = NewTopic(NAME.topic, TOPIC_ID, partition_count=1, replication_factor=REPLICAS, configs=configs)
            self._propose(CreateTopics([topic], NODE_CONFIG, placing=place_on_racks))

    def _on_partition(self, image: Image, partition: PartitionImage) -> None:
        if self.last_partition is None:
            racks = {it.rack for it in image.brokers.values()}
            used = {image.brokers[it].rack for it in partition.replicas}
            wanted = min(len(racks), REPLICAS)
            assert len(used) == wanted, f"the replicas {partition.replicas} are on {used}, the racks are {racks}"
        super()._on_partition(image, partition)
