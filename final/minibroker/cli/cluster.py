"""`minibroker cluster`: how it is, who votes, and who belongs to it. `inspecting`, `voting` and `leaving` ask; here are
the options.
"""

import click

from minibroker.cli.options import bootstrap_option, listener
from minibroker.cli.tables import format_option


@click.group()
def cluster() -> None:
    """Show how the cluster is and what is wrong with it; change who votes, and forget who has gone."""


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


@cluster.command("remove-broker")
@click.argument("node", type=click.IntRange(min=0))
@bootstrap_option
def remove_broker(node: int, bootstrap: str) -> None:
    """Forget NODE, which will not come back.

    First move its replicas away with `minibroker topics reassign --from NODE`, and stop it. One that is started again
    after all is taken in as a new one.
    """
    from minibroker.cli import leaving  # noqa: PLC0415

    leaving.remove(bootstrap, node)
