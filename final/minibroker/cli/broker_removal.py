"""Unregisters a broker, for `minibroker cluster remove-broker`. The broker must be fenced and have no replicas."""

import click

from minibroker.cli.connecting import connected
from minibroker.cli.tables import counted
from minibroker.client.errors import BrokerError
from minibroker.clients import admin
from minibroker.wire.codes import ErrorCode

_REFUSED = (ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED)


def remove(bootstrap: str, node_id: int) -> None:
    """Unregister a broker that was stopped and has no replicas left."""
    with connected(bootstrap) as client:
        try:
            admin.unregister_broker(client, node_id)
        except BrokerError as error:
            if error.code not in _REFUSED:
                raise
            raise click.ClickException(error.message) from error
        cluster, quorum = admin.describe_cluster(client), admin.describe_quorum(client)
    left = [it for it in (*cluster.nodes, *cluster.fenced) if it.node_id != node_id]
    click.echo(f"node {node_id} is not registered any more; {counted(len(left), 'broker')} left")
    if any(it.node_id == node_id for it in quorum.voters):
        click.echo(f"node {node_id} is still a voter: next, run `minibroker cluster remove-voter {node_id}`")
