"""`minibroker cluster`: how the whole of it is. `inspecting` asks; this module holds the options."""

import click

from minibroker.cli.options import bootstrap_option
from minibroker.cli.tables import format_option


@click.group()
def cluster() -> None:
    """Show how the cluster is, and what is wrong with it."""


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
