"""Lets a cluster forget a broker, for `minibroker cluster remove-broker`. Whether it may, the controller knows."""

import click

from minibroker.cli.connecting import connected
from minibroker.cli.tables import counted
from minibroker.client.errors import BrokerError
from minibroker.clients import admin
from minibroker.wire.codes import ErrorCode

_REFUSED = (ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED)


def remove(bootstrap: str, node_id: int) -> None:
    """Forget a node that was stopped, and has no replicas any more."""
    with connected(bootstrap) as client:
        try:
            admin.unregister_broker(client, node_id)
        except BrokerError as error:
            if error.code not in _REFUSED:
                raise
            raise click.ClickException(error.message) from error
        cluster, quorum = admin.describe_cluster(client), admin.describe_quorum(client)
    left = [it for it in (*cluster.nodes, *cluster.fenced) if it.node_id != node_id]
    click.echo(f"node {node_id} is forgotten; {counted(len(left), 'broker')} left")
    if any(it.node_id == node_id for it in quorum.voters):
        click.echo(f"it still counts as a voter: `minibroker cluster remove-voter {node_id}`")
