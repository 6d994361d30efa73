"""Collects the facts of a cluster for `minibroker cluster status`, and prints them with the findings of `status`."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace

import click

from minibroker.cli.connecting import FAILURES, connected
from minibroker.cli.prospects import Prospect, prospect
from minibroker.cli.status import (
    SILENT_MS_MAX,
    Facts,
    Node,
    Partition,
    Quorum,
    Role,
    advice,
    counts,
    findings,
)
from minibroker.cli.tables import NOT_KNOWN, counted, echo_json, table_text
from minibroker.client.errors import ClientError
from minibroker.clients import admin
from minibroker.clients.admin import (
    ClusterDescription,
    DescribedTopic,
    QuorumDescription,
    QuorumReplica,
    Reassignment,
    ResourceType,
)
from minibroker.clients.blocking import Client, connect
from minibroker.clients.routing import parse_addresses
from minibroker.segments.checkpoint import TopicPartition

TIMEOUT_MS = 10_000
INTERVAL_S = 1.0
REACH_S_MAX = 1.0
LAG_MS_MAX = 1000
"""If a node has not fetched for longer than this, its lag is shown as not known."""
_MIN_ISR = "min.insync.replicas"
# Move the cursor to the top left, then erase to the end of the screen; the scrollback stays.
_CLEAR = "\x1b[H\x1b[J"


# Asking ---------------------------------------------------------------------------------------------------------------


def facts_of(bootstrap: str) -> Facts:
    """Collect the facts for `status` from one node."""
    with connected(bootstrap, timeout_ms=TIMEOUT_MS) as client:
        cluster = admin.describe_cluster(client)
        quorum, moves = _quorum(client)
        nodes = _nodes(cluster, quorum)
        return Facts(
            cluster_id=cluster.cluster_id,
            # Only a controller fences nodes. If there is none, each node is tested with a connection.
            nodes=nodes if quorum else [replace(it, is_unreached=not _is_reached(it)) for it in nodes],
            partitions=_partitions(client, moves),
            quorum=None
            if quorum is None
            else Quorum(leader_id=quorum.leader_id, epoch=quorum.leader_epoch, high_watermark=quorum.high_watermark),
            moving=[str(name) for name in sorted(moves)],
        )


def _is_reached(node: Node) -> bool:
    """Whether a node accepts connections at its address. A node without a known address counts as reachable."""
    if node.address is None:
        return True
    try:
        connect(parse_addresses(node.address)[0], REACH_S_MAX).close()
    except OSError:
        return False
    return True


def _quorum(client: Client) -> tuple[QuorumDescription | None, dict[TopicPartition, Reassignment]]:
    """The quorum and the partitions that are being moved, which only the controller knows."""
    try:
        quorum = admin.describe_quorum(client)
    except ClientError:
        return None, {}
    # A controller need not be a broker. So if no broker answers, the quorum is still known.
    try:
        return quorum, admin.list_reassignments(client)
    except ClientError:
        return quorum, {}


def _nodes(cluster: ClusterDescription, quorum: QuorumDescription | None) -> list[Node]:
    places = {it.node_id: it for it in (*(quorum.nodes if quorum else ()), *cluster.nodes, *cluster.fenced)}
    brokers = {it.node_id for it in (*cluster.nodes, *cluster.fenced)}
    fenced = {it.node_id for it in cluster.fenced}
    known = {it.node_id for it in (*quorum.voters, *quorum.observers)} if quorum else set()
    states = {it: state for it in known if quorum and (state := quorum.latest_state(it)) is not None}
    doubled = _doubled(quorum) if quorum else set()
    # A voter that came back with another disk is listed twice: as the voter it was, and as the observer it is now.
    other_disks = {it.node_id for it in quorum.voters if states[it.node_id] is not it} - doubled if quorum else set()
    return [
        Node(
            node_id=node_id,
            address=str(places[node_id].address) if node_id in places else None,
            rack=places[node_id].rack if node_id in places else None,
            role=_role(node_id, quorum),
            is_broker=node_id in brokers,
            is_fenced=node_id in fenced,
            log_end_offset=_log_end_offset(states.get(node_id)),
            silent_ms=_silent_ms(states.get(node_id), states.get(quorum.leader_id) if quorum else None),
            is_unheard=_is_unheard(states.get(node_id), states.get(quorum.leader_id) if quorum else None),
            has_another_disk=node_id in other_disks,
            is_doubled=node_id in doubled,
        )
        for node_id in sorted(places.keys() | states.keys())
        if node_id in places or not _has_stopped(states[node_id], states.get(quorum.leader_id) if quorum else None)
    ]


def _doubled(quorum: QuorumDescription) -> set[int]:
    """The node ids that two processes use to fetch. A node that lost its disk is listed twice, but fetches once."""
    leader = quorum.latest_state(quorum.leader_id)
    heard = [
        it.node_id
        for it in (*quorum.voters, *quorum.observers)
        if (silent_ms := _silent_ms(it, leader)) is not None and silent_ms <= LAG_MS_MAX
    ]
    return {it for it in heard if heard.count(it) > 1}


def _role(node_id: int, quorum: QuorumDescription | None) -> Role | None:
    if quorum is None:
        return None
    if node_id == quorum.leader_id:
        return Role.CONTROLLER
    return Role.VOTER if node_id in {it.node_id for it in quorum.voters} else Role.OBSERVER


def _has_stopped(state: QuorumReplica, leader: QuorumReplica | None) -> bool:
    """Whether an observer that is not a broker has stopped. The leader lists a stopped observer for a while."""
    return (_silent_ms(state, leader) or 0) > SILENT_MS_MAX


def _log_end_offset(state: QuorumReplica | None) -> int | None:
    return None if state is None or state.log_end_offset < 0 else state.log_end_offset


def _is_unheard(state: QuorumReplica | None, leader: QuorumReplica | None) -> bool:
    """Whether a replica has not fetched since the leader was elected; false if an old broker sends no times."""
    return state is not None and leader is not None and state.last_fetch_ms < 0 <= leader.last_fetch_ms


def _silent_ms(state: QuorumReplica | None, leader: QuorumReplica | None) -> int | None:
    # Both times are from the leader's clock. An old broker sends neither.
    if state is None or leader is None or min(state.last_fetch_ms, leader.last_fetch_ms) < 0:
        return None
    return max(leader.last_fetch_ms - state.last_fetch_ms, 0)


def _partitions(client: Client, moves: dict[TopicPartition, Reassignment]) -> list[Partition]:
    described = admin.describe_eligible(client, admin.describe_topics(client))
    topics = sorted(described.values(), key=lambda it: it.name)
    configs = admin.describe_configs(client, ResourceType.TOPIC, [it.name for it in topics], keys=[_MIN_ISR])
    prospects = _prospects(client, topics)
    found = []
    for topic in topics:
        min_insync_replicas = int(configs[topic.name][_MIN_ISR].value or 1)
        for it in topic.partitions:
            name = TopicPartition(topic.name, it.partition)
            found.append(
                Partition(
                    name=str(name),
                    topic=topic.name,
                    number=it.partition,
                    leader_id=it.leader_id,
                    replicas=it.replicas,
                    isr=it.isr,
                    eligible=it.eligible,
                    prospect=prospects.get(name),
                    adding=moves[name].adding if name in moves else (),
                    min_insync_replicas=min_insync_replicas,
                )
            )
    return found


def _prospects(client: Client, topics: Iterable[DescribedTopic]) -> dict[TopicPartition, Prospect | None]:
    """What an unclean election would do with the first partition that has no leader; the advice names only that one."""
    offline = ((TopicPartition(it.name, one.partition), one) for it in topics for one in it.partitions)
    first = next(((name, it) for name, it in offline if it.leader_id < 0), None)
    if first is None:
        return {}
    name, it = first
    ends = admin.replica_ends(client, {name: [one for one in it.replicas if one not in it.offline]})
    return {name: prospect(it.replicas, ends[name], last_leader=it.last_leader)}


# Showing --------------------------------------------------------------------------------------------------------------


def show(facts: Facts, format_: str) -> None:
    """Print the facts as text or as JSON."""
    if format_ == "json":
        echo_json(document(facts))
    else:
        click.echo(text(facts))


def watch(bootstrap: str, format_: str) -> None:
    """Print the facts every second. While no node answers, print the error instead."""
    is_screen = sys.stdout.isatty() and format_ == "table"
    while True:
        try:
            facts = facts_of(bootstrap)
        except FAILURES as error:
            _clear(is_screen)
            click.echo(error.format_message() if isinstance(error, click.ClickException) else str(error), err=True)
        else:
            _clear(is_screen)
            show(facts, format_)
        sys.stdout.flush()
        time.sleep(INTERVAL_S)


def _clear(is_screen: bool) -> None:
    if is_screen:
        click.echo(f"{_CLEAR}{time.strftime('%H:%M:%S')}")


def text(facts: Facts) -> str:
    """The facts and the findings as text."""
    topics = {it.topic for it in facts.partitions}
    title = f"cluster {facts.cluster_id}: {counted(len(facts.nodes), 'node')}, {counted(len(topics), 'topic')}"
    return "\n".join(
        [title, "", _node_table(facts), "", _quorum_line(facts), _partition_line(facts), "", *_wrong(facts)]
    )


def _node_table(facts: Facts) -> str:
    columns = ["NODE", "ADDRESS", "RACK", "ROLE", "STATE", "LEADS", "REPLICAS", "METADATA LAG"]
    rows = [
        [
            it.node_id,
            it.address or NOT_KNOWN,
            it.rack or NOT_KNOWN,
            _role_text(it) or NOT_KNOWN,
            it.state,
            sum(one.leader_id == it.node_id for one in facts.partitions) if it.is_broker else NOT_KNOWN,
            sum(it.node_id in one.replicas for one in facts.partitions) if it.is_broker else NOT_KNOWN,
            _lag(it, facts.nodes, facts.quorum),
        ]
        for it in facts.nodes
    ]
    return table_text(columns, rows)


def _role_text(node: Node) -> str | None:
    # The voter set still names the node's old disk. With its new disk the node is only an observer.
    if node.has_another_disk:
        return Role.OBSERVER.value
    return node.role.value if node.role else None


def _lag(node: Node, nodes: Iterable[Node], quorum: Quorum | None) -> int | str:
    ends = [it.log_end_offset for it in nodes if quorum and it.node_id == quorum.leader_id]
    if not ends or ends[0] is None or node.log_end_offset is None or (node.silent_ms or 0) > LAG_MS_MAX:
        return NOT_KNOWN
    return max(ends[0] - node.log_end_offset, 0)


def _quorum_line(facts: Facts) -> str:
    if facts.quorum is None:
        return "quorum: no controller"
    it = facts.quorum
    return (
        f"quorum: node {it.leader_id} leads {counted(len(facts.voters), 'voter')} in epoch {it.epoch}; committed up to "
        f"offset {it.high_watermark}"
    )


def _partition_line(facts: Facts) -> str:
    total, *others = counts(facts).items()
    return f"partitions: {total[1]}, of which " + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in others)


def _wrong(facts: Facts) -> list[str]:
    found = findings(facts)
    tail = [f"advice: {it}." for it in advice(facts)]
    if not found:
        return [click.style("nothing is wrong", fg="green"), *tail]
    lines = [click.style(f"{counted(len(found), 'thing')} {'is' if len(found) == 1 else 'are'} wrong:", fg="red")]
    for it in found:
        lines += [f"- {it.what}.", f"  what to do: {it.to_do}."]
    return lines + tail


def document(facts: Facts) -> dict[str, object]:
    """The facts and the findings as a JSON document."""
    quorum = facts.quorum
    return {
        "cluster_id": facts.cluster_id,
        "nodes": [
            {
                "id": it.node_id,
                "address": it.address,
                "rack": it.rack,
                "role": _role_text(it),
                "state": it.state,
                "is_broker": it.is_broker,
                "log_end_offset": it.log_end_offset,
                "silent_ms": it.silent_ms,
            }
            for it in facts.nodes
        ],
        "quorum": quorum
        and {"leader_id": quorum.leader_id, "epoch": quorum.epoch, "high_watermark": quorum.high_watermark},
        "partitions": dict(counts(facts)),
        "moving": list(facts.moving),
        "wrong": [{"what": it.what, "to_do": it.to_do} for it in findings(facts)],
        "advice": advice(facts),
    }
