"""`minibroker cluster`: its options. `inspecting`, `voting` and `broker_removal` do the work."""

import click

from minibroker.cli.options import GLOSSARY_EPILOG, bootstrap_option, listener
from minibroker.cli.tables import format_option


@click.group(epilog=GLOSSARY_EPILOG)
def cluster() -> None:
    """Show the state of a cluster and what is wrong with it; add and remove voters; remove brokers."""


@cluster.command()
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@format_option
@bootstrap_option
def status(watch: bool, format_: str, bootstrap: str) -> None:
    """Show nodes, quorum and partitions, and what is wrong.

    Each problem is shown with a remedy. The exit code is 0 if a node answers, even if something is wrong.
    """
    from minibroker.cli import inspecting  # noqa: PLC0415 (the client is slow to import, and --help does not need it)

    if watch:
        inspecting.watch(bootstrap, format_)
    else:
        inspecting.show(inspecting.facts_of(bootstrap), format_)


@cluster.command("add-voter")
@click.argument("node", type=click.IntRange(min=0))
@click.option(
    "--address",
    metavar="HOST:PORT",
    callback=listener,
    help="Address of NODE.  [default: the address that NODE registered as a broker]",
)
@bootstrap_option
def add_voter(node: int, address: str | None, bootstrap: str) -> None:
    """Make NODE a voter with its present disk.

    NODE must be running and must follow the metadata. The present voters commit the change; the command waits until
    NODE has caught up.
    """
    from minibroker.cli import voting  # noqa: PLC0415

    voting.add(bootstrap, node, address)


@cluster.command("remove-voter")
@click.argument("node", type=click.IntRange(min=0))
@bootstrap_option
def remove_voter(node: int, bootstrap: str) -> None:
    """Remove NODE from the voter set.

    Do this when its disk is lost, or before the node is removed for good. The replicas on NODE are not moved.
    """
    from minibroker.cli import voting  # noqa: PLC0415

    voting.remove(bootstrap, node)


@cluster.command("remove-broker")
@click.argument("node", type=click.IntRange(min=0))
@bootstrap_option
def remove_broker(node: int, bootstrap: str) -> None:
    """Unregister NODE, which will not come back.

    First move its replicas away with `minibroker topics reassign --from NODE`, and stop it. If it is started again
    later, it registers as a new broker.
    """
    from minibroker.cli import broker_removal  # noqa: PLC0415

    broker_removal.remove(bootstrap, node)
