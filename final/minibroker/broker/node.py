"""The finished broker, assembled from the parts of all chapters. It holds no protocol logic."""

from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer
from minibroker.transfer.node import fast_node


def broker_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node. So far it is the node of the last chapter, and nothing is added."""
    return fast_node(config, tracer)
