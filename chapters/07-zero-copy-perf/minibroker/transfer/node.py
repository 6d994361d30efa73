"""Assembles a node with the fast server: chapter 06's node with other connections."""

from minibroker.coordinators.node import coordinator_node
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer
from minibroker.transfer.connection import fast_connection
from minibroker.transfer.keys import FETCH_TRANSFER
from minibroker.transfer.sending import Transfer


def fast_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node: a broker, a controller, or both, as configured."""
    return coordinator_node(config, tracer, connect=fast_connection(Transfer(FETCH_TRANSFER.of(config))))
