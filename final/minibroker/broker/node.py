"""The finished broker, assembled from the parts of all chapters. It holds no protocol logic."""

from minibroker.coordinators.node import coordinator_node
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer


def broker_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node. So far it is the node of the last chapter, and nothing is added."""
    return coordinator_node(config, tracer)
