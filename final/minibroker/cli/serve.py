"""`minibroker serve`: its options. `serving` starts the node."""

import click

from minibroker.cli.options import listener


@click.command()
@click.option("--data", metavar="DIR", type=click.Path(file_okay=False), help="The data directory.  [default: data]")
@click.option(
    "--listen", metavar="HOST:PORT", callback=listener, help="Address to listen on.  [default: 127.0.0.1:9092]"
)
@click.option(
    "--config",
    "file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of settings, name=value.",
)
@click.option("--set", "pairs", metavar="NAME=VALUE", multiple=True, help="One setting; may be given several times.")
@click.option("--trace", is_flag=True, help="Print each request and response, field by field, to stderr.")
@click.option("--child", "is_child", is_flag=True, hidden=True, help="Stop when stdin ends: for `minibroker up`.")
def serve(
    data: str | None, listen: str | None, file: str | None, pairs: tuple[str, ...], trace: bool, is_child: bool
) -> None:
    """Run one node until Ctrl-C or SIGTERM.

    Without controller.quorum.voters, the node is a cluster of its own; with it, the node joins a cluster. Prints
    `ready: HOST:PORT` once it serves clients. Settings have Kafka's names; an option overrides --set, and --set
    overrides the file. Port 0 means any free port.
    """
    # The broker is slow to import, and --help does not need it.
    from minibroker.cli import serving  # noqa: PLC0415

    serving.serve(
        serving.settings_from(data=data, listen=listen, file=file, pairs=pairs), trace=trace, is_child=is_child
    )
