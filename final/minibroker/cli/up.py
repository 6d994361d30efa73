"""`minibroker up`: its options. `supervising` runs the cluster."""

import click

NODES_MAX = 100


@click.command()
@click.option("-n", "count", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="Number of nodes.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="data/cluster",
    show_default=True,
    help="Directory with one data directory per node.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port of the first node; the others use the ports after it. 0 means any free ports.",
)
@click.option("--no-restart", is_flag=True, help="Do not restart a node that dies.")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting for every node; may be given several times."
)
def up(count: int, data: str, port: int, no_restart: bool, pairs: tuple[str, ...]) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM.

    Every node is a process, which is restarted when it dies. Prints `ready: HOST:PORT,HOST:PORT,...` once all nodes
    serve clients. Topics get three replicas, or one per node if there are fewer nodes; with three nodes or more, two
    replicas must be in sync for acks=all. --set overrides these defaults.
    """
    # The broker is slow to import, and --help does not need it.
    from minibroker.cli import supervising  # noqa: PLC0415

    supervising.run(count=count, data=data, port=port, is_restarting=not no_restart, pairs=pairs)
