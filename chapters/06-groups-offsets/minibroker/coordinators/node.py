"""Assembles a node of a cluster with consumer groups: chapter 05's node, plus the coordinators."""

from minibroker.controller.placement import place_on_racks
from minibroker.coordinators.features import FINALIZED, SUPPORTED
from minibroker.coordinators.hosting import GroupCoordinators
from minibroker.coordinators.internal_topics import rules_for
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Connect, Tracer
from minibroker.partitions.serving import Partitions
from minibroker.partitions.streams import stream_connection
from minibroker.quorum.member import QuorumMember
from minibroker.replicas.hosting import Hosted, watched_machine


def coordinator_node(config: NodeConfig, tracer: Tracer | None = None, *, connect: Connect = stream_connection) -> Node:
    """Assemble a node: a broker, a controller, or both, as configured."""
    machine = watched_machine(config, tracer, connect)
    member = QuorumMember(machine, features=FINALIZED)
    coordinators = GroupCoordinators(machine, member, may_be_fenced=member.heartbeats.may_be_fenced)
    hosted = Hosted(machine, member, listeners=[coordinators], rules_for=rules_for)
    partitions = Partitions(
        machine,
        member,
        hosting=hosted,
        placing=place_on_racks,
        own_broker=member.own_broker,
        check_leading=member.heartbeats.check_heard,
        features=SUPPORTED,
    )
    return Node(machine, member, partitions, [hosted, coordinators])
