"""Changes who votes in the quorum, for `minibroker cluster add-voter` and `remove-voter`.

A voter is a node together with its disk (KIP-853). Which disk is meant, and where the node listens, the cluster knows:
people name the node alone.
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
    """Let a node vote that follows the metadata."""
    with connected(bootstrap) as client:
        quorum = admin.describe_quorum(client)
        present = quorum.present(node_id)
        if present is None:
            raise click.ClickException(
                f"node {node_id} does not follow the metadata: start it first, with the controller.quorum.voters of "
                "this cluster"
            )
        _demand_no_voter(quorum, present)
        place = _address(client, node_id) if address is None else parse_addresses(address)[0]
        if any(it.node_id == node_id for it in admin.describe_cluster(client).nodes):
            _demand_role(client, node_id)
        admin.add_voter(client, node_id, present.directory_id, place)
        after = admin.describe_quorum(client)
    _tell(f"node {node_id} at {place} votes", after)


def remove(bootstrap: str, node_id: int) -> None:
    """Let a node vote no more."""
    with connected(bootstrap) as client:
        quorum = admin.describe_quorum(client)
        voter = next((it for it in quorum.voters if it.node_id == node_id), None)
        if voter is None:
            voters = ", ".join(str(it.node_id) for it in quorum.voters)
            raise click.ClickException(f"node {node_id} does not vote: the voters are {voters}")
        if len(quorum.voters) == 1:
            raise click.ClickException(f"node {node_id} is the only voter: add another one first")
        admin.remove_voter(client, node_id, voter.directory_id)
        after = admin.describe_quorum(client)
    _tell(f"node {node_id} votes no more", after)


def _demand_no_voter(quorum: QuorumDescription, present: QuorumReplica) -> None:
    if present in quorum.voters:
        raise click.ClickException(f"node {present.node_id} votes already")
    if any(it.node_id == present.node_id for it in quorum.voters):
        raise click.ClickException(
            f"node {present.node_id} votes with the disk that it had before: if that is lost, first "
            f"`minibroker cluster remove-voter {present.node_id}`"
        )


def _address(client: Client, node_id: int) -> Address:
    cluster = admin.describe_cluster(client)
    for node in (*cluster.nodes, *cluster.fenced):
        if node.node_id == node_id:
            return node.address
    raise click.ClickException(
        f"node {node_id} is no broker, so nobody knows where it listens: say it with --address HOST:PORT"
    )


def _demand_role(client: Client, node_id: int) -> None:
    """Demand that a broker's own file says that it votes: otherwise, started again, it would ask the others first."""
    keys = (_ROLES, _VOTERS)
    found = admin.describe_configs(client, ResourceType.BROKER, [str(node_id)], keys=keys)[str(node_id)]
    if node_id in {it.node_id for it in parse_voters(found[_VOTERS].value or "")}:
        return
    raise click.ClickException(
        f"node {node_id} runs as a broker alone: in its file, name it in {_VOTERS}, too, let {_ROLES} be "
        "broker,controller or leave it out, and start it again with the same data"
    )


def _tell(what: str, quorum: QuorumDescription) -> None:
    count = len(quorum.voters)
    click.echo(f"{what}; {counted(count, 'voter')}, of which {count // 2 + 1} must be there")
    for it in voters_advice(count):
        click.echo(it)
