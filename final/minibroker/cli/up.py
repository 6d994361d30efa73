"""`minibroker up`: a local cluster in the foreground. `supervising` runs it; this module holds the options."""

import click

NODES_MAX = 100


@click.command()
@click.option("-n", "count", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="How many nodes.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="data/cluster",
    show_default=True,
    help="Where each node has its directory.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Of the first node; the others follow. 0 is any free ones.",
)
@click.option("--no-restart", is_flag=True, help="Let a node that died be dead.")
@click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting of every node; may be repeated.")
def up(count: int, data: str, port: int, no_restart: bool, pairs: tuple[str, ...]) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM.

    Every node is a process, and is started again when it dies. Prints `ready: HOST:PORT,HOST:PORT,...` once all serve.
    Topics get three replicas, or as many as there are nodes; from three nodes on two must be in sync. --set goes first.
    """
    # The broker is slow to import, and --help needs none.
    from minibroker.cli import supervising  # noqa: PLC0415

    supervising.run(count=count, data=data, port=port, is_restarting=not no_restart, pairs=pairs)
