"""Assembles a node with the fast server: chapter 06's node with other connections, fetch sessions and quotas."""

from minibroker.coordinators.node import coordinator_node
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer
from minibroker.transfer.arrivals import Arrivals
from minibroker.transfer.connection import fast_connection
from minibroker.transfer.keys import FETCH_TRANSFER, MAX_CONNECTION_CREATION_RATE
from minibroker.transfer.quotas import Metering, Quotas, usage_of
from minibroker.transfer.sending import Transfer
from minibroker.transfer.session_part import FetchSessions


def fast_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node: a broker, a controller, or both, as configured."""
    usage = usage_of(config)
    arrivals = Arrivals(usage, rate_max=MAX_CONNECTION_CREATION_RATE.of(config))
    node = coordinator_node(config, tracer, connect=fast_connection(Transfer(FETCH_TRANSFER.of(config)), arrivals))
    metering = Metering(usage)
    quotas = Quotas(node.machine, lambda: node.cluster.authority, metering, arrivals)
    node.parts = [*node.parts, FetchSessions(node.machine, metering), quotas]
    return node
