"""Assembles a node of a cluster with a quorum. Any node may be killed at any time.

    start   open the metadata log → join the quorum → register with the controller → read the registration →
            open, lead and follow partitions → send heartbeats until unfenced → serve clients
    stop    ask for a controlled shutdown → wait until other brokers lead → stop serving → close the logs

One listener serves clients and nodes. Until a node has joined its cluster, it serves only nodes: a client is
disconnected, and tries again.
"""

from minibroker.controller.deciding import SUPPORTED_BY_CONTROLLER
from minibroker.controller.placement import place_on_racks
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer
from minibroker.partitions.serving import Partitions
from minibroker.quorum.member import QuorumMember
from minibroker.replicas.hosting import Hosted, watched_machine


def quorum_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node: a broker, a controller, or both, as configured."""
    machine = watched_machine(config, tracer)
    member = QuorumMember(machine)
    hosted = Hosted(machine, member)
    partitions = Partitions(
        machine,
        member,
        hosting=hosted,
        placing=place_on_racks,
        own_broker=member.own_broker,
        check_leading=member.heartbeats.check_heard,
        features=SUPPORTED_BY_CONTROLLER,
    )
    return Node(machine, member, partitions, [hosted])
