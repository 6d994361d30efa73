"""A node of a cluster with a quorum, assembled. Any of them may be killed at any time.

    start   open the logs → take part in the quorum → register with the controller → follow the metadata up to there →
            lead and follow what they say → be heard, and unfenced → serve clients
    stop    say goodbye, and wait until others lead what this node led → serve no more → close the logs

One listener serves clients and nodes alike. Until a node is part of its cluster it talks to nodes only: a client that
comes early is turned away, and comes again.
"""

from minibroker.controller.placement import place_on_racks
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Tracer
from minibroker.partitions.serving import Partitions
from minibroker.quorum.member import QuorumMember
from minibroker.replicas.hosting import Hosted, watched_machine


def quorum_node(config: NodeConfig, tracer: Tracer | None = None) -> Node:
    """Assemble a node: broker and controller, or one of both, as its configuration says."""
    machine = watched_machine(config, tracer)
    member = QuorumMember(machine)
    hosted = Hosted(machine, member)
    partitions = Partitions(
        machine,
        member,
        hosting=hosted,
        placing=place_on_racks,
        myself=member.myself,
        on_timeout=member.heartbeats.check_heard,
    )
    return Node(machine, member, partitions, [hosted])
