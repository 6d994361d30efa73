"""`minibroker cluster`: how it is, and who votes. `inspecting` and `voting` ask; this module holds the options."""

import click

from minibroker.cli.options import bootstrap_option, listener
from minibroker.cli.tables import format_option


@click.group()
def cluster() -> None:
    """Show how the cluster is and what is wrong with it, and change who votes."""


@cluster.command()
@click.option("--watch", is_flag=True, help="Show it anew every second, until Ctrl-C.")
@format_option
@bootstrap_option
def status(watch: bool, format_: str, bootstrap: str) -> None:
    """Show nodes, the quorum, partitions, and what is wrong, with what to do.

    The exit code is 0 whenever a node answers, whatever it says.
    """
    from minibroker.cli import inspecting  # noqa: PLC0415 (the client is slow to import, and --help needs none)

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
    help="Where it listens.  [default: where it is registered as a broker]",
)
@bootstrap_option
def add_voter(node: int, address: str | None, bootstrap: str) -> None:
    """Let NODE vote, with the disk it has now. It must be running, and follow the metadata.

    It is decided by the voters there are, and waits until NODE has caught up.
    """
    from minibroker.cli import voting  # noqa: PLC0415

    voting.add(bootstrap, node, address)


@cluster.command("remove-voter")
@click.argument("node", type=click.IntRange(min=0))
@bootstrap_option
def remove_voter(node: int, bootstrap: str) -> None:
    """Let NODE vote no more: because its disk is lost, or because it is to go.

    Its partitions stay where they are.
    """
    from minibroker.cli import voting  # noqa: PLC0415

    voting.remove(bootstrap, node)
