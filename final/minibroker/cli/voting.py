"""Adds voters to the quorum and removes them, for `minibroker cluster add-voter` and `remove-voter`.

A voter is a node together with its disk (KIP-853). The cluster knows the disk and the address of each node, so the
commands need only the node's id.
"""

import click

from minibroker.cli.connecting import connected
from minibroker.cli.status import voters_advice
from minibroker.cli.tables import counted
from minibroker.client.addresses import Address
from minibroker.clients import admin
from minibroker.clients.admin import QuorumDescription, QuorumReplica, ResourceType
from minibroker.clients.blocking import Client
from minibroker.clients.routing import parse_addresses
from minibroker.replication.keys import parse_voters

_ROLES, _VOTERS = "process.roles", "controller.quorum.voters"


def add(bootstrap: str, node_id: int, address: str | None) -> None:
    """Make a voter of a node that follows the metadata."""
    with connected(bootstrap) as client:
        quorum = admin.describe_quorum(client)
        state = quorum.latest_state(node_id)
        if state is None:
            raise click.ClickException(
                f"node {node_id} does not follow the metadata: start it first, with the controller.quorum.voters of "
                "this cluster"
            )
        _demand_no_voter(quorum, state)
        place = _address(client, node_id) if address is None else parse_addresses(address)[0]
        if any(it.node_id == node_id for it in admin.describe_cluster(client).nodes):
            _demand_role(client, node_id)
        admin.add_voter(client, node_id, state.directory_id, place)
        after = admin.describe_quorum(client)
    _tell(f"node {node_id} at {place} is a voter now", after)


def remove(bootstrap: str, node_id: int) -> None:
    """Remove a node from the voter set."""
    with connected(bootstrap) as client:
        quorum = admin.describe_quorum(client)
        voter = next((it for it in quorum.voters if it.node_id == node_id), None)
        if voter is None:
            voters = ", ".join(str(it.node_id) for it in quorum.voters)
            raise click.ClickException(f"node {node_id} is not a voter: the voters are {voters}")
        if len(quorum.voters) == 1:
            raise click.ClickException(
                f"node {node_id} is the only voter: first add another with `minibroker cluster add-voter`"
            )
        admin.remove_voter(client, node_id, voter.directory_id)
        after = admin.describe_quorum(client)
    _tell(f"node {node_id} is not a voter any more", after)


def _demand_no_voter(quorum: QuorumDescription, state: QuorumReplica) -> None:
    if state in quorum.voters:
        raise click.ClickException(f"node {state.node_id} is a voter already")
    if any(it.node_id == state.node_id for it in quorum.voters):
        raise click.ClickException(
            f"node {state.node_id} is a voter with the disk that it had before: if that disk is lost, first run "
            f"`minibroker cluster remove-voter {state.node_id}`"
        )


def _address(client: Client, node_id: int) -> Address:
    cluster = admin.describe_cluster(client)
    for node in (*cluster.nodes, *cluster.fenced):
        if node.node_id == node_id:
            return node.address
    raise click.ClickException(
        f"node {node_id} is not a broker, so the cluster does not know its address: give it with --address HOST:PORT"
    )


def _demand_role(client: Client, node_id: int) -> None:
    """Refuse a broker whose own settings do not name it as a voter: its next start would make it an observer."""
    keys = (_ROLES, _VOTERS)
    found = admin.describe_configs(client, ResourceType.BROKER, [str(node_id)], keys=keys)[str(node_id)]
    if node_id in {it.node_id for it in parse_voters(found[_VOTERS].value or "")}:
        return
    raise click.ClickException(
        f"node {node_id} runs as a broker only: in its configuration file, add the node to {_VOTERS}, set {_ROLES} "
        "to broker,controller or remove that setting, and start the node again with the same data"
    )


def _tell(what: str, quorum: QuorumDescription) -> None:
    count = len(quorum.voters)
    click.echo(f"{what}; {counted(count, 'voter')}, of which {count // 2 + 1} must be running")
    for it in voters_advice(count):
        click.echo(it)
