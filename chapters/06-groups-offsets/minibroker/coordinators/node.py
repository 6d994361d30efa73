"""Assembles a node of a cluster with consumer groups and transactions: chapter 05's node, plus the coordinators."""

from functools import partial

from minibroker.controller.placement import place_on_racks
from minibroker.coordinators.features import FINALIZED, SUPPORTED
from minibroker.coordinators.finding import TRANSACTION_KEY
from minibroker.coordinators.group_hosting import GroupCoordinators
from minibroker.coordinators.internal_topics import rules_for
from minibroker.coordinators.node_calls import NodeCalls
from minibroker.coordinators.ongoing import OngoingTransactions
from minibroker.coordinators.transaction_hosting import TransactionCoordinators, transactions_state_topic
from minibroker.coordinators.verification import TransactionVerifier
from minibroker.metadata.configs import NodeConfig
from minibroker.partitions.node import Node
from minibroker.partitions.server import Connect, Tracer
from minibroker.partitions.serving import Partitions
from minibroker.partitions.streams import stream_connection
from minibroker.quorum.member import QuorumMember
from minibroker.replicas.hosting import Hosted, watched_machine
from minibroker.transactions.keys import TRANSACTION_PARTITION_VERIFICATION_ENABLE
from minibroker.transactions.logs import TransactionLogs


def coordinator_node(config: NodeConfig, tracer: Tracer | None = None, *, connect: Connect = stream_connection) -> Node:
    """Assemble a node: a broker, a controller, or both, as configured."""
    machine = watched_machine(config, tracer, connect)
    member = QuorumMember(machine, features=FINALIZED)
    may_be_fenced = member.heartbeats.may_be_fenced
    calls, topic = NodeCalls(machine, member), transactions_state_topic(machine, member)
    verifier = TransactionVerifier(calls, topic, is_enabled=TRANSACTION_PARTITION_VERIFICATION_ENABLE.of(config))
    groups = GroupCoordinators(
        machine, member, may_be_fenced=may_be_fenced, other_topics={TRANSACTION_KEY: topic}, verifier=verifier
    )
    transactions = TransactionCoordinators(
        machine, member, topic=topic, offsets=groups.topic, calls=calls, may_be_fenced=may_be_fenced
    )
    ongoing = OngoingTransactions(calls, lambda: member.authority.image)
    logs = TransactionLogs(machine.waiting.wake, verifier=verifier, offsets=groups, ongoing=ongoing)
    hosted = Hosted(
        machine,
        member,
        listeners=[groups, transactions],
        rules_for=partial(rules_for, others=logs.rules_for),
        open_transactions=logs.open_transactions,
    )
    partitions = Partitions(
        machine,
        member,
        hosting=hosted,
        placing=place_on_racks,
        own_broker=member.own_broker,
        check_leading=member.heartbeats.check_heard,
        features=SUPPORTED,
    )
    return Node(machine, member, partitions, [hosted, groups, transactions, logs])
