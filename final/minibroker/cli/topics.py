"""`minibroker topics`: create, list, describe, alter, delete. `administering` does the work; here are the options."""

import click

from minibroker.cli.options import bootstrap_option, complete_topics, settings_of
from minibroker.cli.tables import format_option

config_option = click.option(
    "--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting of the topic; may be given several times."
)
name_argument = click.argument("name", shell_complete=complete_topics)


@click.group()
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: the broker's num.partitions]")
@click.option("--replication-factor", type=click.IntRange(min=1), help="How many copies.  [default: the broker's]")
@config_option
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no failure.")
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    pairs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
) -> None:
    """Create the topic NAME."""
    from minibroker.cli import administering  # noqa: PLC0415 (the client is slow to import, and --help needs none)

    configs = settings_of(pairs, "--config")
    administering.create(
        bootstrap,
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs,
        may_exist=if_not_exists,
    )


@topics.command("list")
@format_option
@bootstrap_option
def list_topics(format_: str, bootstrap: str) -> None:
    """List the topics."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.list_topics(bootstrap, format_)


@topics.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_topics)
@format_option
@bootstrap_option
def describe(names: tuple[str, ...], format_: str, bootstrap: str) -> None:
    """Show partitions, replicas, offsets, sizes and settings; of all topics if none is named."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.describe(bootstrap, names, format_)


@topics.command()
@name_argument
@click.option("--partitions", type=click.IntRange(min=1), help="Add partitions, until there are so many.")
@config_option
@click.option("--delete-config", "removed", metavar="NAME", multiple=True, help="Return to the default of a setting.")
@bootstrap_option
def alter(name: str, partitions: int | None, pairs: tuple[str, ...], removed: tuple[str, ...], bootstrap: str) -> None:
    """Add partitions to the topic NAME, or change its settings.

    More partitions move keys to other partitions, which breaks the order of their records. A topic never shrinks.
    """
    from minibroker.cli import administering  # noqa: PLC0415

    configs = settings_of(pairs, "--config")
    if partitions is None and not configs and not removed:
        raise click.UsageError("say what to alter: --partitions, --config or --delete-config.")
    administering.alter(bootstrap, name, partitions=partitions, configs=configs, removed=removed)


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no failure.")
@bootstrap_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete topics with all their records."""
    from minibroker.cli import administering  # noqa: PLC0415

    administering.delete(bootstrap, names, may_be_absent=if_exists)
